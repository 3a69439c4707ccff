"""The command `dashboard`: pages that show the jobs of a coordinator, or a directory of run folders."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli.options import CONTACT_S, CoordinatorOptions, directory
from marless.app.cli.output import say
from marless.core import regular_files
from marless.core.errors import MarlessError, NotFoundError, SpecError, UnavailableError
from marless.core.installing import how_to_install

if TYPE_CHECKING:
    from marless.app.dashboard.sources import JobListing, JobSource

PATIENCE_S = 2.0
"""Seconds for which a call waits for a coordinator; after that, pages say that it is gone, and it is asked again."""
LISTEN = "127.0.0.1:0"
NICE = 10
"""Added to the niceness of the process: where jobs train on the same machine, pages wait for them."""
CertificateOption = Annotated[
    str, typer.Option(envvar="MARLESS_TLS_CERT", metavar="FILE", help="PEM file of the certificate to show.")
]
KeyOption = Annotated[str, typer.Option(envvar="MARLESS_TLS_KEY", metavar="FILE", help="PEM file of its private key.")]


def check_installed() -> None:
    """Raise UnavailableError unless the dashboard's library is installed."""
    if find_spec("aiohttp") is None:  # not imported, because that takes a quarter of a second
        how = how_to_install("aiohttp", "marless[dashboard]")
        raise UnavailableError(f"the dashboard needs aiohttp, which is not installed here: {how}")


def dashboard(
    at: CoordinatorOptions,
    folder: Annotated[
        Path | None,
        typer.Argument(
            parser=directory, metavar="RUNS_DIR", help="Show the run folders in this directory, without a coordinator."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where browsers connect; other hosts need TLS.")
    ] = LISTEN,
    advertise: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="What browsers dial, if it is not what --listen says.")
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the token in this file, so that the address stays.")
    ] = None,
    tls_cert: CertificateOption = "",
    tls_key: KeyOption = "",
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Show jobs in a browser while they run: returns, groups, actors, invocations, bills; compare them.

    Prints the address to open. Whoever has it can do all that the pages can; Ctrl-C ends it, and no job.
    """
    check_installed()
    from marless.app.dashboard.guard import token_of
    from marless.app.dashboard.server import DashboardOptions, serve_until
    from marless.rpc.addresses import is_local
    from marless.rpc.security import Security

    if is_local(listen):
        tls_cert = tls_key = ""  # those of services, which are for other hosts
    options = DashboardOptions(
        listen=listen,
        advertise=advertise,
        token=token_of(token_file),
        tls_cert=tls_cert,
        tls_key=tls_key,
        security=Security.of_client(tls_ca=at.tls_ca or None),
    )
    options.check()

    async def show(address: str) -> None:
        say("open this address; whoever has it can see and cancel the jobs")
        print(address, flush=True)  # noqa: T201  # the command's data

    async def run() -> None:
        serving = asyncio.ensure_future(serve_until(_source(at, folder), options, show))
        ending = asyncio.ensure_future(_end_of_input()) if until_eof else serving
        await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    os.nice(NICE)
    with suppress(KeyboardInterrupt):
        asyncio.run(run())


async def _end_of_input() -> None:
    """Wait until standard input ends, which whoever started this process holds open as long as it lives."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


def _source(at: CoordinatorOptions, folder: Path | None) -> JobSource:
    """What is shown; made inside the event loop. Raises UnavailableError if no coordinator is known."""
    if folder is not None:
        return _folder_source(folder)
    from marless.app.client import AsyncClient
    from marless.app.dashboard.sources import CoordinatorSource

    try:
        client = AsyncClient(at.coordinator, runs=at.runs, tls_ca=at.tls_ca, contact_s=CONTACT_S, patience_s=PATIENCE_S)
    except UnavailableError as error:
        raise UnavailableError(f"{error}; or show a directory of run folders: `marless dashboard {at.runs}`") from None
    return CoordinatorSource(client)


def _folder_source(folder: Path) -> JobSource:
    from marless.app.cli.run_folders import job_in, log_of
    from marless.app.dashboard.sources import FolderSource

    if not regular_files.is_directory(folder):
        raise NotFoundError(f"{folder}: there is no such directory; give the one in which the run folders are")
    if regular_files.is_there(folder / "job.json"):
        raise SpecError(
            f"{folder} is a run folder; give the directory in which it is: marless dashboard {folder.parent}"
        )
    return FolderSource(folder, listed=_listed, job_in=job_in, log_of=log_of)


def _listed(runs: Path) -> JobListing:
    """The jobs of a directory, and a sentence for each folder that cannot be read."""
    from marless.app.cli.run_folders import job_in, names
    from marless.app.dashboard.sources import JobListing

    found, problems = [], []
    for name in names(runs):
        try:
            found.append(job_in(runs, name))
        except MarlessError as error:
            problems.append(str(error))
    found.sort(key=lambda job: (job.accepted_s, job.job), reverse=True)
    return JobListing(tuple(found), tuple(problems))
