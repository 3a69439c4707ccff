"""A worker process: its options, how it begins and ends, and the watchdog that ends it when it hangs."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from marless.core import orphans, process_environment
from marless.core.errors import MarlessError, SpecError
from marless.core.machine import Machine
from marless.core.process_environment import allow_env_modules
from marless.fleet.handover import Handover
from marless.rpc.process import (
    add_caches,
    add_env_modules,
    add_option,
    add_peer,
    add_process_options,
    add_relay,
    configure_logging,
    forget_secrets,
    security_of,
)
from marless.rpc.roles import Role
from marless.rpc.security import Security

RENEWED = 77
"""Exit code of a child whose pool wants a fresh one in its place."""
_PR_SET_PDEATHSIG = 1
_SIGNALS = 128
"""What shells add to the number of the signal that has ended a process."""
_STDERR = 2


@dataclass
class Life:
    """How the life of this process ends."""

    renewed: bool = False
    """True once the pool has asked for a fresh worker in its place."""


class Watchdog:
    """The time limit of this process; there is one."""

    def __init__(self, *, ends_process: bool = False) -> None:
        """Without `ends_process`, it does nothing: for workers that share their process with other things."""
        self._ends_process = ends_process

    def arm(self, limit_s: float) -> None:
        """End the process in so many seconds, unless `disarm` is called before; replaces an earlier limit."""
        if self._ends_process:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=_STDERR)

    def disarm(self) -> None:
        """Take the limit back."""
        if self._ends_process:
            faulthandler.cancel_dump_traceback_later()


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker process."""

    worker: str
    pool: str
    param_store: str
    security: Security
    launched: bool
    """True if started by a pool, which holds this process's standard input open; it exits when that closes."""
    handover: Handover = field(default_factory=Handover)
    life: Life = field(default_factory=Life)
    background: bool = False
    """Run at the lowest CPU priority."""
    watchdog: Watchdog = field(default_factory=Watchdog)
    machine: Machine = field(default_factory=Machine.here)
    """What is known of the machine that it runs on."""
    env_modules: tuple[str, ...] = ()
    """Modules whose environments an actor may create besides PettingZoo's own; see `marless.learning.envs.allowed`."""
    caches: tuple[str, ...] = ()
    """Addresses of caches of the param_store, for an actor; see `marless.rpc.nearby`."""
    relay: str = ""
    """Address of its host's relay, for an actor; see `marless.rpc.nearby`."""


Run = Callable[[WorkerOptions], Coroutine[None, None, None]]


def serve(run: Run, role: Role, arguments: Sequence[str] | None = None) -> None:
    """Run a worker process to its end, and kill all processes that were started below it.

    Exits with code 2 for invalid options, and with 1 if the pool refuses the worker, after an error message on stderr.

    Args:
        run: Connects to the pool, and runs its tasks.
        role: Which kind of worker this is.
        arguments: Those of the command line; by default, this process's.
    """
    configure_logging()
    program = f"python -m marless.services.{role}_pool.worker"
    given = dict(os.environ)  # options remove secrets from it
    try:
        options = worker_options(program, role, arguments)
        if arguments is None and role is Role.ACTOR:
            process_environment.begin_anew(given)  # only now: a mistake in the options, or --help, starts nothing
        allow_env_modules(options.env_modules)
        process_environment.end_forks_well()
        if options.background:
            process_environment.yield_cpu()
        if not options.launched:
            # For a worker that is launched, its launcher has done so before.
            orphans.end_of_dead_pools()
            if role is Role.ACTOR:  # learners run no environments, and need no fresh process for each job
                _begin_lives()
        with orphans.contained():
            asyncio.run(run(options))
        if options.life.renewed and not options.launched:
            sys.exit(RENEWED)
    except MarlessError as error:
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201  # the final error message, for people
        sys.exit(2 if isinstance(error, SpecError) else 1)


def worker_options(program: str, role: Role, arguments: Sequence[str] | None = None) -> WorkerOptions:
    """Parse the arguments of a worker; exits with code 2, or raises SpecError, if they are invalid."""
    parser = argparse.ArgumentParser(prog=program, description=f"One {role} worker of a pool of {role}s.")
    unique = f"{socket.gethostname()}-{os.getpid()}"
    parser.add_argument(
        "--worker", default=unique, help="name under which the pool knows this worker; default: %(default)s"
    )
    add_peer(parser, "--pool", f"{role}_pool")
    add_peer(parser, "--param-store", "param_store")
    add_env_modules(parser)
    add_caches(parser)
    add_relay(parser)
    add_process_options(parser)
    add_option(parser, "--machine", "", "what is known of this machine: key=value,…; see docs/cost.md", _machine)
    parser.add_argument("--launched", action="store_true", help="how pools start workers; not for people")
    parser.add_argument("--background", action="store_true", help="run at the lowest CPU priority")
    args = parser.parse_args(arguments)
    security, handover = security_of(args, role), Handover()
    forget_secrets()
    if args.launched:
        # Read at each call, because the pool may send a new token at any time.
        security = replace(security, token=lambda: handover.token)
    return WorkerOptions(
        args.worker,
        args.pool,
        args.param_store,
        security,
        args.launched,
        handover,
        background=args.background,
        watchdog=Watchdog(ends_process=True),
        machine=args.machine,
        env_modules=args.env_modules,
        caches=args.param_store_caches,
        relay=args.relay,
    )


def _machine(text: str) -> Machine:
    try:
        return Machine.here(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _begin_lives() -> None:
    """Go on in a child process, and in another one whenever its pool has it renewed.

    Returns in each child only. The process that stays exits as its last child does. It may have no thread.
    """
    gc.freeze()  # or garbage collections in children would copy what they share
    here = os.getpid()
    while child := os.fork():
        code = _ended(child)
        if code != RENEWED:
            sys.exit(code if code >= 0 else _SIGNALS - code)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != here:
        os._exit(0)  # the one that stays was killed before the line above


def _ended(child: int) -> int:
    """Wait for the end of a child, and pass on signals meanwhile; returns its exit code, negative for a signal's."""

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    passed = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    passed[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child, too
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        for number, before in passed.items():
            signal.signal(number, before)
