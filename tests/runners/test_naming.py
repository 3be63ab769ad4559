"""Run names: what was chosen, in few characters, and different for what differs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.injections import INJECTIONS, config_class
from minigpt.optimizer import AdamWConfig
from runners.compose import compose_config
from runners.config import RunConfig, config_hash
from runners.naming import MAX_NAME, _labels, run_name


@cache
def composed(*overrides: str) -> RunConfig:
    return compose_config(list(overrides))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ((), "none-clip1.0-random-s42"),
        (
            ("injection=scale", "clip=0.5", "loader=stratified"),
            "scale-clip0.5-stratified-s42",
        ),
        (("clip=null", "data_seed=7"), "none-noclip-random-s42-d7"),
        (("injection=scale", "injection_step=312"), "scale-clip1.0-random-s42-k312"),
        (("injection_step=312", "steps=501"), "none-clip1.0-random-s42-n501"),
        (("steps=10",), "none-clip1.0-random-s42-n10"),
        (("name=mine",), "mine"),
        (("name=mine", "optimizer.beta2=0.5"), "mine"),
        (("experiment=19-injection-C", "clip=0.5"), "19-injection-C"),
    ],
)
def test_run_name(overrides, name):
    assert run_name(composed(*overrides)) == name


@pytest.mark.parametrize(
    ("overrides", "end"),
    [
        (("injection=scale", "injection.factor=10"), "-factor10"),
        (("injection=scale", "injection.factor=0.5"), "-factor0.5"),
        (("injection=scale", "injection.factor=1e20"), "-factor1e20"),
        (("injection=bad_batch", "injection.rows=4"), "-rows4"),
        (("injection=rigged_order", "injection.rows=4"), "-rows4"),
        (("injection=rigged_order", "injection.select=rarest"), "-select-rarest"),
        (("optimizer.beta2=0.999",), "-beta2-0.999"),
        (("optimizer.eps=1e-7",), "-eps1e-07"),
        (("schedule.lr_max=0.001", "model.d_ff=128"), "-d_ff128-lr_max0.001"),
        (("loader.batch_size=16",), "-batch_size16"),
        (("cadence.probe=0", "threads=2"), "-probe0-threads2"),
        (("checkpoint.every=0",), "-checkpoint_every0"),
    ],
)
def test_every_other_choice_that_is_not_the_default_is_said(overrides, end):
    plain = run_name(
        composed(*overrides[:1] if overrides[0].count("injection=") else ())
    )
    assert run_name(composed(*overrides)) == plain + end


@pytest.mark.parametrize("kind", INJECTIONS)
def test_no_two_keys_are_said_alike(kind):
    labels = _labels(composed(f"injection={kind}"))
    assert len(set(labels.values())) == len(labels)


def test_what_the_record_does_not_depend_on_is_not_said():
    overrides = ("paths.root=x", "tracking.experiment=y")
    assert run_name(composed(*overrides)) == run_name(composed())
    base = composed("injection=scale")
    other = replace(base, injection=replace(base.injection, predictions=[{"id": "x"}]))
    assert run_name(other) == run_name(base)


def sentence(text: str) -> RunConfig:
    injection = config_class("bad_batch")(kind="bad_batch", sentence=text)
    return RunConfig(injection=injection)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 500,
        "She was here.",
        "../../etc",
        "<b>é",
        " ",
        "...",
        "a-b",
        "null",
        "a\nb",
    ],
)
def test_long_or_odd_text_is_short_legal_and_marked_by_a_hash(text):
    name = run_name(sentence(text))
    RunConfig(name=name)  # would refuse it
    front, _, mark = name.rpartition("-")
    assert front.startswith("bad_batch-clip1.0-random-s42-sentence")
    assert len(mark) == 6
    assert int(mark, 16) >= 0
    assert len(name) < 80


@pytest.mark.parametrize(
    ("one", "two"),
    [("a b", "a_b"), ("x" * 30 + "1", "x" * 30 + "2"), ("é", "è"), ("a.", "a")],
)
def test_texts_that_shorten_to_the_same_have_two_names(one, two):
    assert run_name(sentence(one)) != run_name(sentence(two))


def test_a_name_that_is_too_long_is_cut_and_marked():
    def long(eps):
        optimizer = AdamWConfig(beta1=0.123456789, beta2=0.123456789, eps=eps)
        schedule = replace(
            RunConfig().schedule, lr_max=0.123456789, lr_min=0.0123456789
        )
        return RunConfig(
            optimizer=replace(optimizer, weight_decay=0.123456789), schedule=schedule
        )

    names = {run_name(long(eps)) for eps in (1e-7, 1.23456789e-7)}
    assert len(names) == 2
    assert all(len(name) <= MAX_NAME for name in names)
    for name in names:
        RunConfig(name=name)


NUMBERS = st.floats(1e-9, 0.99)


@settings(deadline=None, max_examples=200)
@given(st.tuples(NUMBERS, NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS, NUMBERS))
def test_two_configs_with_different_records_have_different_names(one, two):
    def config(values):
        beta1, beta2, eps = values
        return RunConfig(optimizer=AdamWConfig(beta1=beta1, beta2=beta2, eps=eps))

    a, b = config(one), config(two)
    assert (run_name(a) == run_name(b)) == (config_hash(a) == config_hash(b))


@settings(deadline=None, max_examples=200)
@given(st.text(), st.text())
def test_two_sentences_have_two_legal_names(one, two):
    a, b = sentence(one), sentence(two)
    RunConfig(name=run_name(a))
    assert (run_name(a) == run_name(b)) == (one == two)
