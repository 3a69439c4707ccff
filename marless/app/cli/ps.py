"""The command `ps`: the processes of marless on this machine, what each is, and for which run or stack it works."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marless.app.cli.options import Output, OutputOption
from marless.app.cli.output import console, duration, harmless, say, show_objects
from marless.core.errors import UnavailableError, denied

if TYPE_CHECKING:
    from marless.core.process_table import RunningProcess

_SUPERVISOR, _TEMPLATE = "marless.app.cli.background", "marless.fleet.launchers.template"
_WITH_A_VALUE = re.compile(r"-[A-Za-z]*?([mcXW])(.*)", re.DOTALL)
"""An option of Python that has a value, in the same word or the next one, after others that have none: -Pm marless."""
_HELD = ("owner", "services")
"""Locks in the directory `store` of a run folder or a stack, which its processes hold open."""
_JOB = "owner.lock"
"""The lock of a run folder, which the coordinator of its job holds open."""


@dataclass(frozen=True, kw_only=True)
class MarlessProcess:
    """A process of marless on this machine, or one that such a process has started."""

    pid: int
    role: str
    """A service, `actor worker`, `learner worker`, `template of …`, `supervisor`, or a command: `marless train`."""
    parent: int | None
    """The process of marless that started it; None if that has ended, or was something else."""
    depth: int
    """How many of the processes above it are marless's."""
    place: str
    """The run folder, or the `.stack` of `marless up`, for which it works; "": it is not known."""
    jobs: tuple[str, ...]
    """The run folders of the jobs that it runs, if it is a coordinator."""
    address: str
    """Where it listens, or the pool for which it works; "": neither is on its command line."""
    up_s: float
    cpu_s: float
    memory_bytes: int
    """Resident memory, that which forked processes share included."""
    command: str


def ps(output: OutputOption = Output.table) -> None:
    """List the processes of marless on this machine that are yours: services, workers and commands."""
    from marless.core import process_table

    try:
        running = process_table.own_processes()
    except OSError as error:
        raise UnavailableError(f"{denied(error)}; the processes of this machine cannot be listed") from None
    found = list(of_marless(running))
    if output is not Output.table:
        show_objects([(str(each.pid), asdict(each)) for each in found], output)
    elif not found:
        say("no process of marless is running here")
    else:
        _show(found)


def of_marless(running: Collection[RunningProcess]) -> Iterator[MarlessProcess]:
    """The processes of marless among these and all below them, each after the one that started it, oldest first."""
    by_id = {each.pid: each for each in running}
    roles = {each.pid: role for each in running if (role := role_of(each.words))}
    children: dict[int, list[RunningProcess]] = {}
    for each in sorted(running, key=lambda each: each.up_s, reverse=True):
        children.setdefault(each.parent, []).append(each)

    def below(process: RunningProcess, parent: MarlessProcess | None) -> Iterator[MarlessProcess]:
        found = _described(process, roles.get(process.pid) or _started_role(process.words), parent)
        yield found
        for child in children.get(process.pid, []):
            yield from below(child, found)

    def is_below(process: RunningProcess | None) -> bool:
        while process := by_id.get(process.parent) if process else None:
            if process.pid in roles:
                return True
        return False

    for each in sorted(running, key=lambda each: each.up_s, reverse=True):
        if each.pid in roles and not is_below(each):
            yield from below(each, None)


def role_of(words: Sequence[str]) -> str:
    """What a process with this command line is in marless; "" if it is none of marless."""
    if not words or not Path(words[0]).name.startswith(("python", "Python")):
        return ""
    module, rest = _program(words[1:])
    match module.split("."):
        case ["marless"] | ["marless", "__main__"]:
            role = f"marless {next((word for word in rest if not word.startswith('-')), '')}".rstrip()
        case ["marless", "services", service]:
            role = service
        case ["marless", "services", service, "worker"]:
            role = f"{service.removesuffix('_pool')} worker"
        case _ if module == _SUPERVISOR:
            role = "supervisor"
        case _ if module == _TEMPLATE:
            role = f"template of {_templated(rest[0].removeprefix('--module=') if rest else '')}"
        case [root, *_] if root == "marless" or root.startswith("marless_"):
            role = module.removeprefix("marless.")
        case _:
            role = ""
    return role


def _templated(module: str) -> str:
    """What a template of this module forks."""
    role = role_of(("python", "-m", module))
    return f"{role}s" if role.endswith(" worker") else module.removeprefix("marless.")


def _program(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The module that an interpreter runs with these arguments, and the arguments of that."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            # The program that pip installs, named by its path.
            return ("marless" if Path(word).name == "marless" else ""), words[at:]
        option = _WITH_A_VALUE.fullmatch(word)
        if not option:
            continue
        letter, value = option.groups()
        if not value:
            value, at = next(iter(words[at : at + 1]), ""), at + 1
        if letter in "mc":
            return (value if letter == "m" else ""), words[at:]
    return "", ()


def _started_role(words: Sequence[str]) -> str:
    """The role of what a process of marless has started: its program, such as `valkey-server`, or script."""
    if (script := next((word for word in words[1:] if not word.startswith("-")), "")).endswith(".py"):
        return Path(script).stem
    # Redis shows all its words as one.
    return Path(words[0].split()[0]).name if words and words[0].strip() else "a process without a command line"


def _described(process: RunningProcess, role: str, parent: MarlessProcess | None) -> MarlessProcess:
    from marless.core.process_table import open_files

    files = list(open_files(process.pid))
    return MarlessProcess(
        pid=process.pid,
        role=role,
        parent=parent.pid if parent else None,
        depth=parent.depth + 1 if parent else 0,
        place=_place(files) or _place_of_supervisor(role, process.words) or (parent.place if parent else ""),
        jobs=tuple(sorted({str(file.parent) for file in files if file.name == _JOB})),
        address=_option(process.words, "--listen") or _option(process.words, "--pool"),
        up_s=round(process.up_s, 1),
        cpu_s=round(process.cpu_s, 2),
        memory_bytes=process.memory_bytes,
        command=" ".join(process.words),
    )


def _place(files: Sequence[Path]) -> str:
    """The run folder or stack whose lock is among these open files, or the run folder of the only job that is."""
    for file in files:
        if file.name in _HELD and file.parent.name == "store":
            return str(file.parent.parent)
    jobs = {str(file.parent) for file in files if file.name == _JOB}
    return jobs.pop() if len(jobs) == 1 else ""


def _place_of_supervisor(role: str, words: Sequence[str]) -> str:
    """The stack of a supervisor by its command line, for systems that do not tell which files are open."""
    if role != "supervisor":
        return ""
    with suppress(ValueError, KeyError, TypeError):
        # `ps` cuts the command line at each space, also within the settings.
        settings: Mapping[str, str] = json.loads(" ".join(words[words.index(_SUPERVISOR) + 1 :]))
        return str(Path(settings["runs"]) / ".stack")
    return ""


def _option(words: Sequence[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words[:-1] else ""


def _show(found: Sequence[MarlessProcess]) -> None:
    from marless.app.cli.output import TableColumn, fitted

    works_for = [", ".join(map(_brief, each.jobs or (each.place or each.address,))) for each in found]
    columns = [
        TableColumn(title="process", cells=[_one_line("  " * each.depth + each.role) for each in found]),
        TableColumn(title="pid", cells=[str(each.pid) for each in found], right=True),
        TableColumn(title="works for", cells=list(map(_one_line, works_for)), goes=4),
        TableColumn(title="up", cells=[duration(each.up_s) for each in found], right=True, goes=1),
        TableColumn(title="CPU", cells=[duration(each.cpu_s) for each in found], right=True, goes=3),
        TableColumn(title="memory", cells=[f"{each.memory_bytes / 1e6:,.0f} MB" for each in found], right=True, goes=2),
    ]
    shown = console()
    shown.print(fitted(columns, shown.width))


def _one_line(text: str) -> str:
    """Text for one cell: words of processes and names of folders may hold line feeds, and bytes that are no text."""
    return harmless(os.fsencode(text).decode(errors="backslashreplace")).replace("\n", "\\n").replace("\t", "\\t")


def _brief(place: str) -> str:
    """A place below the working directory as seen from there."""
    here = Path.cwd()
    return str(Path(place).relative_to(here)) if place.startswith(f"{here}/") else place
