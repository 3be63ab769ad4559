"""The batch log against the raw arrays, token by token."""

import json

import numpy as np
import pytest

from analysis.dashboard import batches
from analysis.dashboard.batches import LOSS_BEYOND, LOSS_ODD, LOSS_UNIT, batch_log
from analysis.dashboard.payload import Payload
from minigpt import records as col
from tests.analysis.dashboard.runs import decoded, history

ALIGNED = "the record has no losses that fit the tokens"


def ragged_run(count, seed=0, folder=None, extra=None, widest=5):
    """Batches of rows of other lengths, as the loaders make them."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, widest, rng.integers(0, 4)) for _ in range(count)]
    arrays = {
        col.BATCH_ROW_LENGTHS: [one.astype(np.uint16) for one in lengths],
        col.BATCH_TOKENS: [
            rng.integers(0, 50, one.sum()).astype(np.uint16) for one in lengths
        ],
        col.TOKEN_LOSS: [
            rng.random(one.sum() - len(one)).astype(np.float32) for one in lengths
        ],
    }
    place = {} if folder is None else {"folder": folder, "vocabulary": "v.json"}
    flat = {col.TRAIN_LOSS: np.zeros(count)} | (extra or {})
    return history(flat, arrays, steps=np.arange(count) + 100, **place)


def unpacked(run, keep=()):
    """The log with its arrays put in."""
    payload = Payload()
    log = batch_log(run, list(keep), payload)
    arrays = decoded(payload.index, payload.encoded())
    for key in ("rows", "tokens", "sizes", "lengths", "counts", "losses"):
        if log.get(key) is not None:
            log[key] = arrays[log[key]]
    for fact in log.get("facts", []):
        fact["values"] = arrays[fact["values"]]
    return log


def told(log):
    """step -> rows of (token, units of loss), read as the page's script reads them."""
    batches, token, row, loss = {}, 0, 0, 0
    for step, size, count in zip(log["rows"], log["sizes"], log["counts"], strict=True):
        end = token + size
        batches[step] = []
        for length in log["lengths"][row : row + count]:
            chips = [(log["tokens"][token], None)]
            for place in range(1, length):
                chips.append((log["tokens"][token + place], log["losses"][loss]))
                loss += 1
            token += length
            batches[step].append(chips)
        row += count
        assert token == end
    assert (token, row, loss) == (
        len(log["tokens"]),
        len(log["lengths"]),
        len(log["losses"]),
    )
    return batches


def raw(run, rows):
    """The same from the record, without the packing."""
    tokens, cuts = run.array(col.BATCH_TOKENS)
    lengths, row_cuts = run.array(col.BATCH_ROW_LENGTHS)
    losses, loss_cuts = run.array(col.TOKEN_LOSS)
    batches = {}
    for row in rows:
        ids = tokens[cuts[row] : cuts[row + 1]].tolist()
        nats = losses[loss_cuts[row] : loss_cuts[row + 1]].tolist()
        batch = batches[int(run.steps[row])] = []
        for length in lengths[row_cuts[row] : row_cuts[row + 1]].tolist():
            units = [None] + [round(nats.pop(0) * LOSS_UNIT) for _ in range(length - 1)]
            batch.append([(ids.pop(0), unit) for unit in units])
    return batches


@pytest.mark.parametrize("seed", range(10))
def test_every_token_stands_beside_its_loss(seed):
    run = ragged_run(20, seed)
    log = unpacked(run)
    assert told(log) == raw(run, range(20))
    assert (log["kept"], log["of"], log["problem"][:8]) == (20, 20, "the toke")


def test_losses_beyond_the_range_are_marked():
    run = ragged_run(1, seed=3, widest=40)
    values = run.data.arrays[col.TOKEN_LOSS][0]
    odd = [np.nan, np.inf, -np.inf, 31.9, 32.1, 3e38, -1.0]
    assert len(values) >= len(odd)
    values[: len(odd)] = odd
    assert unpacked(run)["losses"][: len(odd)] == [
        *(LOSS_ODD, LOSS_ODD, LOSS_ODD),
        *(round(31.9 * LOSS_UNIT), LOSS_BEYOND, LOSS_BEYOND, 0),
    ]


# -- parts that do not fit -------------------------------------------------------------


def with_arrays(**arrays):
    whole = {
        col.BATCH_TOKENS: [[1, 2, 3], [4, 5, 6]],
        col.BATCH_ROW_LENGTHS: [[1, 2], [3]],
        col.TOKEN_LOSS: [[0.5], [0.5, 0.5]],
    }
    whole |= {getattr(col, key.upper()): value for key, value in arrays.items()}
    whole = {
        key: [np.array(row, float if key == col.TOKEN_LOSS else int) for row in rows]
        for key, rows in whole.items()
        if rows is not None
    }
    return history({col.TRAIN_LOSS: np.zeros(2)}, whole)


def test_the_example_fits():
    log = unpacked(with_arrays())
    assert told(log) == {
        0: [[(1, None)], [(2, None), (3, 1024)]],
        1: [[(4, None), (5, 1024), (6, 1024)]],
    }


@pytest.mark.parametrize(
    "losses",
    [None, [[0.5, 0.5], [0.5]], [[], [0.5, 0.5]], [[0.5] * 3, [0.5] * 3]],
)
def test_losses_that_are_not_those_of_the_tokens_are_not_shown(losses):
    """The totals may agree where no batch does."""
    log = unpacked(with_arrays(token_loss=losses))
    assert log["losses"] is None
    assert log["problem"].endswith(ALIGNED)
    assert log["tokens"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "lengths", [[[1, 2], [2]], [[2, 2], [2]], [[0, 3], [3]], [[4, -1], [3]], [[], [3]]]
)
def test_rows_that_do_not_make_up_the_batch_are_no_rows(lengths):
    log = unpacked(with_arrays(batch_row_lengths=lengths))
    assert log["absent"] == "the lengths of the rows are not those of the tokens"
    assert "tokens" not in log
    assert log["rows"] == [0, 1]


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ({"batch_tokens": None}, "data/batch_tokens"),
        ({"batch_row_lengths": None}, "data/batch_row_lengths"),
        (
            {"batch_tokens": None, "batch_row_lengths": None},
            "data/batch_tokens or data/batch_row_lengths",
        ),
    ],
)
def test_missing_columns_are_named(missing, named):
    log = unpacked(with_arrays(**missing))
    assert log["absent"] == f"the record has no column {named}"


def test_no_steps_no_batches():
    assert unpacked(ragged_run(0)) == {"absent": "the record has no steps"}


def test_tokens_may_be_negative_or_huge():
    """Other people's padding is -100."""
    tokens = [[-100, 2**33, 3], [4, 5, 6]]
    log = unpacked(with_arrays(batch_tokens=tokens))
    assert log["tokens"] == [-100, 2**33, 3, 4, 5, 6]


# -- which batches ---------------------------------------------------------------------


def test_of_a_long_run_the_flagged_batches_and_their_neighbours():
    count = 20_000
    flat = {col.TRAIN_LOSS: np.zeros(count), col.BATCH_INDEX: np.arange(count)}
    log = unpacked(history(flat), keep=[3, 9000, 19_990])
    expected = {0, count - 1, *range(0, 24), *range(8995, 9021), *range(19_985, count)}
    assert log["rows"] == sorted(expected)
    assert log["facts"][0]["values"] == log["rows"]


def test_what_was_flagged_has_room_before_its_neighbours(monkeypatch):
    """Batches of the first step took it all, and the flagged one was not shown."""
    monkeypatch.setattr(batches, "MAX_TOKENS", 100)
    run = with_rows_of(10, count=400)
    log = unpacked(run, keep=[0, 200, 300])
    assert len(log["tokens"]) == 100
    beside = {0, 1, 199, 200, 201, 299, 300, 301, 399}
    assert beside < set(log["rows"])
    assert log["rows"] == sorted(log["rows"])


def with_rows_of(size, count):
    arrays = {
        col.BATCH_TOKENS: [np.full(size, row, np.uint16) for row in range(count)],
        col.BATCH_ROW_LENGTHS: [np.array([size], np.uint16)] * count,
    }
    return history({col.TRAIN_LOSS: np.zeros(count)}, arrays)


def test_a_batch_larger_than_the_page_is_left_out(monkeypatch):
    monkeypatch.setattr(batches, "MAX_TOKENS", 100)
    log = unpacked(with_rows_of(101, count=3), keep=[1])
    assert (log["rows"], log["tokens"], log["kept"], log["of"]) == ([], [], 0, 3)


# -- facts and texts -------------------------------------------------------------------


def test_a_fingerprint_keeps_all_its_bits():
    prints = np.array([2**64 - 1, 0, 0x0123456789ABCDEF], np.uint64)
    run = history({col.TRAIN_LOSS: np.zeros(3), col.BATCH_FINGERPRINT: prints})
    (fact,) = unpacked(run)["facts"]
    halves = fact["values"]
    assert [
        (high << 32) | low for high, low in zip(halves[::2], halves[1::2], strict=True)
    ] == prints.tolist()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e300, -1.0, 0.5])
def test_a_rare_token_that_is_no_token(tmp_path, odd):
    """A NaN among the ids was a warning of numpy, and an error in the tests."""
    (tmp_path / "v.json").write_text('{"model": {"vocab": {"a": 7, "b": 99}}}')
    extra = {col.RARE_TOKEN_ID: np.array([odd, 99.0])}
    log = unpacked(ragged_run(2, folder=tmp_path, extra=extra))
    assert log["texts"]["99"] == "b"


def test_only_texts_of_shown_tokens_are_in_the_page(tmp_path):
    pieces = {f"t{number}": number for number in range(5000)}
    (tmp_path / "v.json").write_text(json.dumps({"model": {"vocab": pieces}}))
    log = unpacked(ragged_run(20, folder=tmp_path))
    assert log["texts"] == {str(n): f"t{n}" for n in set(log["tokens"])}
    assert log["problem"] == ""


@pytest.mark.parametrize("content", ["", "[]", '{"model": {"vocab": {"a": []}}}'])
def test_without_a_vocabulary_tokens_are_numbers(tmp_path, content):
    (tmp_path / "v.json").write_text(content)
    log = unpacked(ragged_run(20, folder=tmp_path))
    assert log["texts"] == {}
    assert log["problem"].startswith(
        "the tokens are shown as numbers: v.json: expected"
    )
    assert len(log["tokens"]) > 20
