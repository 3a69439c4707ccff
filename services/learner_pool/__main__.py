"""`python -m marless.services.learner_pool`: starts the learner pool process. Its workers import torch; it does not."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from marless.core import orphans, process_environment
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet
from marless.fleet.gpus import WORKERS_PER_GPU
from marless.fleet.handover import Tickets
from marless.fleet.launchers.base import WorkerProgram, kept_by, priced_by
from marless.fleet.launchers.hosts.pool import HOSTS
from marless.fleet.launchers.registry import Make, launching
from marless.fleet.machines import MachineAccounts
from marless.rpc.admission import Streams, Transfers
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.refs import Loans
from marless.rpc.roles import Role
from marless.rpc.server import ServedService, run
from marless.services.learner_pool.config import LearnerPoolConfig, parse
from marless.services.learner_pool.gradients import Gradients
from marless.services.learner_pool.replays import Replays
from marless.services.learner_pool.servicer import LearnerPoolServicer, figures
from marless.services.learner_pool.tasks import LearnTasks
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from marless.services.learner_pool.updates import Updates

UPLOADS, MANY = 256, 16
"""Trajectories that are received at a time, and calls with several small ones; others wait for their turn."""


@asynccontextmanager
async def build(config: LearnerPoolConfig, address: str, make: Make | None = None) -> AsyncIterator[ServedService]:
    """Build the pool's parts. When the context ends, workers and trajectories are dropped, and replay files stay.

    `make` makes its launcher; by default, the one that `config` names.
    """
    settings = process_environment.learner(config.threads) | {WORKERS_PER_GPU: str(config.workers_per_gpu)}
    program = WorkerProgram(
        "marless.services.learner_pool.worker",
        ["--pool", address, "--param-store", config.param_store, *config.server.security.arguments(*config.worker_tls)],
        process_environment.inherited(os.environ) | settings,
        config.server.security.showing(Role.LEARNER),
        settings,
        most=config.workers,
    )
    tickets = Tickets(others=config.server.security.tokens is not None)
    buffer = TrajectoryBuffer(config.spool, config.spool_bytes)
    replays = Replays(config.spool, config.param_store, buffer, config.replay_keep_s)
    store = Peer(config.param_store, config.server.security, "param_store")
    try:
        async with launching(config.launcher, program, make) as launcher:
            machines = MachineAccounts(config.launcher.name, kept_by(launcher), priced_by(launcher))
            dispatcher = Dispatcher(tickets=tickets, machines=machines)
            loans = Loans(dispatcher.is_running)
            fleet = Fleet(
                dispatcher,
                launcher=launcher,
                prefix="learner",
                limit=config.workers,
                keep_alive_s=config.keep_alive_s,
                warm=config.warm,
            )
            tasks, params = LearnTasks(buffer, replays, loans, dispatcher, fleet), ParamStore(store)
            updates, gradients = Updates(buffer, replays, tasks, params), Gradients(buffer, tasks, params)
            servicer = LearnerPoolServicer(buffer, updates, gradients, loans, dispatcher, fleet, address, launcher)
            shown = partial(figures, dispatcher, buffer, replays)
            try:
                async with fleet:
                    yield ServedService(
                        servicer.register,
                        ready=fleet.ready,
                        drain=fleet.stop,
                        name="LearnerPoolService",
                        limits={
                            "Work": Streams(fleet.most_streams),
                            "Host": HOSTS,
                            "Upload": Transfers(UPLOADS),
                            "UploadMany": Transfers(MANY),
                        },
                        figures=shown,
                    )
            finally:
                await updates.stop()
    finally:
        await store.close()
        replays.shutdown()
        buffer.shutdown()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the service with these command-line arguments (by default, those of this process) to its end."""
    options = parse(arguments)
    orphans.adopt()
    sys.exit(run("learner_pool", options.server, partial(build, options)))


if __name__ == "__main__":
    main()
