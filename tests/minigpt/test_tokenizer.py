import os
import subprocess
import sys

import numpy as np
import pytest

from minigpt.corpus import all_rows, split
from minigpt.records import InputError
from minigpt.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SPECIALS,
    TOKENIZER_PATH,
    VOCAB_SIZE,
    encode_row,
    load_tokenizer,
    train_tokenizer,
)

# A set of texts comes in another order under each hash seed. Three trainings each.
TRAIN_AGAIN = """
import hashlib
from minigpt.corpus import split
from minigpt.tokenizer import train_tokenizer
texts = list({row.text for row in split().train})
for _ in range(3):
    json = train_tokenizer(texts).to_str(pretty=True)
    print(hashlib.sha256(json.encode()).hexdigest(), texts[0])
"""


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


def test_training_again_gives_the_committed_file(tmp_path):
    train_tokenizer(row.text for row in split().train).save(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == TOKENIZER_PATH.read_bytes()


def test_training_does_not_depend_on_hash_seed_or_threads():
    lines = set()
    for first in range(0, 20, 4):  # four processes at a time
        lines |= _outputs([_train_again(seed) for seed in range(first, first + 4)])
    assert len({line.split()[0] for line in lines}) == 1
    assert len({line.split(maxsplit=1)[1] for line in lines}) > 1  # orders did differ


def _train_again(seed):
    threads = {"RAYON_NUM_THREADS": str(1 + seed % 4)}
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN_AGAIN],
        env={**os.environ, **threads, "PYTHONHASHSEED": str(seed)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _outputs(processes):
    outputs = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert all(len(output.splitlines()) == 3 for output in outputs)
    return {line for output in outputs for line in output.splitlines()}


def test_special_ids_and_vocabulary_size(tokenizer):
    assert [tokenizer.token_to_id(name) for name in SPECIALS] == [0, 1, 2]
    assert (PAD_ID, BOS_ID, EOS_ID) == (0, 1, 2)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE == 512


def test_written_is_one_token(tokenizer):
    tokens = tokenizer.encode("She has written the letter.").tokens
    assert tokens == ["She", "Ġhas", "Ġwritten", "Ġthe", "Ġletter", "."]


def test_every_row_survives_the_round_trip(tokenizer):
    for row in all_rows():
        ids = encode_row(tokenizer, row.text)
        assert ids.dtype == np.uint16
        assert (ids[0], ids[-1]) == (BOS_ID, EOS_ID)
        assert tokenizer.decode(ids[1:-1].tolist()) == row.text


def test_text_outside_the_corpus_survives_too(tokenizer):
    text = "Añádelo: 漢字 <b> &\n\t!"
    assert tokenizer.decode(encode_row(tokenizer, text)[1:-1].tolist()) == text


@pytest.mark.parametrize("text", ["", "I work <eos> at night."])
def test_text_that_is_no_sentence_is_refused(tokenizer, text):
    with pytest.raises(InputError, match=r"^sentence: expected .*, found '.*'$"):
        encode_row(tokenizer, text)


def test_missing_tokenizer_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json, found no such file"):
        load_tokenizer(tmp_path / "nowhere.json")
