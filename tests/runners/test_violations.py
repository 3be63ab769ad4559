"""What the stratified loader could not keep apart is told, never silent."""

import itertools
from collections import Counter

import numpy as np

from analysis.history import load, read_manifest
from minigpt import records as col
from minigpt.batches import load_dataset

STRATIFIED = ("loader=stratified", "steps=5", "tracking=none", "name=x")


def surplus_tokens(folder) -> int:
    """Rare tokens that a recorded batch holds more than once, batch by batch."""
    rare = load_dataset()[0].rare
    tokens, offsets = load(folder).array(col.BATCH_TOKENS)
    found = 0
    for start, end in itertools.pairwise(offsets):
        counts = Counter(tokens[start:end].tolist())
        found += sum(1 for token, n in counts.items() if rare[token] and n > 1)
    return found


def test_batches_too_large_to_keep_tokens_apart_are_told(autopsy, tmp_path):
    answer = autopsy("train", *STRATIFIED, "loader.batch_size=48")  # one epoch
    folder = tmp_path / "experiments" / "x"
    told = read_manifest(folder)["data"]["loader_violations"]
    assert sum(told.values()) == surplus_tokens(folder) > 0
    line = ", ".join(f"{count} x {kind}" for kind, count in sorted(told.items()))
    assert f", rare tokens twice in a batch: {line}" in answer.out


def test_nothing_is_told_where_no_token_met_itself(autopsy, tmp_path):
    answer = autopsy("train", *STRATIFIED)
    folder = tmp_path / "experiments" / "x"
    assert read_manifest(folder)["data"]["loader_violations"] == {}
    assert surplus_tokens(folder) == 0
    assert "rare tokens" not in answer.out
    assert np.all(load(folder).scalar(col.RARE_TOKEN_MAX_COUNT) <= 1)
