"""Tags and colours of runs and sweeps."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest

from minigpt.injections import INJECTIONS
from runners.mlflow_tags import COLOR, SWEEP_COLOR, run_color, run_tags, sweep_tags


@pytest.fixture
def manifest(finished):
    return json.loads((finished.folder / "manifest.json").read_text())


def test_every_group_and_seed_is_a_tag(manifest):
    tags = run_tags(manifest)
    expected = {
        "injection": "none",
        "loader": "random",
        "optimizer": "adamw",
        "schedule": "cosine",
        "precision": "float32",
        "clip": "1.0",
        "seed": "42",
        "data_seed": "42",
        "config_hash": manifest["config_hash"],
        "code_hash": manifest["code_hash"],
        "git.commit": manifest["git"]["commit"],
    }
    assert expected.items() <= tags.items()
    assert tags["model"].startswith("d_model=64 n_layers=2 n_heads=4 d_ff=256 ")
    assert not {"sweep", "experiment"} & tags.keys()


def test_a_sweep_and_an_experiment_are_tags_if_there_are_any(manifest):
    tags = run_tags(manifest | {"sweep": "s-1", "experiment": "19-injection-A"})
    assert (tags["sweep"], tags["experiment"]) == ("s-1", "19-injection-A")


def test_a_parent_says_what_was_swept():
    assert sweep_tags("s-1", "clip=0.5,1.0") == {
        "sweep": "s-1",
        "sweep_parent": "true",
        "swept": "clip=0.5,1.0",
        COLOR: SWEEP_COLOR,
    }
    assert len(sweep_tags("s-1", "x" * 9000)["swept"]) == 5000


def test_the_colour_of_a_run_is_that_of_its_fault(manifest):
    manifest["config"]["injection"]["kind"] = "scale"
    assert run_tags(manifest)["mlflow.runColor"] == run_color("scale") == "#d55e00"


def test_every_fault_has_its_own_colour_and_unknown_ones_share_another():
    colors = [*map(run_color, INJECTIONS), run_color("something new"), SWEEP_COLOR]
    assert len(set(colors)) == len(INJECTIONS) + 2
    assert run_color("a") == run_color("b")
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)
    red, green, blue = rgb(run_color("none"))
    assert red == green == blue


def rgb(color: str) -> tuple[int, int, int]:
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))


# Linear maps on RGB of the two common red-green deficiencies (Machado et al., 2009).
DEFICIENT = [
    ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
]


@pytest.mark.parametrize("matrix", DEFICIENT)
def test_colours_differ_for_eyes_that_take_red_for_green(matrix):
    def seen(color):
        return [
            sum(a * b for a, b in zip(row, rgb(color), strict=True)) for row in matrix
        ]

    for one, two in combinations(map(run_color, INJECTIONS), 2):
        distance = sum((a - b) ** 2 for a, b in zip(seen(one), seen(two), strict=True))
        assert distance**0.5 > 30, (one, two)
