"""Carries in the parameter store: each lane of environment copies is a policy there, with one version for each round.

So compare-and-set, epochs, bounds and deletion are those of weights. A carry of other content for a round that has one
already is refused: actors are functions, so the environment must be to blame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from marless.errors import ConflictError, CorruptError, SpecError
from marless.limits import MAX_CARRY_BYTES
from marless.record import LaneRecord
from marless.rpc import roles
from marless.rpc.param_store import LATEST, ParamStore, PolicyWrite
from marless.rpc.v1 import param_store_pb2

PART = "carry"
_PREFIX = "lane/"
"""Policies of agents cannot have such a name: it cannot be one of a checkpoint's files."""


def policy_of(lane: int) -> str:
    """The policy under which the store keeps a lane."""
    return f"{_PREFIX}{lane}"


async def publish(store: ParamStore, job: str, epoch: int, round_: int, start: LaneRecord, data: bytes) -> LaneRecord:
    """Publish the state in which a round has left a lane that started from `start`; idempotent.

    Raises SpecError if another state was published for this round, NotFoundError if the store has lost the lane, and
    the errors of `ParamStore.publish`.
    """
    policy, digest = policy_of(start.lane), hashlib.sha256(data).hexdigest()
    write = PolicyWrite(policy, start.version, f"{job}/{round_}/{policy}/{digest}", {PART: data})
    try:
        versions = await store.publish(job, epoch, round_, [write])
    except ConflictError:
        head = (await store.get(job, {policy: LATEST}, ()))[policy]
        if (head.version, head.round) != (start.version + 1, round_):
            raise
        raise SpecError(
            f"the environment is not deterministic under its seed: in round {round_ + 1}, equal inputs have left "
            f"lane {start.lane} in two states; set actors.episodes: fresh"
        ) from None
    return LaneRecord(lane=start.lane, version=versions[policy], digest=digest)


async def restore(store: ParamStore, job: str, epoch: int, round_: int, lane: LaneRecord, data: bytes) -> None:
    """Publish a carry of a checkpoint as the first version of its lane; idempotent."""
    policy = policy_of(lane.lane)
    write = PolicyWrite(policy, 0, f"{job}/restore-{round_}/{policy}", {PART: data}, first_version=lane.version)
    await store.publish(job, epoch, round_, [write])


async def fetch(store: ParamStore, job: str, lane: LaneRecord) -> bytes:
    """The carry of a lane; raises the errors of `fetch_all`."""
    [(_, data)] = await fetch_all(store, job, (lane,))
    return data


async def fetch_all(store: ParamStore, job: str, lanes: Sequence[LaneRecord]) -> list[tuple[LaneRecord, bytes]]:
    """The carry of each lane, in order.

    Raises NotFoundError if the store has lost one, CorruptError if one has another digest.
    """
    if not lanes:
        return []
    stored = await store.get(job, {policy_of(each.lane): each.version for each in lanes}, (PART,))
    found = [(each, bytes(stored[policy_of(each.lane)].blobs[PART])) for each in lanes]
    for each, data in found:
        if hashlib.sha256(data).hexdigest() != each.digest:
            raise CorruptError(
                f"carry of lane {each.lane}: version {each.version} is not the one that the job's records name"
            )
    return found


def check_publish(header: param_store_pb2.PublishHeader) -> None:
    """Check the carries of a publish, before its bytes are read.

    Raises PermissionDeniedError if an actor publishes anything else, SpecError for a carry that is too large.
    """
    lanes = [each for each in header.policies if _is_lane(each.policy, {blob.part for blob in each.blobs})]
    roles.check_policies(only_lanes=len(lanes) == len(header.policies))
    if any(blob.bytes > MAX_CARRY_BYTES for lane in lanes for blob in lane.blobs):
        raise SpecError(f"a carry has {MAX_CARRY_BYTES:,} bytes at most")


def _is_lane(policy: str, parts: Collection[str]) -> bool:
    return policy.startswith(_PREFIX) and set(parts) == {PART}
