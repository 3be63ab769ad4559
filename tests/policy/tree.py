"""The tree of the README: every file with the first line of its docstring.

python -m tests.policy.tree     writes it into README.md
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- tree -->", "<!-- end of tree -->"
# Folder -> what it is; the packages are listed file by file.
FOLDERS = {
    "conf": "what may be chosen: Hydra groups, YAML only",
    "minigpt": "the thing under observation; training yields step records",
    "analysis": "pure functions of saved records",
    "runners": "where frameworks meet: Hydra, MLflow, the command line",
    "loss_autopsy": "the public names",
    "experiments": "one folder a run, and LOG.md with what was found",
    "learners": "a person's own pages",
    "docs": "your own script, runs that die, MLflow; stability-check.md will be here",
    "tests": "mirrors the packages; make test, make test-slow, make bench",
}
PACKAGES = ("minigpt", "analysis", "runners", "loss_autopsy")
ASSETS = {
    "page.html.j2": "the page without its numbers",
    "page.css": "light and dark, wide and narrow",
    "*.js": "unpacking, charts, legends, the batch log, keys",
    "uPlot.*": "the chart library, MIT, by Leon Sorokin",
}


def tree() -> str:
    """The lines between the marks, as they have to be."""
    lines = []
    for folder, meaning in FOLDERS.items():
        lines.append(f"{folder + '/':24}{meaning}")
        if folder in PACKAGES:
            lines += _files(ROOT / folder, 1)
    return "\n".join([BEGIN, "```text", *lines, "```", END])


def _files(folder: Path, depth: int) -> list[str]:
    """Files, then folders, each with what it is."""
    indent, lines = "  " * depth, []
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            lines.append(_line(indent + path.name, _meaning(path)))
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file():
            lines.append(_line(f"{indent}{path.name}/", _meaning(path / "__init__.py")))
            lines += _files(path, depth + 1)
    if folder.name == "dashboard":
        lines.append(f"{indent}assets/")
        lines += [_line(f"{indent}  {name}", text) for name, text in ASSETS.items()]
    return lines


def _line(name: str, text: str) -> str:
    return f"{name:24}{text}"


def _meaning(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".").replace("``", "")


def written(text: str) -> str:
    """The text with the tree in it put right."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{tree()}{after}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(written(readme.read_text("utf-8")), "utf-8")
