"""Hydra's command line: its arguments read, refused in one line, and called."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from minigpt.records import InputError
from runners.compose import CONFIG_NAME, VERSION_BASE
from runners.override_errors import CONF_DIR

_SHOWS = ("help", "hydra_help", "cfg", "info", "shell_completion")
_REFUSED = ("config_name", "config_path", "experimental_rerun")


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Hydra's own options and the overrides, in whatever order they come.

    Raises:
        InputError: an unknown option, or one that makes no sense here.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    parsed = parser.parse_intermixed_args(list(arguments))
    for option in _REFUSED:
        if getattr(parsed, option):
            raise InputError(
                f"--{option.replace('_', '-')}: expected choices from conf/, and a "
                "folder of your own with --config-dir"
            )
    given = [name for name in ("run", "multirun", *_SHOWS) if getattr(parsed, name)]
    if len(given) > 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"expected one of the options, got {options}")
    for option in ("resolve", "package"):
        if getattr(parsed, option) and not parsed.cfg:
            raise InputError(f"--{option}: expected together with --cfg job")
    return parsed


def only_shows(parsed: Namespace) -> bool:
    """Whether the options ask to print something and not to train."""
    return any(getattr(parsed, name) for name in _SHOWS)


def call_hydra(
    arguments: Sequence[str], task: Callable[[DictConfig], None] | None = None
) -> None:
    """``hydra.main`` around a task; what the task or Hydra raises comes out."""
    decorate = hydra.main(
        config_path=str(CONF_DIR), config_name=CONFIG_NAME, version_base=VERSION_BASE
    )
    # Hydra takes overrides in one place only: after all options.
    overrides = parse_arguments(arguments).overrides
    options = [argument for argument in arguments if argument not in overrides]
    with _command_line(["autopsy train", *options, *overrides]):
        decorate(task or (lambda cfg: None))()


@contextmanager
def _command_line(argv: list[str]) -> Iterator[None]:
    """The process's arguments for a while, and Hydra told to raise, not to exit."""
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = before[0]
        del os.environ["HYDRA_FULL_ERROR"]
        if before[1] is not None:
            os.environ["HYDRA_FULL_ERROR"] = before[1]


def _refuse(message: str) -> NoReturn:
    raise InputError(f"{message}; `autopsy train --hydra-help` lists the options")
