"""A directory in which the commands of the documents are typed, with the examples and one real stack."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.docs import commands, newcomer, programs, tables, terminal, transcripts
from tests.docs.blocks import ROOT, Block, blocks, files

NEXT = "-- next --"
HOME, USER = "/home/me/teams", 1000
"""What transcripts show in place of this directory, and of the user's number in the paths of sockets."""
READERS_JOBS = {"job.yaml": "spread.yaml", "spread.yaml": "spread.yaml", "spread6.yaml": "spread6.yaml"}
"""Job files that pages take for the reader's own → the example that each is here."""


@dataclass(frozen=True)
class Workplace:
    """Commands run as they are printed; `small`: but with small examples, and shortened as tables.py says."""

    path: Path
    small: bool
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""
    alone: bool = False
    """Whether it is an empty directory with an empty home, in which no stack is up."""
    binaries: Path = Path(sys.executable).parent
    """Where `marless` and `python` are."""

    @classmethod
    def empty(
        cls, place: Path, *, small: bool, binaries: Path = Path(sys.executable).parent, caches: Path | None = None
    ) -> Workplace:
        """One for a reader who has nothing but marless: an empty directory below `place`, with a home of its own.

        With `caches`, kernels that are compiled there, and the list of fonts, are those of an earlier command.
        """
        for name in ("here", "home", "tmp", "spool"):
            (place / name).mkdir()
        own = {"HOME": f"{place}/home", "TMPDIR": f"{place}/tmp", "MARLESS_SPOOL": f"{place}/spool", "PYTHONPATH": ""}
        own |= newcomer.VARIABLES | ({"XDG_CACHE_HOME": f"{caches}"} if caches else {})
        return cls(place / "here", small, own, alone=True, binaries=binaries)

    def furnish(self) -> None:
        """Put the examples there."""
        shutil.copytree(ROOT / "examples", self.path / "examples")
        for name in ("tmp", "spool"):
            (self.path / name).mkdir()
        for job in (self.path / "examples").glob("*.yaml"):
            self._write(job, job.read_text("utf-8"))

    def prepare(self, page: str, heading: str = "") -> None:
        """Have a stack up, the reader's own files, and what the page takes for granted, or this part of it."""
        if self.alone:
            programs.install(page, self.path)
            self._run(treatment(page).before)
            return
        for own, example in READERS_JOBS.items():
            shutil.copy(self.path / "examples" / example, self.path / own)
        if files(page):
            programs.install(page, self.path)
        if "job.yaml" in files(page):
            self._write(self.path / "job.yaml", files(page)["job.yaml"])
        part = treatment(page, heading)
        stack = [] if part.needs else ["marless up"]
        self._run([*stack, *(self._typed(part, command) for command in part.before)])

    def close(self) -> None:
        """Stop the stack."""
        if self.alone:
            return
        self._run(["marless down"])

    def run(self, block: Block) -> None:
        """Run the commands of a block; raises AssertionError with what they said if one fails."""
        self._run([self._typed(treatment_of(block), command) for command in [*_exports(block), *to_run(block)]])

    def transcript(self, block: Block) -> list[list[str]]:
        """Run the commands of a block in a terminal; the lines that each shows there."""
        typed = [self._typed(treatment_of(block), each.command) for each in transcripts.parse(block.text)]
        script = self.path / ".typed.sh"
        exports = "".join(f"{line}\n" for line in _exports(block))
        script.write_text(exports + "".join(f"{command}\necho '{NEXT}'\n" for command in typed), "utf-8")
        *seen, _ = terminal.shown(script, self.path, self._environment, NEXT)
        return [_anywhere(text, self.path).splitlines() for text in seen]

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MARLESS_")}
        own = {"MARLESS_SPOOL": f"{self.path}/spool", "PYTHONPATH": f"{self.path}", "OMP_NUM_THREADS": "1"}
        own |= {"TMPDIR": f"{self.path}/tmp"} if self.small else {}
        own |= self.variables
        path = f"{self.binaries}:{os.environ['PATH']}"
        return kept | own | {"PATH": path, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": f"{terminal.COLUMNS}"}

    def _write(self, path: Path, job: str) -> None:
        path.write_text(yaml.safe_dump(_small(yaml.safe_load(job))) if self.small else job, "utf-8")

    def _run(self, typed: Sequence[str]) -> None:
        script = "\n".join(["set -euo pipefail", *typed])
        done = subprocess.run(
            ("bash", "-c", script),
            cwd=self.path,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n\n{done.stdout}"

    def _typed(self, part: tables.Treatment, command: str) -> str:
        changes = dict(part.named)
        if self.small:
            changes |= part.shortened
        for old, new in changes.items():
            command = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])", lambda _, new=new: new, command)
        return command


def _exports(block: Block) -> list[str]:
    """The variables that earlier blocks of the page have set for the reader's shell, if they are for this machine."""
    same = ("", treatment_of(block).needs)
    found = blocks(block.page, "sh", "console")
    earlier = [each for each in found if each.line < block.line and treatment_of(each).needs in same]
    return [line for each in earlier for line in _lines(each) if line.startswith("export ")]


def _small(job: dict[str, Any]) -> dict[str, Any]:  # Any: YAML
    """A job with the sizes of tests; whether its episodes are carried is no size."""
    kept = {name: value for name, value in job.get("actors", {}).items() if name == "episodes"}
    return job | tables.SMALL | {"actors": tables.SMALL["actors"] | kept}


def _anywhere(text: str, place: Path) -> str:
    return text.replace(f"{place}", HOME).replace(f"/marless-{os.getuid()}/", f"/marless-{USER}/")


def treatment(page: str, heading: str = "") -> tables.Treatment:
    """How the commands of a page are run, or those below one of its headings."""
    whole = tables.TREATMENTS.get(page, tables.Treatment())
    return whole.parts.get(heading, whole)


def treatment_of(block: Block) -> tables.Treatment:
    """How the commands of a block are run."""
    return treatment(block.page, block.heading)


def to_run(block: Block) -> list[str]:
    """The commands of a block that run here."""
    return [line for line in _lines(block) if not _is_only_checked(block, line)]


def only_checked(block: Block) -> list[str]:
    """Those that do not."""
    return [line for line in _lines(block) if _is_only_checked(block, line)]


def _is_only_checked(block: Block, line: str) -> bool:
    """Whether tables.py says why a command is not run."""
    why = tables.NOT_RUN.keys() - ({tables.INSTALLS} if treatment_of(block).installs else set())
    return line.startswith(tuple(why))


def _lines(block: Block) -> list[str]:
    if block.kind == "console":
        return [shown.command for shown in transcripts.parse(block.text)]
    return commands.lines(block.text)
