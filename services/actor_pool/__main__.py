"""`python -m services.actor_pool`: starts the actor pool process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from marless.core import orphans, process_environment
from marless.core.registry import plugged
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet, worker_figures
from marless.fleet.handover import Tickets
from marless.fleet.launchers.base import WorkerProgram, kept_by, priced_by
from marless.fleet.launchers.hosts.pool import HOSTS
from marless.fleet.launchers.registry import Make, launching
from marless.fleet.machines import MachineAccounts
from marless.fleet.relayed import RELAYS
from marless.rpc.admission import Streams
from marless.rpc.roles import Role
from marless.rpc.server import ServedService, run
from marless.rpc.v1.actor_pool_pb2_grpc import add_ActorPoolServiceServicer_to_server
from services.actor_pool.background import background
from services.actor_pool.config import ActorPoolConfig, parse
from services.actor_pool.rollouts import Rollouts
from services.actor_pool.servicer import ActorPoolServicer


@asynccontextmanager
async def build(config: ActorPoolConfig, address: str, make: Make | None = None) -> AsyncIterator[ServedService]:
    """Build the pool's parts; its workers are stopped when the context ends.

    `make` makes its launcher; by default, the one that `config` names.
    """
    program = WorkerProgram(
        "services.actor_pool.worker",
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
