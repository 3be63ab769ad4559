"""Rows that swap places: who meets in batch K, and what stays as it was."""

import numpy as np
import pytest

from minigpt import records as col
from minigpt.batches import load_dataset
from minigpt.injections import build_injection
from minigpt.loaders import RandomLoader, StratifiedLoader
from minigpt.records import InputError
from minigpt.training import Session
from tests.minigpt.runs import fault, first_difference, make_plan, train

K, EPOCH, OFFSET = 72, 2, 12  # batch 12 of epoch 2
EPOCHS = [0, 1, 3, 4]  # the others


@pytest.fixture(scope="module")
def rows():
    return load_dataset()[0]


def rigged(dataset, step=K, **parameters):
    config = fault("rigged_order", **parameters)
    return build_injection(config, step, dataset, 8)


def batches(rows, epoch, injection=None, kind=RandomLoader, seed=42):
    on_order = injection.on_order if injection else None
    return kind(rows, 8, seed, on_order).epoch_batches(epoch)


def written(rows):
    return {i for i, text in enumerate(rows.texts) if "written" in text}


@pytest.mark.parametrize("seed", [0, 1, 42])
@pytest.mark.parametrize("step", [60, K, 89])  # first, middle, last of the epoch
def test_the_three_written_rows_meet_in_batch_k(rows, step, seed):
    served = batches(rows, EPOCH, rigged(rows, step), seed=seed)
    assert written(rows) <= set(served[step - 60].tolist())
    assert len(written(rows)) == 3


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_rows_swap_places_and_none_is_added_or_lost(rows, seed):
    plain = np.concatenate(batches(rows, EPOCH, seed=seed))
    served = np.concatenate(batches(rows, EPOCH, rigged(rows), seed=seed))
    assert sorted(served) == sorted(plain) == list(range(240))
    moved = served != plain
    away = {row for row in written(rows) if plain.tolist().index(row) // 8 != OFFSET}
    # Each written row that was elsewhere changed places with one row of batch K.
    assert moved.sum() == 2 * len(away)
    assert away <= set(served[moved].tolist())
    assert sum(np.flatnonzero(moved) // 8 == OFFSET) == len(away)


def test_other_epochs_are_untouched(rows):
    for epoch in EPOCHS:
        plain = np.concatenate(batches(rows, epoch))
        served = np.concatenate(batches(rows, epoch, rigged(rows)))
        assert served.tolist() == plain.tolist()


def test_rows_that_are_there_already_stay(rows):
    order = np.arange(240)
    chosen = sorted(written(rows))
    target = chosen[0] // 8
    served = rigged(rows, step=target).on_order(0, order)
    assert served[chosen[0]] == chosen[0]
    assert written(rows) <= set(served[8 * target : 8 * target + 8].tolist())
    assert order.tolist() == list(range(240))  # the argument is not written to


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_the_stratified_loader_takes_them_apart(rows, seed):
    served = batches(rows, EPOCH, rigged(rows), StratifiedLoader, seed)
    meetings = [len(written(rows) & set(batch.tolist())) for batch in served]
    assert max(meetings) == 1
    assert sum(meetings) == 3


def test_rarest_rows_are_those_with_the_rarest_tokens(rows):
    injection = rigged(rows, rows=8, select="rarest")
    batch = set(batches(rows, EPOCH, injection)[OFFSET].tolist())
    rarest = [int(rows.token_counts[row].min()) for row in rows.rows]
    inside = max(rarest[i] for i in batch)
    assert inside <= min(count for i, count in enumerate(rarest) if i not in batch)
    assert inside < 10


# -- in a run ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def run():
    injection = fault("rigged_order")
    return train(make_plan(steps=95, injection=injection, injection_step=K))


def test_the_run_leaves_its_twin_at_the_first_touched_batch(rows, healthy, run):
    plain, served = batches(rows, EPOCH), batches(rows, EPOCH, rigged(rows))
    touched = [i for i in range(30) if plain[i].tolist() != served[i].tolist()]
    step, columns = first_difference(healthy, run)
    assert step == 60 + touched[0] < K
    assert {col.BATCH_FINGERPRINT, col.TRAIN_LOSS} <= {*columns}
    prints = [r.column(col.BATCH_FINGERPRINT)[:95] for r in (healthy, run)]
    differ = np.flatnonzero(prints[0] != prints[1])
    assert differ.tolist() == [60 + i for i in touched]


def test_batch_k_shows_three_of_one_rare_token_and_no_duplicate(rows, run):
    token = int(run.column(col.RARE_TOKEN_ID)[K])
    holders = {i for i, row in enumerate(rows.rows) if token in row}
    assert written(rows) <= holders
    assert run.column(col.RARE_TOKEN_MAX_COUNT)[K] >= 3
    assert run.column(col.DUPLICATE_ROWS)[K] == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rows": 4}, r"at most the 3 training rows with 'written', got 4"),
        ({"word": "shrdlu"}, r"at most the 0 training rows with 'shrdlu', got 3"),
        ({"rows": 9, "select": "rarest"}, r"at most the batch size \(8\), got 9"),
        ({"rows": 0}, r"injection\.rows: expected at least 1, got 0"),
        ({"select": "longest"}, r"injection\.select: .* word, rarest; got 'longest'"),
    ],
)
def test_what_cannot_be_arranged_is_refused(parameters, message):
    with pytest.raises(InputError, match=message):
        Session(make_plan(injection=fault("rigged_order", **parameters)))
