"""Token texts: of our tokenizer, and of files that are none."""

import json
import os

import numpy as np
import pytest

from analysis.dashboard import vocabulary
from analysis.dashboard.vocabulary import read_vocabulary
from minigpt.records import TRAIN_LOSS, InputError
from tests.analysis.dashboard.runs import history


def run_in(folder, **facts):
    facts = {"vocabulary": "vocabulary.json"} | facts
    return history({TRAIN_LOSS: np.zeros(1)}, folder=folder, **facts)


def texts(folder, pieces, **more):
    document = {"model": {"vocab": pieces}} | more
    (folder / "vocabulary.json").write_text(json.dumps(document))
    return read_vocabulary(run_in(folder))


def byte_level(text):
    """How GPT-2 writes the bytes of a text, by its own description."""
    shifted, pieces = 0, {}
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        pieces[byte] = chr(byte) if printable else chr(256 + shifted)
        shifted += not printable
    return "".join(pieces[byte] for byte in text.encode())


@pytest.mark.parametrize(
    "text", ["a", " the", "\n", "é", "íà", "日本", "🙂", "<b>&", "\x00"]
)
def test_bytes_become_text_again(tmp_path, text):
    assert texts(tmp_path, {byte_level(text): 7}) == {7: text}


def test_every_byte_has_a_character():
    table = vocabulary._byte_of_character()
    assert sorted(table.values()) == list(range(256))


def test_half_a_character_is_shown_as_such(tmp_path):
    assert texts(tmp_path, {byte_level("é")[0]: 1}) == {1: "\ufffd"}


def test_a_piece_of_other_characters_is_text_already(tmp_path):
    assert texts(tmp_path, {"日": 1, "": 2}) == {1: "日", 2: ""}


def test_added_tokens_are_text(tmp_path):
    added = [{"id": 3, "content": "<pad>"}, {"id": 1, "content": "Ġ"}, 5, {"id": "x"}]
    added += [{"id": 4}, {"id": True, "content": "no"}, {"id": 9, "content": None}]
    assert texts(tmp_path, {"a": 1}, added_tokens=added) == {1: "Ġ", 3: "<pad>"}
    assert texts(tmp_path, {"a": 1}, added_tokens=None) == {1: "a"}
    assert texts(tmp_path, {"a": 1}, added_tokens=7) == {1: "a"}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe\xfa", "codec can't decode"),
        (b"[" * 200_000, "recursion"),
        (b'{"a":' * 200_000, "recursion"),
        (b"[]", "no model.vocab"),
        (b'{"model": []}', "no model.vocab"),
        (b'{"model": {"vocab": ["a"]}}', "no model.vocab"),
        (b'{"model": {"vocab": {"a": "1"}}}', "the id of 'a' is '1'"),
        (b'{"model": {"vocab": {"a": true}}}', "the id of 'a' is True"),
        (b'{"model": {"vocab": {"a": 1.5}}}', "the id of 'a' is 1.5"),
        (b'{"model": {"vocab": {"a": NaN}}}', "the id of 'a' is nan"),
        (b'{"model": {"vocab": {"a": ' + b"9" * 5000 + b"}}}", "integer string"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused_in_a_line(tmp_path, content, found):
    (tmp_path / "vocabulary.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_vocabulary(run_in(tmp_path))
    message = str(caught.value)
    assert message.startswith("vocabulary.json: expected a tokenizer.json, found: ")
    assert found in message
    assert len(message) < 300


def test_there_is_none(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_vocabulary(run_in(tmp_path))
    with pytest.raises(InputError, match="names no vocabulary"):
        read_vocabulary(run_in(tmp_path, vocabulary=None))
    (tmp_path / "vocabulary.json").mkdir()
    with pytest.raises(InputError, match="no regular file"):
        read_vocabulary(run_in(tmp_path))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "vocabulary.json")
    with pytest.raises(InputError, match="no regular file"):
        read_vocabulary(run_in(tmp_path))


def test_a_link_to_a_vocabulary_is_one(tmp_path):
    (tmp_path / "real.json").write_text('{"model": {"vocab": {"a": 1}}}')
    (tmp_path / "vocabulary.json").symlink_to("real.json")
    assert read_vocabulary(run_in(tmp_path)) == {1: "a"}


def test_a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "vocabulary.json").open("wb") as file:
        file.truncate(vocabulary.MAX_BYTES + 1)
    with pytest.raises(InputError, match="more than 67108864 bytes"):
        read_vocabulary(run_in(tmp_path))
