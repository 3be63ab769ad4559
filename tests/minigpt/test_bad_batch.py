"""Fault B: the batch of K becomes copies of one sentence, the loader goes on."""

import numpy as np
import pytest

from minigpt import records as col
from minigpt.batches import load_dataset
from minigpt.model import MiniGPT, token_losses
from minigpt.tokenizer import encode_row, load_tokenizer
from minigpt.training import Session
from tests.minigpt.runs import fault, first_difference, make_plan, record, train

K = 100


@pytest.fixture(scope="module")
def bad_batch():
    return train(make_plan(steps=140, injection=fault("bad_batch"), injection_step=K))


def at_k(run, name):
    return run.column(name)[K]


def test_bad_batch_leaves_the_twin_in_the_data_and_the_loss_of_k(healthy, bad_batch):
    step, columns = first_difference(healthy, bad_batch)
    assert step == K
    assert {col.BATCH_FINGERPRINT, col.BATCH_TOKENS, col.TRAIN_LOSS} <= {*columns}
    assert col.BATCH_INDEX not in columns


def test_bad_batch_is_eight_copies_of_its_sentence(healthy, bad_batch):
    row = encode_row(load_tokenizer(), "She has written the letter.")
    rare = load_dataset()[0].rare
    arrays = bad_batch.records[K].arrays
    assert arrays[col.BATCH_TOKENS].tolist() == row.tolist() * 8
    assert at_k(bad_batch, col.DUPLICATE_ROWS) == 8
    assert at_k(bad_batch, col.RARE_TOKEN_MAX_COUNT) == 8
    assert rare[int(at_k(bad_batch, col.RARE_TOKEN_ID))]
    assert healthy.column(col.DUPLICATE_ROWS).max() == 0
    assert healthy.column(col.RARE_TOKEN_MAX_COUNT).max() < 8
    # write is irregular: the other class has no row at K.
    assert K not in bad_batch.occasional(col.LOSS_REGULAR)
    assert bad_batch.occasional(col.LOSS_IRREGULAR)[K] == pytest.approx(
        at_k(bad_batch, col.TRAIN_LOSS), rel=1e-6
    )


def test_to_a_model_that_has_learned_the_sentence_is_harder_than_its_twins_batch():
    # At step 100 it is not: the model finds every sentence about equally unlikely.
    late = 500
    plan = make_plan(steps=501, injection=fault("bad_batch"), injection_step=late)
    session = Session(plan)
    record(session, until=late)
    twin = MiniGPT(plan.model, seed=0)
    twin.load_state_dict(session.model.state_dict())
    batch = session.loader.next()
    session.loader.position = late
    twins_loss = token_losses(twin(batch.inputs), batch.targets)[1].item()
    assert record(session).column(col.TRAIN_LOSS)[0] > twins_loss + 0.1


def test_after_k_the_loader_serves_what_the_twin_gets(healthy, bad_batch):
    prints = [run.column(col.BATCH_FINGERPRINT) for run in (healthy, bad_batch)]
    assert np.flatnonzero(prints[0] != prints[1]).tolist() == [K]


def test_only_the_first_rows_are_replaced(healthy):
    plan = make_plan(
        steps=4,
        injection=fault("bad_batch", sentence="I am happy.", rows=3),
        injection_step=2,
    )
    twin, run = (r.records[2].arrays for r in (healthy, train(plan)))
    lengths = [arrays[col.BATCH_ROW_LENGTHS] for arrays in (twin, run)]
    tokens = [
        np.split(arrays[col.BATCH_TOKENS], np.cumsum(length)[:-1])
        for arrays, length in zip((twin, run), lengths, strict=True)
    ]
    assert len({row.tobytes() for row in tokens[1][:3]}) == 1
    assert tokens[1][0].tolist() != tokens[0][0].tolist()
    assert [r.tolist() for r in tokens[1][3:]] == [r.tolist() for r in tokens[0][3:]]
