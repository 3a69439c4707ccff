"""The four real services in this process, with all their RPCs as the descriptors have them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from google.protobuf.descriptor import MethodDescriptor

from marless.rpc import v1
from marless.rpc.server import serving
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import parse as actor_pool_config
from marless.services.coordinator import __main__ as coordinator
from marless.services.coordinator.config import parse as coordinator_config
from marless.services.learner_pool import __main__ as learner_pool
from marless.services.learner_pool.config import parse as learner_pool_config
from marless.services.param_store import __main__ as param_store
from marless.services.param_store.__main__ import parse as param_store_config

MODULES = [
    importlib.import_module(f"marless.rpc.v1.{name}")
    for _, name, _ in pkgutil.iter_modules(v1.__path__)
    if name.endswith("_pb2")
]
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


@asynccontextmanager
async def four_services(folder: Path, redis_url: str, *extra: str) -> AsyncIterator[dict[str, str]]:
    """Addresses by the name of each service's proto, e.g. "CoordinatorService"."""
    at = {name: f"unix:{folder}/{name}.sock" for name in ("param_store", "actor_pool", "learner_pool", "coordinator")}

    def listen(name: str) -> list[str]:
        return ["--listen", at[name], *extra]

    store = ["--param-store", at["param_store"]]
    pools = ["--actor-pool", at["actor_pool"], "--learner-pool", at["learner_pool"], *store]
    configs = (
        (param_store, param_store_config([*listen("param_store"), "--redis-url", redis_url])),
        (actor_pool, actor_pool_config([*listen("actor_pool"), *store])),
        (learner_pool, learner_pool_config([*listen("learner_pool"), *store, "--spool", str(folder)])),
        (coordinator, coordinator_config([*listen("coordinator"), *pools, "--runs", str(folder / "runs")])),
    )
    async with AsyncExitStack() as stack:
        for module, config in configs:
            build = module.build

            def built(address: str, build=build, config=config):
                return build(config, address)

            await stack.enter_async_context(serving(config.server, built))
        yield {
            "ParamStoreService": at["param_store"],
            "ActorPoolService": at["actor_pool"],
            "LearnerPoolService": at["learner_pool"],
            "CoordinatorService": at["coordinator"],
        }
