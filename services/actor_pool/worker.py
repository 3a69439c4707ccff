"""`python -m services.actor_pool.worker`: one actor worker process. It starts fast, as it does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from marless.fleet.session import work
from marless.fleet.worker_process import WorkerOptions, serve
from marless.rpc.caches import Caches
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.relay import Relay
from marless.rpc.roles import Role
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from services.actor_pool.actor import Actor

if TYPE_CHECKING:
    from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceAsyncStub


async def run(options: WorkerOptions, make: Callable[..., Actor] = Actor) -> None:
    """Connect to the pool, and run its tasks until it releases this worker."""
    pool = Peer(options.pool, options.security, "actor_pool")
    store = Peer(options.param_store, options.security, "param_store")
    caches = Caches(ParamStore(store), options.caches, options.security, options.worker)
    relay = Relay(options.relay, options.security) if options.relay else None
    actor = make(ParamStore(store), options.security, caches, relay)
    through = relay.peer if relay and await relay.serves() else pool
    stub: ActorPoolServiceAsyncStub = ActorPoolServiceStub(through.channel)
    try:
        await work(options, through, stub.Work, actor.run)
    finally:
        await actor.close()
        if relay:
            await relay.close()
        await caches.close()
        await store.close()
        await pool.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker with these command-line arguments (by default, those of this process) to its end."""
    serve(run, Role.ACTOR, arguments)


if __name__ == "__main__":
    main()
