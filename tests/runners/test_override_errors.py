"""What a mistyped command line says: one line, the key, the choices, the way out."""

from __future__ import annotations

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from minigpt.records import InputError
from runners.compose import compose_config
from runners.override_syntax import quoted


def refusal(*overrides: str, search_dir=None) -> str:
    with pytest.raises(InputError) as caught:
        compose_config(list(overrides), search_dir)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["sed=1"], ["sed: no such key", "did you mean seed?", "clip", "experiment"]),
        (["lr_max=1e-3"], ["did you mean schedule.lr_max?"]),
        (["injction=scale"], ["did you mean injection?"]),
        (["verification=x"], ["verification: not a choice of a run", "injection"]),
        (["+foo=1"], ["foo: no such key", "seed"]),
        (["injection=scale", "injection.factr=3"], ["did you mean factor?", "(scale)"]),
        (["injection.factr=3"], ["injection.factor belongs to injection=scale"]),
        (["injection.word=ate"], ["belongs to injection=rigged_order"]),
        (["cadence.validtion=3"], ["did you mean validation?", "probe, spectral"]),
        (["seed.x=1"], ["seed.x: no such key", "holds no keys"]),
        (["hydra.run.dr=x"], ["hydra.run.dr", "did you mean dir?"]),
        (["~nope"], ["nope: nothing to remove"]),
    ],
)
def test_an_unknown_key_names_the_keys_there_are(overrides, parts):
    message = refusal(*overrides)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("injection=scal", ["bad_batch, none, rigged_order", "did you mean scale?"]),
        ("loader=Random", ["random, stratified", "did you mean random?"]),
        ("experiment=19-injecton-A", ["18-baseline", "did you mean 19-injection-A?"]),
        ("experiment=a/b", ["experiment: expected one of 18-baseline", "'a/b'"]),
        ("injection=0.5", ["bad_batch, none", "got 0.5"]),
        ("injection=null", ["bad_batch, none", "got null"]),
        ("injection=[none,scale]", ["expected one option", "-m"]),
        ("experiment=[18-baseline,19-injection-A]", ["expected one option", "-m"]),
        ("+injection=scale", ["injection: ", "leave out the '+'"]),
        ("+seed=1", ["seed: it exists already", "'+'"]),
        ("injection@x=scale", ["injection@x: ", "'@'"]),
        ("hydra/launcher=joblib", ["hydra/launcher: expected one of basic"]),
        ("hydra/launcher=5", ["hydra/launcher: expected the name of an option", "5"]),
    ],
)
def test_a_wrong_option_names_the_options_there_are(override, parts):
    message = refusal(override)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "override", ["clip=0.5,1.0", "injection=none,scale", "seed=range(1,3)"]
)
def test_a_sweep_without_multirun_says_so(override):
    message = refusal(override)
    assert message.startswith(f"{override.partition('=')[0]}: ")
    assert "add -m" in message
    assert "quote" not in message


def test_a_comma_in_text_may_also_be_quoted():
    message = refusal("name=a,b")
    assert "add -m" in message
    assert """'name="a,b"'""" in message


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("name=ñandú", ["name: 'ñ' is not ASCII", """'name="ñandú"'"""]),
        ("name=a=b", ["name: '='", """'name="a=b"'"""]),
        ("name=a#b", ["name: '#'", """'name="a#b"'"""]),
        ("name=(x)", ["name: '('", """'name="(x)"'"""]),
        ("name=x (y)", ["name: '('", """'name="x (y)"'"""]),
        ('name="a', ["a quote is opened and not closed"]),
        ("seed=[1", ["'[' and ']' do not match"]),
        ("name=a\nb", ["control character"]),
        ("name='x${seed'", ["name: ", "${seed"]),
        ("seed==3", ["as in seed=3"]),
        ("seed", ["'seed': expected key=value"]),
        ("seed:3", ["'seed:3': expected key=value"]),
        ("=3", ["'=3': expected key=value"]),
        ("", ["'': expected key=value"]),
        (" seed=3", ["without spaces around the key"]),
        ("sé=3", ["'sé=3'", "ASCII"]),
        ("-m", ["'-m': an option, not a choice"]),
        ("--multirun", ["'--multirun': an option, not a choice"]),
    ],
)
def test_what_cannot_be_read_says_what_to_quote_and_how(override, parts):
    message = refusal(override)
    assert all(part in message for part in parts), message


@given(st.text(st.characters(exclude_categories=["C"], exclude_characters="$")))
def test_the_quoted_form_is_read_as_the_text_itself(value):
    (argument,) = shlex.split(quoted("name", value))
    assert OverridesParser.create().parse_override(argument).value() == value


def test_a_missing_value_names_its_key(tmp_path):
    (tmp_path / "injection").mkdir()
    option = tmp_path / "injection" / "mine.yaml"
    option.write_text("kind: scale\nfactor: ???\n")
    assert "injection.factor: no value yet" in refusal(
        "injection=mine", search_dir=tmp_path
    )
    assert (
        compose_config(["injection=mine", "injection.factor=2"], tmp_path)
    ).injection.factor == 2.0


def test_an_experiment_file_with_a_misspelt_key_is_refused(tmp_path):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nstps: 5\n")
    message = refusal("experiment=mine", search_dir=tmp_path)
    assert "stps: no such key; did you mean steps?" in message


def test_a_file_that_is_no_yaml_is_named(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("a: [1\nb: 2\n")
    message = refusal("experiment=mine", search_dir=tmp_path)
    assert "not valid YAML" in message
    assert "mine.yaml" in message


def test_a_folder_that_is_not_there_is_named(tmp_path):
    missing = tmp_path / "nope"
    assert str(missing) in refusal(search_dir=missing)
    assert str(missing) in refusal(f"hydra.searchpath=['{missing}']")
