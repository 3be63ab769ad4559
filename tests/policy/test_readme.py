"""What the documents point at is there, and what they name exists."""

import re
from pathlib import Path

import pytest
from PIL import Image

from runners import cli
from tests.policy.tree import BEGIN, written

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
VERBS = {
    command.name or command.callback.__name__ for command in cli.app.registered_commands
}


def targets(text):
    """What a document links to or shows, without the addresses of the web."""
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return [one for one in found if "://" not in one]


def verbs(text):
    """Verbs of the command in code: ``autopsy VERB``."""
    return re.findall(r"(?:^|`|bin/)autopsy ([a-z]+)", text, re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_every_link_and_picture_is_there(path):
    missing = [
        one for one in targets(path.read_text()) if not (path.parent / one).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_every_verb_exists(path):
    assert set(verbs(path.read_text())) <= VERBS


def test_the_checks_can_fail():
    assert targets("[a](no/such.md) ![b](c.png) [d](https://e.f)") == [
        "no/such.md",
        "c.png",
    ]
    assert verbs("`autopsy fly`\nautopsy swim\n.venv/bin/autopsy dive") == [
        "fly",
        "swim",
        "dive",
    ]
    assert "train" in VERBS
    assert "fly" not in VERBS


def test_the_tree_of_the_readme_is_that_of_the_files():
    text = (ROOT / "README.md").read_text()
    assert BEGIN in text
    assert text == written(text), "run: python -m tests.policy.tree"


def test_the_pictures_are_small_enough_to_load():
    for path in ROOT.glob("docs/img/*.png"):
        with Image.open(path) as image:
            assert image.width <= 1600, path
        assert path.stat().st_size < 350_000, path
