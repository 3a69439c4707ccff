"""`python -m marless.services.actor_pool`: starts the actor pool process, from command-line options."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from marless.core import orphans, process_environment
from marless.core.registry import plugged
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet, worker_figures
from marless.fleet.handover import Tickets
from marless.fleet.launchers.base import WorkerProgram, kept_by, priced_by
from marless.fleet.launchers.hosts.pool import HOSTS
from marless.fleet.launchers.registry import LOCAL, Choice, Make, add_launcher, launching, limit_of
from marless.fleet.machines import MachineAccounts
from marless.fleet.relayed import RELAYS
from marless.rpc.admission import Streams
from marless.rpc.process import (
    add_caches,
    add_env_modules,
    add_option,
    add_peer,
    add_relay,
    add_worker_tls,
    at_least,
    seconds,
)
from marless.rpc.roles import Role
from marless.rpc.server import ServedService, ServerOptions, option_parser, run, server_options
from marless.rpc.v1.actor_pool_pb2_grpc import add_ActorPoolServiceServicer_to_server
from marless.services.actor_pool.rollouts import Rollouts, background
from marless.services.actor_pool.servicer import ActorPoolServicer


@dataclass(frozen=True)
class ActorPoolConfig:
    """All options of the actor pool."""

    server: ServerOptions
    param_store: str
    """Address of the param_store, handed to workers."""
    workers: int
    """Maximum number of workers; each uses one vCPU."""
    warm: int
    """Workers that are started with the pool."""
    keep_alive_s: float
    """Seconds after which an idle worker is stopped."""
    env_modules: tuple[str, ...] = ()
    """Modules whose environments jobs may use in addition to PettingZoo's own; handed to workers."""
    worker_tls: tuple[str, str] = ("", "")
    """Paths of the workers' certificate chain and its key; "": those of the pool."""
    launcher: Choice = LOCAL
    """What starts the workers."""
    caches: tuple[str, ...] = ()
    """Addresses of caches of the param_store, handed to workers."""
    relay: str = ""
    """Address of a relay on each host, handed to workers; "": none."""


def parse(argv: Sequence[str] | None = None) -> ActorPoolConfig:
    """Read the options from flags and MARLESS_* environment variables."""
    parser = option_parser("actor_pool", "Runs actors: batches of environment copies under given policy versions.")
    add_peer(parser, "--param-store", "param_store")
    add_caches(parser)
    add_relay(parser)
    add_option(
        parser,
        "--actor-workers",
        str(os.cpu_count() or 1),
        "largest number of actor workers that the pool starts",
        at_least(0),
    )
    add_option(
        parser, "--warm-workers", "0", "workers that are started with the pool, before a task needs them", at_least(0)
    )
    add_option(parser, "--keep-alive-s", "600", "seconds after which an idle worker is stopped", seconds)
    add_launcher(parser)
    add_worker_tls(parser)
    add_env_modules(parser)
    args = parser.parse_args(argv)
    server = server_options(args)
    return ActorPoolConfig(
        server=server,
        param_store=args.param_store,
        workers=limit_of(parser, args.launcher, args.actor_workers, server.security),
        warm=args.warm_workers,
        keep_alive_s=args.keep_alive_s,
        env_modules=args.env_modules,
        worker_tls=(args.worker_tls_cert, args.worker_tls_key),
        launcher=args.launcher,
        caches=args.param_store_caches,
        relay=args.relay,
    )


@asynccontextmanager
async def build(config: ActorPoolConfig, address: str, make: Make | None = None) -> AsyncIterator[ServedService]:
    """Build the pool's parts; its workers are stopped when the context ends.

    `make` makes its launcher; by default, the one that `config` names.
    """
    program = WorkerProgram(
        "marless.services.actor_pool.worker",
        [
            *("--pool", address, "--param-store", config.param_store),
            *("--env-modules", ",".join(config.env_modules)),
            *(("--param-store-caches", ",".join(config.caches)) if config.caches else ()),
            *(("--relay", config.relay) if config.relay else ()),
            *config.server.security.arguments(*config.worker_tls),
        ],
        process_environment.inherited(os.environ) | process_environment.ACTOR,
        config.server.security.showing(Role.ACTOR),
        process_environment.ACTOR,
        sorted({each.module for each in plugged("marless.envs").values()}),
    )
    tickets = Tickets(others=config.server.security.tokens is not None)
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(launching(config.launcher, program, make))
        machines = MachineAccounts(config.launcher.name, kept_by(launcher), priced_by(launcher))
        dispatcher = Dispatcher(tickets=tickets, machines=machines, apart=True)  # environments run in its workers
        fleet = await stack.enter_async_context(
            Fleet(
                dispatcher,
                launcher,
                prefix="actor",
                limit=config.workers,
                keep_alive_s=config.keep_alive_s,
                warm=config.warm,
            )
        )
        behind = None
        if config.workers:
            behind = await stack.enter_async_context(background(launcher, machines, config.keep_alive_s))
        servicer = ActorPoolServicer(Rollouts(dispatcher, fleet), dispatcher, fleet, behind, launcher)
        register = partial(add_ActorPoolServiceServicer_to_server, servicer)

        async def stop() -> None:
            await asyncio.gather(fleet.stop(), *([behind.fleet.stop()] if behind else []))
            await servicer.end_relays()

        yield ServedService(
            register,
            fleet.ready,
            stop,
            "ActorPoolService",
            limits={"Work": Streams(fleet.most_streams), "Relay": RELAYS, "Host": HOSTS},
            figures=partial(worker_figures, dispatcher),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the service with these command-line arguments (by default, those of this process) to its end."""
    options = parse(arguments)
    orphans.adopt()
    sys.exit(run("actor_pool", options.server, partial(build, options)))


if __name__ == "__main__":
    main()
