"""Overrides -> RunConfig, through Hydra's compose API and our own conf folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from minigpt.records import InputError
from runners.config import RunConfig
from runners.override_errors import CONF_DIR, explain_override_error, refuse_lists
from runners.override_syntax import quoted_value
from runners.schema import from_hydra

CONFIG_NAME = "config"
VERSION_BASE = "1.3"

# What Hydra and OmegaConf raise for a user's mistake. ValueError: a group's option
# that is no name. AttributeError, TypeError: a key below a value.
_REFUSALS = (
    HydraException,
    OmegaConfBaseException,
    YAMLError,
    UserWarning,
    ValueError,
    AttributeError,
    TypeError,
)


def compose_config(
    overrides: Sequence[str], search_dir: str | Path | None = None
) -> RunConfig:
    """The run that the overrides describe, whatever the working folder.

    Args:
        overrides: as on the command line, ``key=value`` or ``group=option``.
        search_dir: a further folder of groups and options, searched after conf/.

    Raises:
        InputError: one line that names the key, what was possible and what arrived.
    """
    overrides = [*overrides, *_search_override(search_dir)]
    with _composing(overrides):
        cfg = compose(CONFIG_NAME, overrides, return_hydra_config=True)
    return from_hydra(cfg)


def expand_sweep(
    overrides: Sequence[str], search_dir: str | Path | None = None
) -> list[list[str]]:
    """The overrides of every job of a multirun, in the order Hydra runs them.

    Grids named in ``hydra.sweeper.params`` are included, as in Hydra's own sweeper;
    ``hydra.*`` overrides lead every job's list, as its launcher puts them.

    Args:
        overrides: as on the command line after ``-m``; values may be sweeps.
        search_dir: as for ``compose_config``.

    Raises:
        InputError: an override cannot be read, or the sweep has no job.
    """
    overrides = [*overrides, *_search_override(search_dir)]
    with _composing(overrides) as loader:
        master = loader.load_configuration(
            CONFIG_NAME, overrides, run_mode=RunMode.MULTIRUN
        )
        grid = master.hydra.sweeper.get("params") or {}
        task = [f"{key}={value}" for key, value in grid.items()]
        task += list(master.hydra.overrides.task)
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(task)
        jobs = BasicSweeper.split_arguments(parsed, None)[0]
        common = list(master.hydra.overrides.hydra)
    if not jobs:
        raise InputError(f"{' '.join(overrides)}: a sweep without values has no job")
    return [[*common, *job] for job in jobs]


@contextmanager
def _composing(overrides: Sequence[str]) -> Iterator[ConfigLoader]:
    """Hydra over conf/ for a moment; its complaints become InputErrors.

    Works inside a job of Hydra's too: the outer instance is put aside meanwhile.
    """
    refuse_lists(overrides)
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with (
            warnings.catch_warnings(),
            initialize_config_dir(str(CONF_DIR), "autopsy", VERSION_BASE),
        ):
            warnings.filterwarnings("error", "provider=.*", UserWarning)
            yield GlobalHydra.instance().config_loader()
    except _REFUSALS as exc:
        raise InputError(explain_override_error(exc, overrides)) from exc
    finally:
        GlobalHydra.instance().hydra = outer


def _search_override(search_dir: str | Path | None) -> list[str]:
    if search_dir is None:
        return []
    folder = Path(search_dir).resolve()
    if not folder.is_dir():
        raise InputError(f"configuration folder: expected a folder, got {search_dir}")
    return [f"hydra.searchpath=[{quoted_value(f'file://{folder}')}]"]
