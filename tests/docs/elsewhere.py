"""Transcripts that need what few machines have: a container engine, Slurm, network namespaces."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from tests.docs import transcripts
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.docs.workplace import Workplace, treatment_of

PORTS = 4
HOSTS = ("switch", "host-1", "host-2", "host-3")
"""Network namespaces that docs/deploying.md makes."""


def parts(needs: str) -> list[tuple[str, str]]:
    """The pages and headings whose transcripts need this."""
    found = [block for page in PAGES for block in blocks(page, "console") if treatment_of(block).needs == needs]
    return list(dict.fromkeys((block.page, block.heading) for block in found))


def run(page: str, heading: str) -> list[tuple[Block, list[list[str]]]]:
    """Run the transcripts below a heading, with what they need; the lines that each command shows."""
    [needs] = {treatment_of(block).needs for block in _below(page, heading)}
    with ExitStack() as stack:
        # Not in a directory of pytest, whose long path would part lines.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        provided = stack.enter_context(PROVIDED[needs](place))
        stack.enter_context(_ended(place))
        workplace = Workplace(place, small=False, variables=_own() | provided)
        workplace.furnish()
        shutil.copytree(ROOT / "deploy", place / "deploy", ignore=shutil.ignore_patterns("credentials", ".env"))
        workplace.prepare(page, heading)
        return [(block, workplace.transcript(block)) for block in _below(page, heading)]


def check(block: Block, outputs: Sequence[Sequence[str]]) -> None:
    """Raise AssertionError unless a block shows what a run has printed."""
    for shown, seen in zip(transcripts.parse(block.text), outputs, strict=True):
        compared = 1 if shown.command.startswith(treatment_of(block).learned) else None
        said = "\n".join([f"{block}: {shown.command}", *seen])
        assert transcripts.same(shown.output[:compared], seen[:compared]), said


def _below(page: str, heading: str) -> list[Block]:
    return [block for block in blocks(page, "console") if block.heading == heading]


def _own() -> dict[str, str]:
    """Names and ports that nothing else on this machine has."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(PORTS)]
        ports = {f"PORT_{number}": f"{each.getsockname()[1]}" for number, each in enumerate(taken)}
    return {"PROJECT": f"marless-{secrets.token_hex(4)}", **ports}


@contextmanager
def _ended(place: Path) -> Iterator[None]:
    """At the end, the processes that a transcript has left running are killed."""
    try:
        yield
    finally:
        for file in place.glob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@contextmanager
def _containers(place: Path) -> Iterator[Mapping[str, str]]:
    from tests.containers.relay import engine_for_all

    with engine_for_all(place) as engine:
        yield {"MARLESS_DOCKER_SOCKET": str(engine)}


@contextmanager
def _slurm(_place: Path) -> Iterator[Mapping[str, str]]:
    from tests.slurm.cluster import cluster

    with cluster() as made:
        yield {"SLURM_CONF": str(made.configuration)}


@contextmanager
def _hosts(_place: Path) -> Iterator[Mapping[str, str]]:
    try:
        yield {}
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)


PROVIDED: Mapping[str, Callable[[Path], AbstractContextManager[Mapping[str, str]]]] = {
    "containers": _containers,
    "slurm": _slurm,
    "hosts": _hosts,
}
