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
from runners.signals import INTERRUPTS, exit_code, sigterm_raises

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


@app.command(rich_help_panel="A learner")
def dashboard(
    run: str,
    baseline: Annotated[
        str | None, typer.Option(help="A run drawn below it in grey: its twin.")
    ] = None,
    root: Root = _DEFAULT_ROOT,
    uri: Uri = None,
) -> None:
    """Draw a run's page, dashboard.html, into its folder and attach it in MLflow.

    Exit code 1: the page is written and could not be attached.
    """
    from runners.dashboard import dashboard as run_dashboard
    from runners.tracked import Place

    raise typer.Exit(run_dashboard(run, baseline, Place(root, uri), _console))


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
def compare(
    runs: list[str],
    output: Annotated[
        Path | None, typer.Option(help="The file; default: compare.html in the root.")
    ] = None,
    root: Root = _DEFAULT_ROOT,
    uri: Uri = None,
) -> None:
    """Draw several runs, or those of a sweep id, over each other on one page.

    The page begins with what differs in their choices and the first differing step.
    """
    from runners.dashboard import compare as run_compare
    from runners.tracked import Place

    raise typer.Exit(run_compare(runs, output, Place(root, uri), _console))


@app.command(rich_help_panel="A researcher")
def sync(
    runs: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    dead: Annotated[
        bool,
        typer.Option(
            "--dead", help="Their processes, on another machine, are known to be dead."
        ),
    ] = False,
    root: Root = _DEFAULT_ROOT,
    uri: Uri = None,
) -> None:
    """Bring to MLflow what the run folders hold and MLflow has not.

    Runs whose process died are closed as killed first. Exit code 1: something could
    not be shipped.
    """
    from runners.sync import sync as run_sync
    from runners.tracked import Place

    raise typer.Exit(run_sync(runs or [], Place(root, uri), dead, _console))


@app.command(rich_help_panel="A researcher")
def ui(root: Root = _DEFAULT_ROOT, uri: Uri = None, port: int = 5000) -> None:
    """Open the MLflow UI on 127.0.0.1."""
    from runners.tracked import Place
    from runners.ui import serve

    raise typer.Exit(serve(Place(root, uri), port, _console))


@app.command(rich_help_panel="A researcher")
def doctor(root: Root = _DEFAULT_ROOT, uri: Uri = None) -> None:
    """Look at packages, folder, store and runs; say what is wrong and what to do.

    It changes nothing. Exit code 1: there is a problem; a warning is none.
    """
    from runners.doctor.command import doctor as run_doctor
    from runners.tracked import Place

    raise typer.Exit(run_doctor(Place(root, uri), _console))


@app.command(rich_help_panel="A training engineer")
def show(run: str, root: Root = _DEFAULT_ROOT, uri: Uri = None) -> None:
    """A few lines about a run: status, steps, final loss, notes.

    RUN is a run folder, a run name, an MLflow run id, a sweep id, or an experiment
    of MLflow and a filter, "loss-autopsy: params.clip = '0.5'".
    """
    from runners.show import show as run_show
    from runners.tracked import Place

    raise typer.Exit(run_show(run, Place(root, uri), _console))


@app.command(rich_help_panel="A CI job")
def verify(spec: str, root: Root = _DEFAULT_ROOT, uri: Uri = None) -> None:
    """Compute a verification spec on runs pulled back from MLflow.

    Exit codes: 0 passed, 1 failed, 2 bad spec, 3 runs missing or stale.
    """
    from runners.tracked import Place
    from runners.verify import MissingRuns
    from runners.verify import verify as run_verify

    place = Place(root, uri)
    try:
        code = run_verify(spec, place, _console)
    except (MissingRuns, OSError) as error:  # 1 would say that a check has failed
        _complain(error)
        code = EXIT_MISSING
    raise typer.Exit(code)


def _complain(error: Exception) -> None:
    typer.echo(f"autopsy: {_one_line(error)}", err=True)


def _one_line(error: Exception) -> str:
    if not isinstance(error, OSError) or error.strerror is None:
        return " ".join(str(error).split())
    what = f"{error.filename or 'the disk'!s:.500}"
    return f"{what}: expected to read and write it, found: {error.strerror}"


def main() -> None:
    """Entry point: a user's mistake or a failing disk is one line, never a trace."""
    # One thread in BLAS: its splitting of sums would change a record's last bits.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with sigterm_raises():
            app()
    except InputError as error:
        _complain(error)
        sys.exit(EXIT_USAGE)
    except OSError as error:
        _complain(error)
        sys.exit(EXIT_FAILED)
    except INTERRUPTS as interrupt:
        sys.exit(exit_code(interrupt))
