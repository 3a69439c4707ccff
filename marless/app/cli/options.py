"""Options shared by several commands, and the shell completion of job ids, states and presets."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marless.core import documents
from marless.core.errors import MarlessError
from marless.storage.places import is_address

if TYPE_CHECKING:
    from marless.app.client import Client


def job_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Job ids that begin with `incomplete`: the coordinator's, if it answers in time, and those of run folders."""
    runs = Path(context.params.get("runs") or os.environ.get("MARLESS_RUNS") or "runs")
    here = [path.parent.name for path in runs.glob("*/job.json")]
    known = dict.fromkeys([*_listed(context, runs), *sorted(here)])
    return [job for job in known if job.startswith(incomplete)]


def _listed(context: typer.Context, runs: Path) -> list[str]:
    import asyncio

    from marless.app.client import AsyncClient

    async def ask() -> list[str]:
        # Without patience: a coordinator that is not there is asked once.
        client = AsyncClient(context.params.get("coordinator"), runs=runs, contact_s=0.0)
        async with asyncio.timeout(BUDGET_S), client:
            return [job.job for job in await client.list()]

    try:
        return asyncio.run(ask())
    except (MarlessError, TimeoutError):
        return []


def job_states(incomplete: str) -> list[str]:
    """Job states that begin with `incomplete`, in the same case."""
    from marless.app.client import JobState

    case = str.lower if incomplete.islower() else str.upper
    return [case(state) for state in JobState if state.startswith(incomplete.upper())]


def preset_names(incomplete: str) -> list[str]:
    """Comma-separated lists of presets that complete the last name of `incomplete`."""
    from marless.jobs.presets import PRESETS

    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in PRESETS if name.startswith(last) and name not in given]


RUNS = Path("runs")
BUDGET_S = 0.3
"""Seconds within which a coordinator must answer; completion must not make the user wait."""
CONTACT_S = 3.0
"""Seconds for which a command tries to reach a coordinator that never answered; a supervised one restarts faster."""


def whole(given: str | int, least: int = 0) -> int:
    """Parse an integer, such as 1000 or 1e3; raises BadParameter for other text and for less than `least`."""
    try:
        number = documents.whole(str(given))
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not a whole number, such as 1000 or 1e3") from None
    if number < least:
        raise typer.BadParameter(f"{given} is less than {least}")
    return number


def positive(given: str | int) -> int:
    """Parse an integer of at least 1; raises BadParameter."""
    return whole(given, least=1)


def directory(given: str | Path) -> Path:
    """Parse a directory of run folders; raises BadParameter for a bucket, and for a path that is not UTF-8."""
    if is_address(str(given)):
        raise typer.BadParameter(
            f"{given} is a place in a bucket, where only coordinators keep run folders; give a directory, or name a "
            "run folder there: s3://bucket/prefix/JOB"
        )
    try:
        str(Path(given).absolute()).encode()
    except OSError:
        pass  # the working directory is gone, which others tell
    except UnicodeEncodeError:  # messages between services are UTF-8, and name run folders
        raise typer.BadParameter(
            f"{str(Path(given).absolute())!a} is not UTF-8; give another directory, by --runs, or set LC_ALL=C.UTF-8"
        ) from None
    return Path(given)


class Output(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    yaml = "yaml"
    name = "name"


JOB_FILE_HELP = "The job file; -: standard input; or an example (spread), or an environment (mpe/simple_spread)."
JobFileArgument = Annotated[Path, typer.Argument(metavar="JOB.yaml", help=JOB_FILE_HELP)]
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="Job ids.", autocompletion=job_ids)]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", autocompletion=job_ids)]
OverrideOption = Annotated[list[str], typer.Option("--set", metavar="A.B=C", help="Override a field of the job.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
RunsOption = Annotated[
    Path,
    typer.Option(
        "--runs", parser=directory, metavar="DIR", envvar="MARLESS_RUNS", help="Directory of the run folders."
    ),
]
CoordinatorOption = Annotated[
    str,
    typer.Option(
        "--coordinator",
        envvar="MARLESS_COORDINATOR",
        metavar="ADDRESS",
        help="host:port or unix:PATH; default: the one that `marless up` started.",
    ),
]
TlsCaOption = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="MARLESS_TLS_CA",
        metavar="FILE",
        help="PEM file of the certificate authority, for a remote coordinator.",
    ),
]


@dataclass(frozen=True)
class CoordinatorOptions:
    """The options that select the coordinator of a command."""

    coordinator: str
    runs: Path
    tls_ca: str

    def client(self) -> Client:
        """Create a client of the coordinator; raises UnavailableError if its address is unknown."""
        from marless.app.client import Client

        return Client(self.coordinator, runs=self.runs, tls_ca=self.tls_ca, contact_s=CONTACT_S)


def connected(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorator for commands whose first parameter is a Connection: replaces it by the options that select one."""

    def run(coordinator: str, runs: Path, tls_ca: str, **own: Any) -> None:  # Any: the command's own parameters
        verb(CoordinatorOptions(coordinator, runs, tls_ca), **own)

    _, *own = inspect.signature(verb, eval_str=True).parameters.values()
    shared = inspect.signature(_connection, eval_str=True).parameters.values()
    functools.update_wrapper(run, verb)
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]  # where typer looks first
    return run


def _connection(*, coordinator: CoordinatorOption = "", runs: RunsOption = RUNS, tls_ca: TlsCaOption = "") -> None:
    """Declares the options of `connected` commands."""
