"""Examines environments in a process of their own, because making one runs code of others.

That code may end its process, hold Python's lock, wait for ever, allocate without bound, close all descriptors, or
leave processes behind. None of this may reach a coordinator, which runs the jobs of everybody, or a command that was
asked a question. So a child makes the environment, and says what it saw by a line of JSON through a pipe that only the
two know, and by a second one if it played; whatever the child prints goes elsewhere. marless's own environments are
examined in this process, as their code is ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

from marless.core import documents, orphans, process_environment
from marless.core.errors import SpecError, told
from marless.core.process_environment import ENV_MODULES, env_modules
from marless.learning.data.trial import Trial, trial
from marless.learning.envs import registry
from marless.learning.envs.base import EnvSpaces

LIMIT_S = 60.0
"""Seconds that an environment may take to be made and closed."""
GLANCE_S = 0.05
"""CPU seconds of play before a job is trained."""
_GLANCE_MADE_S = 0.5
"""Seconds after which an environment is too slow to make for a glance, which makes it once more."""
_GLANCE_LIMIT_S = 5.0
"""Seconds that a glance may take: what is ended before it is closed may leave a lock, a container, shared memory."""
MOST_BYTES = 2**24
"""Of an answer: ten thousand agents with long names have a tenth of it."""
_LEAST_MEMORY = 2**31
"""Bytes that an environment may allocate even on a small machine."""
_PR_SET_PDEATHSIG = 1
T = TypeVar("T")


@dataclass(frozen=True)
class Examined:
    """What was seen of an environment."""

    spaces: EnvSpaces
    can_be_saved: bool
    """True if it has `save` and `load`."""
    trial: Trial | None = None
    """What a moment of random play showed; None if it was not played."""


def examined(name: str, options: Mapping[str, Any], *, limit_s: float = LIMIT_S) -> tuple[EnvSpaces, bool]:
    """The spaces of an environment, and whether it can be saved; see `examine`."""
    found = examine(name, options, limit_s=limit_s)
    return found.spaces, found.can_be_saved


def glanced(name: str, options: Mapping[str, Any]) -> Examined:
    """Make an environment once, as `examine` does, and play it for a moment if it is one of others.

    What goes wrong in that moment is left to the job itself to tell. marless's own environments are not played: what
    they show is known.
    """
    if registry.is_ours(name):
        return examine(name, options)
    with _Child(name, options, GLANCE_S, subprocess.DEVNULL, made_s=_GLANCE_MADE_S) as child:
        made = child.made(LIMIT_S)
        with suppress(SpecError):
            return replace(made, trial=child.trial(_GLANCE_LIMIT_S))
        return made


def examine(
    name: str,
    options: Mapping[str, Any],
    *,
    play_s: float = 0.0,
    limit_s: float = LIMIT_S,
    output: int = subprocess.DEVNULL,
) -> Examined:
    """Make an environment once, apart from this process unless it is marless's own, and play it for `play_s` seconds.

    `output` is where it may print: a descriptor, or DEVNULL. Raises SpecError for an environment that cannot be made,
    played or closed, with the way in which its process ended, and for one that takes longer than `limit_s` seconds.
    """
    if registry.is_ours(name):
        return Examined(*registry.examined(name, options), _played(name, options, play_s) if play_s else None)
    with _Child(name, options, play_s, output) as child:
        made = child.made(limit_s)
        return replace(made, trial=child.trial(limit_s + play_s)) if play_s else made


def _played(name: str, options: Mapping[str, Any], play_s: float) -> Trial:
    env = registry.make(name, options, 1)
    try:
        return trial(env, seconds=play_s)
    except SpecError as error:
        raise SpecError(f"environment {name}: {error}") from error
    except Exception as error:
        raise SpecError(f"environment {name}: cannot be played: {told(error)}") from error
    finally:
        env.close()


class _Child:
    """Context of a process that makes an environment; after it, the process and all below it have ended."""

    def __init__(
        self, name: str, options: Mapping[str, Any], play_s: float, output: int, made_s: float = LIMIT_S
    ) -> None:
        """Start the process, which plays only what was made within `made_s` seconds; raises SpecError if that fails."""
        self._name, self._rest = name, b""
        # within this process's own mark: it may be told to end, and then does not wait for the thread that runs this
        self._mark = orphans.new_mark_within()
        self._pipe, there = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P leaves the working directory out of the path, where a numpy.py of anybody could lie.
                [sys.executable, "-P", "-m", "marless.jobs.examining", str(there)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(there,),
                # By its session, processes that it leaves behind are found, whatever they do
                # to their environment variables.
                start_new_session=True,
                text=True,
                env=process_environment.inherited(os.environ)
                | process_environment.ACTOR
                | {orphans.MARK: self._mark, ENV_MODULES: ",".join(env_modules())},
            )
        except OSError as error:
            os.close(self._pipe)
            raise SpecError(f"environment {name}: no process could be started to make it: {error.strerror}") from error
        finally:
            # The child has an end of its own: with this one open, the pipe would not end when the child does.
            os.close(there)
        assert self._process.stdin is not None  # as asked for
        with suppress(BrokenPipeError):  # it has ended already; how, is said by its exit code
            request = {"name": name, "options": dict(options), "play_s": play_s, "made_s": made_s}
            self._process.stdin.write(json.dumps(request))
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)
        self._process.kill()
        self._process.wait()
        orphans.end_below(self._process.pid, self._mark)

    def made(self, limit_s: float) -> Examined:
        """What it says once the environment is made and closed; raises SpecError."""
        return self._answer(Examined, limit_s)

    def trial(self, limit_s: float) -> Trial:
        """What it says once the environment was played; raises SpecError."""
        return self._answer(Trial, limit_s)

    def _answer(self, kind: type[T], limit_s: float) -> T:
        from pydantic import TypeAdapter, ValidationError  # imported here: the child does not need it

        try:
            document = documents.from_json(self._line(limit_s), "examined environment", finite=False)
            if isinstance(document, dict) and isinstance(sentence := document.get("error"), str):
                raise SpecError(sentence)
            return TypeAdapter(kind).validate_python(document)
        except ValidationError:
            raise SpecError(
                f"environment {self._name}: its process has answered what is no description of it"
            ) from None

    def _line(self, limit_s: float) -> str:
        """The next line that it writes; raises SpecError if it ends before, or does neither in time."""
        line, newline, self._rest = _read_line(self._process, self._pipe, self._rest, time.monotonic() + limit_s)
        if newline:
            return line.decode(errors="replace")
        if (code := self._process.poll()) is None:
            raise SpecError(
                f"environment {self._name}: was not made within {limit_s:g} s; it hangs, or its options ask for too "
                "much"
            )
        raise SpecError(f"environment {self._name}: cannot be made with these options: its process {_end(code)}")


def _read_line(child: subprocess.Popen[str], pipe: int, written: bytes, until_s: float) -> tuple[bytes, bytes, bytes]:
    """What the child has written up to a newline, that newline, and what follows; no newline if it ends or is late."""
    # A descriptor of the process lets one call wait for its end and for its answer.
    exited = os.pidfd_open(child.pid)
    try:
        while b"\n" not in written and len(written) <= MOST_BYTES and (left_s := until_s - time.monotonic()) > 0:
            ready, _, _ = select.select([pipe, exited], [], [], left_s)
            part = os.read(pipe, 2**16) if pipe in ready else b""
            written += part
            if not part:
                # It has ended or closed its end; a process that it started may still hold the pipe open.
                select.select([exited], [], [], max(until_s - time.monotonic(), 0.0))
                break
        return written.partition(b"\n")
    finally:
        os.close(exited)


def _end(code: int) -> str:
    """How a process has ended, in a message."""
    if code >= 0:
        return f"ended itself with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def main(descriptor: int) -> None:
    """Examine the environment that standard input names, and write what was seen to the descriptor.

    A line tells that it was made, and another how it was played, if that was asked for; or a line what went wrong.
    """
    # If the coordinator is killed, nobody waits for this process any more.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2, _LEAST_MEMORY)
    # Data, not addresses, which runtimes of GPUs reserve without using them.
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    request = json.load(sys.stdin)
    name, options, play_s = request["name"], request["options"], request["play_s"]
    started_s = time.monotonic()
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as pipe:  # each line at once
        try:
            pipe.write(json.dumps(asdict(Examined(*registry.examined(name, options)))) + "\n")
            if play_s and time.monotonic() - started_s > request["made_s"]:
                raise SpecError(f"environment {name}: takes too long to make")
            if play_s:
                pipe.write(json.dumps(asdict(_played(name, options, play_s))) + "\n")
        except SpecError as error:
            pipe.write(json.dumps({"error": str(error)}) + "\n")
        # nobody presses Ctrl-C here: whatever it is, the environment raised it
        except BaseException as error:  # noqa: BLE001
            sentence = f"environment {name}: cannot be made with these options: {told(error)}"
            pipe.write(json.dumps({"error": sentence}) + "\n")
    # What the environment has registered to run at the exit, and its threads, are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
