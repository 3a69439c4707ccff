"""The acting weights of other learners, over which an algorithm truncates the ratios of a gradient."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from marless.core.errors import NotFoundError
from marless.core.state import Arrays
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.nets.serial import decode_acting
from marless.rpc.concurrency import gather
from marless.rpc.param_store import ParamStore
from marless.rpc.v1 import learner_pool_pb2

_PART = "acting"


def are_read(config: AlgorithmConfig) -> bool:
    """True if the learner of this algorithm reads `RoundInput.peers`."""
    return getattr(config, "truncation", "none") != "none"


async def weights(
    store: ParamStore, job: str, peers: Iterable[learner_pool_pb2.VersionSet], policies: Collection[str]
) -> tuple[Mapping[str, Arrays], ...]:
    """The acting weights of these policies for each peer; equal peers are given once, and versions that are gone left
    out. The least ratio over equal peers is that of one of them.
    """
    given = (sorted((each.policy, each.version) for each in peer.versions) for peer in peers)
    sets = dict.fromkeys(tuple(each for each in one if each[0] in policies) for one in given)
    found = await gather(_of_one(store, job, dict(each)) for each in sets)
    return tuple(each for each in found if each)


async def _of_one(store: ParamStore, job: str, versions: Mapping[str, int]) -> dict[str, Arrays]:
    if not versions:
        return {}
    try:
        stored = await store.get(job, versions, (_PART,))
    except NotFoundError:
        # One of them is gone; the store does not say that the others are there, so each is asked for by itself.
        if len(versions) == 1:
            return {}
        alone = await gather(_of_one(store, job, {name: version}) for name, version in versions.items())
        return {name: arrays for each in alone for name, arrays in each.items()}
    return {name: decode_acting(bytes(each.blobs[_PART])).acting for name, each in stored.items()}
