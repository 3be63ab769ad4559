"""The console command ``autopsy``: thin verbs, exit codes, one line an error."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from minigpt.records import InputError
from runners.console import make_console

EXIT_FAILED, EXIT_USAGE, EXIT_MISSING = 1, 2, 3

app = typer.Typer(
    help="Cause loss spikes on purpose, record every step, explain what happened.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_console = make_console()

Root = Annotated[Path, typer.Option(help="Folder of all runs.", envvar="AUTOPSY_ROOT")]
Uri = Annotated[
    str | None,
    typer.Option(help="MLflow store; default: mlflow.db in the root."),
]
_DEFAULT_ROOT = Path("experiments")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autopsy {version('loss-autopsy')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command(rich_help_panel="A learner")
def lab(root: Root = _DEFAULT_ROOT) -> None:
    """Train the lab's runs, verify the published thresholds and predictions."""
    from runners.lab import lab as run_lab

    raise typer.Exit(run_lab(root, _console))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    rich_help_panel="A researcher",
)
def train(context: typer.Context) -> None:
    """Train: arguments are Hydra's, such as injection=scale clip=0.5 or -m seed=1,2.

    `autopsy train --cfg job` prints the config with all its keys.
    """
    from runners.train import train as run_train

    raise typer.Exit(run_train(context.args, _console))


@app.command(rich_help_panel="A researcher")
def ui(root: Root = _DEFAULT_ROOT, uri: Uri = None, port: int = 5000) -> None:
    """Open the MLflow UI on 127.0.0.1."""
    from runners.ui import serve

    raise typer.Exit(serve(root, uri, port, _console))


@app.command(rich_help_panel="A CI job")
def verify(spec: str, root: Root = _DEFAULT_ROOT, uri: Uri = None) -> None:
    """Compute a verification spec on runs pulled back from MLflow.

    Exit codes: 0 passed, 1 failed, 2 bad spec, 3 runs missing or stale.
    """
    from runners.references import Place
    from runners.verify import MissingRuns
    from runners.verify import verify as run_verify

    try:
        code = run_verify(spec, Place(root, uri), _console)
    except MissingRuns as error:
        _complain(error)
        code = EXIT_MISSING
    raise typer.Exit(code)


def _complain(error: Exception) -> None:
    typer.echo(f"autopsy: {error}", err=True)


def main() -> None:
    """Entry point: a user's mistake or a failing disk is one line, never a trace."""
    # One thread in BLAS: its splitting of sums would change a record's last bits.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except InputError as error:
        _complain(error)
        sys.exit(EXIT_USAGE)
    except OSError as error:
        _complain(error)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
