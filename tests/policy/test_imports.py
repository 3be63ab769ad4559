"""Who may import whom."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("minigpt", "analysis", "runners", "loss_autopsy")
STANDARD = set(sys.stdlib_module_names)

# package -> what it may import besides itself and the standard library. A dotted name
# allows that module alone.
ALLOWED = {
    "minigpt": {"torch", "numpy", "tokenizers", "safetensors", "xxhash"},
    "analysis": {
        *("numpy", "pandas", "pyarrow", "seaborn", "matplotlib", "plotly", "bokeh"),
        *("jinja2", "junitparser", "minigpt.records"),
    },
    "runners": {
        *("minigpt", "analysis", "numpy", "pandas", "pyarrow", "typer", "rich", "yaml"),
        *("torch", "hydra", "omegaconf", "mlflow", "filelock", "sqlalchemy"),
        "packaging",
    },
    "loss_autopsy": {"runners", "analysis"},
}
# What is an extra or heavy: imported where it is needed, not at the top of a module.
LAZY = {"analysis": {"tensorboard"}, "loss_autopsy": {"runners", "analysis"}}
# Modules that every reader of a record imports; nothing heavy may come with them.
LIGHT = ("minigpt/__init__.py", "minigpt/records.py")


def module_of(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return list(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path, root):
    """(line, dotted name, whether inside a function) of every import of a file."""
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, functions)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        lazy = id(node) in inside
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, lazy
        elif isinstance(node, ast.ImportFrom):
            base = package_of(node, path, root)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}", lazy
        elif isinstance(node, ast.Call) and called(node) in DYNAMIC:
            for name in imported_by_call(node, tree):
                yield node.lineno, name, lazy


DYNAMIC = ("__import__", "import_module", "importlib.import_module")


def called(node):
    return ast.unparse(node.func)


def imported_by_call(node, tree):
    """The name in the call, or all of the module's table that it is looked up in."""
    argument = node.args[0] if node.args else None
    values = [argument]
    if isinstance(argument, ast.Subscript):
        tables = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            if ast.unparse(node.targets[0]) == ast.unparse(argument.value)
        ]
        values = [value for table in tables for value in table.values]
    names = [v.value if isinstance(v, ast.Constant) else "?" for v in values]
    return names or ["?"]


def package_of(node, path, root):
    if not node.level:
        return node.module
    package = list(path.relative_to(root).parent.parts)
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def matches(name, allowed):
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)


def violations(root):
    """One line for each import that the table does not allow."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for line, name, lazy in imports_of(path, root):
                top = name.split(".")[0]
                late = matches(name, LAZY.get(package, ()))
                allowed = top in STANDARD | {package} or (
                    lazy if late else matches(name, ALLOWED[package])
                )
                if not allowed:
                    found.append(f"{path.relative_to(root)}:{line}: {name}")
    for name in LIGHT:
        path = root / name
        for line, imported, _ in imports_of(path, root) if path.exists() else ():
            if imported.split(".")[0] not in STANDARD | {"numpy"}:
                found.append(f"{name}:{line}: {imported}")
    return found


TABLED = "from importlib import import_module\ndef f(n):\n    import_module(T[n])\n"


def test_every_import_is_in_the_table():
    assert violations(ROOT) == []
    assert all(list((ROOT / package).glob("*.py")) for package in PACKAGES)


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("minigpt/a.py", "import mlflow\n", "minigpt/a.py:1: mlflow"),
        ("minigpt/a.py", "import torch\nimport pandas as pd\n", "a.py:2: pandas"),
        ("minigpt/deep/a.py", "from runners import x\n", "a.py:1: runners.x"),
        (
            "minigpt/a.py",
            "def f():\n    from analysis.b import c\n",
            ":2: analysis.b.c",
        ),
        ("minigpt/deep/a.py", "from ...analysis import b\n", ":1: analysis.b"),
        ("minigpt/a.py", "m = __import__('hydra')\n", ":1: hydra"),
        ("minigpt/a.py", "import importlib\nimportlib.import_module(x)\n", ":2: ?"),
        ("minigpt/records.py", "def f():\n    import torch\n", "records.py:2: torch"),
        ("minigpt/__init__.py", "from minigpt import model\n", ":1: minigpt.model"),
        ("analysis/a.py", "from minigpt import training\n", ":1: minigpt.training"),
        ("analysis/a.py", "from minigpt.recordsx import y\n", ":1: minigpt.recordsx"),
        ("analysis/a.py", "if x:\n    import torch\n", ":2: torch"),
        ("analysis/a.py", "import tensorboard\n", ":1: tensorboard"),
        ("analysis/a.py", "class A:\n    import runners\n", ":2: runners"),
        ("runners/a.py", "from tests import b\n", ":1: tests.b"),
        ("runners/a.py", "import loss_autopsy\n", ":1: loss_autopsy"),
        ("loss_autopsy/a.py", "from runners import b\n", ":1: runners.b"),
        ("loss_autopsy/a.py", f"T = {{'b': 'minigpt.b'}}\n{TABLED}", ":4: minigpt.b"),
        ("loss_autopsy/a.py", TABLED, ":3: ?"),
        ("loss_autopsy/a.py", "def f():\n    import minigpt\n", ":2: minigpt"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, text, found):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (line,) = set(violations(tmp_path))
    assert found in line


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "minigpt/a.py",
            "import json, torch.nn\nfrom minigpt.records import X",
        ),
        (
            "analysis/a.py",
            "from minigpt.records import X\nimport pyarrow.parquet",
        ),
        ("analysis/a.py", "from minigpt import records\n"),
        ("analysis/a.py", "def f():\n    import tensorboard.backend\n"),
        ("runners/a.py", "import typer, hydra\nfrom minigpt.training import Session"),
        ("loss_autopsy/a.py", "def load():\n    from analysis.history import load"),
        ("loss_autopsy/a.py", f"T = {{'b': 'analysis.b'}}\n{TABLED}"),
    ],
)
def test_what_the_table_allows_is_no_violation(tmp_path, file, text):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert violations(tmp_path) == []
