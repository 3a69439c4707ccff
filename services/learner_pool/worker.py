"""`python -m marless.services.learner_pool.worker`: one learner worker process, which alone imports torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marless.core.machine import gpus_of_machine
from marless.core.process_environment import CUBLAS, GPU, GPU_SHARE
from marless.fleet.gpus import VISIBLE, visible_gpus
from marless.fleet.session import work
from marless.fleet.worker_process import WorkerOptions, serve
from marless.learning.algos.training.devices import DeviceMemory, choose_device, limit_memory
from marless.learning.nets.kernels import compute_side_by_side
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.refs import Borrowed
from marless.rpc.roles import Role
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub
from marless.services.learner_pool import spool
from marless.services.learner_pool.learner import Learning

if TYPE_CHECKING:
    from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceAsyncStub


async def run(options: WorkerOptions) -> None:
    """Connect to the pool, and run its tasks until it releases this worker."""
    compute_side_by_side()
    # In time: CUDA reads its variables when it is first used, not when torch is imported.
    if gpu := os.environ.get(GPU):
        os.environ[VISIBLE] = gpu
    for name, value in CUBLAS.items():  # which nobody has set for a worker that no pool starts
        os.environ.setdefault(name, value)
    limit_memory(share := float(os.environ.get(GPU_SHARE, "1")))
    pool = Peer(options.pool, options.security, "learner_pool")
    store = Peer(options.param_store, options.security, "param_store")
    borrowed = Borrowed(pool, "LearnerPoolService", options.worker, lambda: options.handover.ticket)
    learning = Learning(ParamStore(store), borrowed, Path(spool.memory_backed()), DeviceMemory(share))
    stub: LearnerPoolServiceAsyncStub = LearnerPoolServiceStub(pool.channel)
    try:
        # Those that somebody hides are not missed.
        gpus = min(len(visible_gpus(os.environ)), gpus_of_machine())
        await work(options, pool, stub.Work, learning.run, choose_device("auto")[0], gpus)
    finally:
        learning.close()
        await store.close()
        await pool.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker with these command-line arguments (by default, those of this process) to its end."""
    serve(run, Role.LEARNER, arguments)


if __name__ == "__main__":
    main()
