"""Scripts that go on with their run: same folder, nothing twice, differences told."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest

from analysis.history import load
from minigpt import records as col
from minigpt.records import InputError
from runners.folders import write_manifest
from tests.runners.scripts import Loop, begin, manifest_of, measured, record_of
from tests.runners.test_run_watch import reference


def killed(root, steps=6, **values):
    """A run whose process died: closed by nobody, its owner gone."""
    run = begin(root)
    for step in range(steps):
        run.log({"loss": step / 7, **values}, step=step)
    run._record._rows.finish()
    run._record._writer.close()
    run._ending.done = True
    manifest = manifest_of(run)
    manifest["owner"] |= {"pid": 2**22 + 1, "started": "1"}
    write_manifest(run.folder, manifest)
    return run.folder


def test_it_goes_on_in_the_same_folder(tmp_path, capsys):
    folder = killed(tmp_path)
    with begin(tmp_path, name=None, resume="r") as run:
        assert run.folder == folder
        assert manifest_of(run)["status"] == "running"
        assert run.summary["loss"] == 5 / 7
        run.log({"loss": 1.0}, step=6)
        run.log({"new": 2.0})
    found = record_of(run)
    assert found.steps.tolist() == list(range(8))
    assert found.scalar("loss")[:7].tolist() == [*(s / 7 for s in range(6)), 1.0]
    assert measured(found, "new") == {7: 2.0}
    (resume,) = manifest_of(run)["resumes"]
    assert resume["at_step"] == 6
    assert "differs" not in resume
    assert "6 steps are recorded" in capsys.readouterr().err


def test_a_closed_run_is_opened_again_too(tmp_path):
    with begin(tmp_path) as run:
        run.log({"a": math.nan})
        run.log_histogram("h", [1.0, 2.0])
        run.log({"b": -0.0})
    with begin(tmp_path, resume=run.folder) as again:
        again.log({"c": 3})
    found = record_of(again)
    assert found.steps.tolist() == [0, 1, 2]
    assert math.isnan(measured(found, "a")[0])
    assert math.copysign(1, measured(found, "b")[1]) == -1
    assert found.array("histogram/h/counts")[1].tolist() == [0, 32, 32, 32]
    assert manifest_of(again)["record"]["rows"] == 3


def test_a_half_written_block_is_cut(tmp_path):
    folder = killed(tmp_path)
    with (folder / "journal.bin").open("ab") as file:
        file.write(b"\x93BLK\x10")
    with begin(tmp_path, resume=True) as run:
        run.log({"loss": 1.0})
    assert record_of(run).steps.tolist() == list(range(7))


def test_true_begins_the_run_if_it_is_not_there(tmp_path):
    for number in range(3):
        with begin(tmp_path, name="job", resume=True) as run:
            assert run.folder.name == "job"
            run.log({"a": number})
    assert record_of(run).scalar("a").tolist() == [0, 1, 2]
    assert len(manifest_of(run)["resumes"]) == 2


def test_steps_that_are_logged_again_are_not_recorded_twice(tmp_path):
    folder = killed(tmp_path, extra=math.nan)
    times = load(folder).scalar(col.TIME_WALL)
    with begin(tmp_path, resume=True) as run:
        for step in range(3, 9):
            run.log({"loss": step / 7, "extra": math.nan}, step=step)
    found = record_of(run)
    assert found.steps.tolist() == list(range(9))
    assert found.scalar("loss").tolist() == [step / 7 for step in range(9)]
    assert found.scalar(col.TIME_WALL)[:6].tolist() == times.tolist()
    assert "differs" not in manifest_of(run)["resumes"][0]


@pytest.mark.parametrize(
    ("again", "differs"),
    [
        ({"loss": np.nextafter(3 / 7, 1)}, {"first_step": 3, "key": "loss"}),
        ({"loss": 3 / 7, "new": 1.0}, {"first_step": 3, "key": "new"}),
        ({"zero": -0.0}, {"first_step": 3, "key": "zero"}),
        ({}, None),
    ],
)
def test_a_value_that_differs_is_told_and_the_first_stays(
    tmp_path, capsys, again, differs
):
    killed(tmp_path, zero=0.0)
    with begin(tmp_path, resume=True) as run:
        run.log(again, step=3)
        run.log(again, step=4)
        run.log({"loss": 1.0}, step=6)
    found, error = manifest_of(run)["resumes"][0], capsys.readouterr().err
    assert record_of(run).scalar("loss")[3] == 3 / 7
    if differs is None:
        assert "differs" not in found
        assert "differs now" not in error
    else:
        assert found["differs"] == differs | {"count": 2}
        assert error.count("differs now") == 1
        assert f"step 3 is recorded already, and {differs['key']}" in error


def test_a_histogram_that_differs_is_told(tmp_path):
    with begin(tmp_path) as run:
        run.log({"a": 1}, step=0)
        run.log_histogram("h", [1.0, 2.0])
    with begin(tmp_path, resume=True) as again:
        again.log({"a": 1}, step=0)
        again.log_histogram("h", [1.0, 2.5])
    differs = manifest_of(again)["resumes"][0]["differs"]
    assert differs == {"first_step": 0, "key": "histogram/h/edges", "count": 1}


def test_a_config_that_changed_is_in_the_manifest(tmp_path):
    with begin(tmp_path, config={"lr": 1, "same": 2}, group="g") as run:
        run.log({"a": 1}, step=9)
    with begin(tmp_path, resume=True, config={"lr": 3, "new": 4}) as again:
        assert dict(again.config) == {"lr": 3, "same": 2, "new": 4}
    found = manifest_of(again)
    assert found["config_changes"] == [
        {"key": "lr", "before": 1, "after": 3, "step": 10}
    ]
    assert found["group"] == "g"


def test_a_watched_run_is_watched_again_and_goes_on(tmp_path):
    """Weights at step 4 are kept, the process dies at 6, and 4 and 5 are repeated."""
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        for step in range(6):
            if step == 4:
                weights, state = copy.deepcopy(
                    (loop.model.state_dict(), loop.optimizer.state_dict())
                )
                order = loop.generator.get_state()
            loss = loop.backward()
            loop.optimizer.step()
            run.log({"loss": loss}, step=step)
    again = Loop(seed=3)
    again.model.load_state_dict(weights)
    again.optimizer.load_state_dict(state)
    again.generator.set_state(order)
    with begin(tmp_path, resume=True) as second:
        second.watch(again.model, again.optimizer)
        for step in range(4, 7):
            loss = again.backward()
            again.optimizer.step()
            second.log({"loss": loss}, step=step)
    found, expected = record_of(second), reference()
    assert found.steps.tolist() == list(range(7))
    assert found.scalar("loss").tolist() == expected[0]
    assert found.integer(col.PARAM_HASH).tolist() == expected[4]
    assert "differs" not in manifest_of(second)["resumes"][0]


def test_a_watched_run_is_not_gone_on_with_unwatched_or_with_another_model(tmp_path):
    loop = Loop()
    with begin(tmp_path) as run:
        run.watch(loop.model, loop.optimizer)
        loop.backward()
        loop.optimizer.step()
    second = begin(tmp_path, resume=True)
    with pytest.raises(InputError, match=r"expected watch\(model, optimizer\) before"):
        second.log({"loss": 1.0})
    other = Loop()
    other.model.add_module("more", other.model[0])
    other.model[0] = type(other.model[0])(5, 8, bias=False)
    with pytest.raises(InputError, match="expected the model whose columns"):
        second.watch(other.model, other.optimizer)
    second.watch(loop.model, loop.optimizer)
    second.log({"loss": 1.0})
    second.finish()
    assert record_of(second).steps.tolist() == [0, 1]


def test_a_live_run_is_refused(tmp_path):
    run = begin(tmp_path)
    with pytest.raises(InputError, match="is training"):
        begin(tmp_path, resume=True)
    run.finish()


def test_a_run_of_our_trainer_is_refused(tmp_path):
    folder = killed(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["kind"]
    write_manifest(folder, manifest)
    with pytest.raises(InputError, match="autopsy train resume=r"):
        begin(tmp_path, resume=True)


def test_a_resume_that_cannot_be_tracked_opens_nothing(tmp_path):
    folder = killed(tmp_path / "100%")
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(InputError, match=r"without [?] and % in its path"):
        begin(folder.parent, resume=True, mode="online")
    assert (folder / "manifest.json").read_bytes() == before
