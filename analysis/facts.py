"""What a blind diagnosis may know of a run besides its record.

The manifest also says what was done to the run on purpose. ``RunFacts`` is built
field by field from what is listed here, so that nothing else can come along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from sys import float_info
from typing import Any

from minigpt.records import InputError

STATUSES = ("running", "finished", "failed", "killed")


@dataclass(frozen=True)
class RunFacts:
    """The declared configuration of a run; None where the manifest does not say.

    Attributes:
        status: "running", "finished", "failed" or "killed".
        optimizer: its kind in lower case, such as "adamw".
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: as the optimizer was given it.
        clip: largest global gradient norm; None is no clipping, unless "clip" is
            in ``unknown``.
        batch_size: rows a batch.
        precision: such as "fp32".
        seed: of the initialisation.
        data_seed: of the order of the data.
        schedule: the learning rate's schedule as declared; numbers and text only.
        vocabulary: name of the vocabulary file in the run folder.
        tensors: parameter tensor -> its metadata, such as its shape.
        unknown: names of the fields above that the manifest does not mention.
        resumed_at: steps at which the run went on after it had ended early: the first
            step that was not recorded before.
    """

    status: str
    optimizer: str | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    batch_size: int | None = None
    precision: str | None = None
    seed: int | None = None
    data_seed: int | None = None
    schedule: dict[str, Any] = field(default_factory=dict)
    vocabulary: str | None = None
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    resumed_at: tuple[int, ...] = ()


# field -> (where it is in manifest["facts"], the types it may have)
_NUMBER = (int, float)
_SOURCES: dict[str, tuple[tuple[str, ...], tuple[type, ...]]] = {
    "optimizer": (("optimizer", "kind"), (str,)),
    "beta1": (("optimizer", "beta1"), _NUMBER),
    "beta2": (("optimizer", "beta2"), _NUMBER),
    "eps": (("optimizer", "eps"), _NUMBER),
    "weight_decay": (("optimizer", "weight_decay"), _NUMBER),
    "clip": (("clip",), (*_NUMBER, type(None))),
    "batch_size": (("batch_size",), (int,)),
    "precision": (("precision",), (str,)),
    "seed": (("seed",), (int,)),
    "data_seed": (("data_seed",), (int, type(None))),
    "schedule": (("schedule",), (dict,)),
    "vocabulary": (("vocabulary", "file"), (str,)),
    "tensors": (("tensors",), (dict,)),
}
_OTHERS = {"status", "unknown", "resumed_at"}
assert _SOURCES.keys() | _OTHERS == {one.name for one in fields(RunFacts)}


def facts_of_manifest(manifest: dict[str, Any]) -> RunFacts:
    """The facts in ``manifest["facts"]`` and ``manifest["status"]``.

    Raises:
        InputError: a fact is there but is not what it should be.
    """
    status = manifest.get("status")
    if status not in STATUSES:
        raise InputError(
            f"manifest status: expected one of {', '.join(STATUSES)}, "
            f"found {status!r:.80}"
        )
    declared = manifest.get("facts", {})
    _require("facts", declared, (dict,))
    found: dict[str, Any] = {}
    for name, (path, types) in _SOURCES.items():
        value, known = _at(declared, path)
        if known:
            _require("facts." + ".".join(path), value, types)
            found[name] = value
    _normalise(found)
    unknown = tuple(name for name in _SOURCES if name not in found)
    resumed_at = tuple(_resumes(manifest))
    return RunFacts(status=status, **found, unknown=unknown, resumed_at=resumed_at)


def _resumes(manifest: dict[str, Any]) -> Iterator[int]:
    resumes = manifest.get("resumes", [])
    _require("resumes", resumes, (list,))
    for number, one in enumerate(resumes):
        _require(f"resumes.{number}", one, (dict,))
        step = one.get("at_step")
        _require(f"resumes.{number}.at_step", step, (int,))
        yield step


def _at(declared: dict[str, Any], path: tuple[str, ...]) -> tuple[Any, bool]:
    value: Any = declared
    for depth, key in enumerate(path):
        _require(".".join(("facts", *path[:depth])), value, (dict,))
        if key not in value:
            return None, False
        value = value[key]
    return value, True


def _require(place: str, value: Any, types: tuple[type, ...]) -> None:
    odd = isinstance(value, bool)
    if isinstance(value, _NUMBER):  # an integer of JSON may be larger than any float
        odd = odd or not abs(value) <= float_info.max
    if odd or not isinstance(value, types):
        names = " or ".join(one.__name__ for one in types)
        raise InputError(f"manifest {place}: expected {names}, found {value!r:.80}")


def _normalise(found: dict[str, Any]) -> None:
    """Bring the checked values into the form that ``RunFacts`` promises."""
    if "optimizer" in found:
        found["optimizer"] = found["optimizer"].lower()
    for name, value in found.get("schedule", {}).items():
        _require(f"facts.schedule.{name}", value, (*_NUMBER, str, type(None)))
    for name, value in found.get("tensors", {}).items():
        _require(f"facts.tensors.{name}", value, (dict,))
    file = found.get("vocabulary", "vocabulary.json")
    if not file or file.startswith(".") or set(file) & set("/\\:\0"):
        raise InputError(
            f"manifest facts.vocabulary.file: expected the name of a file in the run "
            f"folder, found {file!r:.80}"
        )
