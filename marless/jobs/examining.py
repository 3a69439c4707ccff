"""Examines environments in a process of their own, because making one runs code of others.

That code may end its process, hold Python's lock, wait for ever, allocate without bound, close all descriptors, or
leave processes behind. None of this may reach a coordinator, which runs the jobs of everybody, or a command that was
asked a question. So a child makes the environment, and says what it saw by one line of JSON through a pipe that only
the two know; whatever the child prints goes elsewhere. marless's own environments are examined in this process, as
their code is ours.
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
from dataclasses import asdict, dataclass
from typing import Any

from marless.core import documents, orphans, process_environment
from marless.core.errors import SpecError, told
from marless.core.process_environment import ENV_MODULES, env_modules
from marless.learning.data.trial import SECONDS, Trial, trial
from marless.learning.envs import registry
from marless.learning.envs.base import EnvSpaces

LIMIT_S = 60.0
"""Seconds that an environment may take to be made and closed."""
MOST_BYTES = 2**24
"""Of an answer: ten thousand agents with long names have a tenth of it."""
_LEAST_MEMORY = 2**31
"""Bytes that an environment may allocate even on a small machine."""
_PR_SET_PDEATHSIG = 1


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


def examine(
    name: str,
    options: Mapping[str, Any],
    *,
    play: bool = False,
    limit_s: float = LIMIT_S,
    output: int = subprocess.DEVNULL,
) -> Examined:
    """Make an environment once, apart from this process unless it is marless's own, and play it a moment with `play`.

    `output` is where it may print: a descriptor, or DEVNULL. Raises SpecError for an environment that cannot be made,
    played or closed, with the way in which its process ended, and for one that takes longer than `limit_s` seconds.
    """
    if registry.is_ours(name):
        return _examine_here(name, options, play=play)
    from pydantic import TypeAdapter, ValidationError  # imported here: the child does not need it

    request = json.dumps({"name": name, "options": dict(options), "play": play})
    answer = _ask(name, request, limit_s + (SECONDS if play else 0.0), output)
    try:
        document = documents.from_json(answer, "examined environment", finite=False)
        if isinstance(document, dict) and isinstance(sentence := document.get("error"), str):
            raise SpecError(sentence)
        return TypeAdapter(Examined).validate_python(document)
    except ValidationError:
        raise SpecError(f"environment {name}: its process has answered what is no description of it") from None


def _examine_here(name: str, options: Mapping[str, Any], *, play: bool) -> Examined:
    spaces, can_be_saved = registry.examined(name, options)
    if not play:
        return Examined(spaces, can_be_saved)
    env = registry.make(name, options, 1)
    try:
        return Examined(spaces, can_be_saved, trial(env))
    except SpecError as error:
        raise SpecError(f"environment {name}: {error}") from error
    except Exception as error:
        raise SpecError(f"environment {name}: cannot be played: {told(error)}") from error
    finally:
        env.close()


def _ask(name: str, request: str, limit_s: float, output: int) -> str:
    """Start a child, and return its answer; it and all processes below it have ended then."""
    # within this process's own mark: it may be told to end, and then does not wait for the thread that runs this
    mark = orphans.new_mark_within()
    here, there = os.pipe()
    try:
        child = subprocess.Popen(
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
            | {orphans.MARK: mark, ENV_MODULES: ",".join(env_modules())},
        )
    except OSError as error:
        os.close(here)
        raise SpecError(f"environment {name}: no process could be started to make it: {error.strerror}") from error
    finally:
        # The child has an end of its own: with this one open, the pipe would not end when the child does.
        os.close(there)
    try:
        assert child.stdin is not None  # as asked for
        with suppress(BrokenPipeError):  # it has ended already; how, is said by its exit code
            child.stdin.write(request)
            child.stdin.close()
        answer = _read_line(child, here, time.monotonic() + limit_s)
    finally:
        os.close(here)
        child.kill()
        code = child.wait()
        orphans.end_below(child.pid, mark)
    if answer is None:
        raise SpecError(
            f"environment {name}: was not made within {limit_s:g} s; it hangs, or its options ask for too much"
        )
    if not answer.endswith(b"\n"):
        raise SpecError(f"environment {name}: cannot be made with these options: its process {_end(code)}")
    return answer.decode(errors="replace")


def _read_line(child: subprocess.Popen[str], pipe: int, until_s: float) -> bytes | None:
    """What the child has written to the pipe when it has written a line or ended; None if it does neither in time."""
    # A descriptor of the process lets one call wait for its end and for its answer.
    written, exited = b"", os.pidfd_open(child.pid)
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            ready, _, _ = select.select([pipe, exited], [], [], left_s)
            if pipe in ready:
                part = os.read(pipe, 2**16)
                written += part
                if written.endswith(b"\n") or len(written) > MOST_BYTES:
                    return written
                if part:
                    continue
            if exited in ready or pipe in ready:
                # It has ended or closed its end; a process that it started may still hold the pipe open.
                select.select([exited], [], [], max(until_s - time.monotonic(), 0.0))
                return written if select.select([exited], [], [], 0)[0] else None
        return None
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
    """Examine the environment that standard input names, and write what was seen to the descriptor, as one line."""
    # If the coordinator is killed, nobody waits for this process any more.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2, _LEAST_MEMORY)
    # Data, not addresses, which runtimes of GPUs reserve without using them.
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    request = json.load(sys.stdin)
    try:
        found = asdict(_examine_here(request["name"], request["options"], play=request["play"]))
    except SpecError as error:
        found = {"error": str(error)}
    except BaseException as error:  # noqa: BLE001  # nobody presses Ctrl-C here: whatever it is, the environment raised it
        found = {"error": f"environment {request['name']}: cannot be made with these options: {told(error)}"}
    with os.fdopen(descriptor, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(found) + "\n")
    # What the environment has registered to run at the exit, and its threads, are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
