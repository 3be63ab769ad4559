"""Rules for the source text, each with a planted case that it must find."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("minigpt", "analysis", "runners", "loss_autopsy")
MAX_LINES = 300
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}
PICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# What runs code out of data, or reads data that may hold code.
UNSAFE_CALLS = {"eval", "exec", "compile", "yaml.load", "yaml.unsafe_load"}
UNSAFE_CALLS |= {"yaml.full_load", "torch.load", "torch.save", "allow_pickle"}


def sources(*packages):
    return sorted(p for name in packages for p in (ROOT / name).rglob("*.py"))


def unsafe(text):
    """Lines that pickle, evaluate text or load what may do so."""
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call):
            names = [ast.unparse(node.func)]
            names += [keyword.arg for keyword in node.keywords if is_pickling(keyword)]
        for name in names:
            if name in UNSAFE_CALLS or name.split(".")[0] in PICKLERS:
                yield f"{node.lineno}: {name}"


def is_pickling(keyword):
    value = keyword.value
    off = isinstance(value, ast.Constant) and value.value is False
    return keyword.arg == "allow_pickle" and not off


def stepless_metrics(text):
    """Lines that log a metric without saying of which step."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in ("log_metric", "log_metrics") and not any(
            keyword.arg == "step" for keyword in node.keywords
        ):
            yield f"{node.lineno}: {node.func.attr}"


def foreign_paths(text):
    """Absolute paths of somebody's machine."""
    return re.findall(r"""["'`\s(](/(?:home|root|Users|work|mnt)/[\w./-]*)""", text)


@pytest.mark.parametrize("check", [unsafe, stepless_metrics])
def test_no_module_breaks_the_rule(check):
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources(*PACKAGES)
        for line in check(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import os, joblib",
        "from dill import loads",
        "def f():\n    from shelve import open",
        "eval('1')",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "torch.load(path, weights_only=True)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
    ],
)
def test_unsafe_code_is_found(text):
    assert len(set(unsafe(text))) == 1


def test_safe_code_is_left_alone():
    text = (
        "model.eval()\nyaml.safe_load(t)\nre.compile(p)\nnp.load(p, allow_pickle=False)"
    )
    assert list(unsafe(text)) == []


def test_a_metric_without_its_step_is_found():
    text = (
        "client.log_metric(run, 'a', 1.0)\nmlflow.log_metrics(d, step=3)\nlog_metric(1)"
    )
    assert list(stepless_metrics(text)) == ["1: log_metric"]


def test_no_file_is_a_drawer():
    found = [p for p in sources(*PACKAGES, "tests") if p.stem in DRAWERS]
    assert found == []


def test_no_file_is_longer_than_a_reader_can_hold():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in sources(*PACKAGES)
    }
    assert "minigpt/training.py" in lengths
    too_long = {name: count for name, count in lengths.items() if count > MAX_LINES}
    assert too_long == {}


def test_no_source_names_a_place_on_one_machine():
    assert foreign_paths("open('/home/me/x')") == ["/home/me/x"]
    found = {
        str(path.relative_to(ROOT)): paths
        for path in sources(*PACKAGES, "tests")
        if path != Path(__file__) and (paths := foreign_paths(path.read_text()))
    }
    assert found == {}


def test_folders_of_choices_and_runs_hold_no_python():
    found = [p for p in sources("conf", "experiments", "learners")]
    assert found == []
