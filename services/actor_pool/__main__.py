"""`python -m services.actor_pool`: starts the actor pool process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from marless.fleet import environment, orphans
from marless.fleet.dispatch import Dispatcher
from marless.fleet.figures import figures
from marless.fleet.fleet import Fleet
from marless.fleet.handover import Tickets
from marless.fleet.launchers.local import LocalLauncher, Template
from marless.rpc.roles import Role
from marless.rpc.server import Service, main
from marless.rpc.v1.actor_pool_pb2_grpc import add_ActorPoolServiceServicer_to_server
from services.actor_pool.background import background
from services.actor_pool.config import Config, parse
from services.actor_pool.rollouts import Rollouts
from services.actor_pool.servicer import ActorPoolServicer


@asynccontextmanager
async def build(config: Config, address: str, template: Template | None = None) -> AsyncIterator[Service]:
    """Build the pool's parts; its workers are stopped when the context ends. `template` is one that others use, too."""
    launcher = LocalLauncher(
        "services.actor_pool.worker",
        [
            *("--pool", address, "--param-store", config.param_store),
            *("--env-modules", ",".join(config.env_modules)),
            *config.server.security.arguments(*config.worker_tls),
        ],
        environment.inherited(os.environ) | environment.ACTOR,
        config.server.security.showing(Role.ACTOR),
        template,
    )
    dispatcher = Dispatcher(tickets=Tickets(others=config.server.security.tokens is not None))
    fleet = Fleet(
        dispatcher, launcher, prefix="actor", limit=config.workers, keep_alive_s=config.keep_alive_s, warm=config.warm
    )
    async with launcher, fleet, background(launcher, config.keep_alive_s) as behind:
        servicer = ActorPoolServicer(Rollouts(dispatcher, fleet), dispatcher, fleet, behind)
        register = partial(add_ActorPoolServiceServicer_to_server, servicer)

        async def stop() -> None:
            await asyncio.gather(fleet.stop(), behind.fleet.stop())

        yield Service(register, fleet.ready, stop, "ActorPoolService", partial(figures, dispatcher))


if __name__ == "__main__":
    options = parse()
    orphans.adopt()
    sys.exit(main("actor_pool", options.server, partial(build, options)))
