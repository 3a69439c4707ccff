"""Carries in the parameter store: each lane of environment copies is a policy there, with one version for each round.

So compare-and-set, epochs, bounds and deletion are those of weights. A carry of other content for a round that has one
already is refused: actors are functions, so the environment must be to blame.

Actors return small carries with their receipts, and the coordinator publishes all of them in one call while policies
are updated. They publish large ones themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from marless.core.errors import ConflictError, CorruptError, SpecError
from marless.core.group import LaneRecord
from marless.core.limits import LANE_BYTES, MAX_CARRY_BYTES, MAX_RETURNED_BYTES
from marless.rpc import roles
from marless.rpc.param_store import LATEST, PolicyListing, PolicyStore, PolicyWrite
from marless.rpc.v1 import param_store_pb2

PART = "carry"
_PREFIX = "lane/"
"""Policies of agents cannot have such a name: it cannot be one of a checkpoint's files."""


def policy_of(lane: int) -> str:
    """The policy under which the store keeps a lane."""
    return f"{_PREFIX}{lane}"


def after(start: LaneRecord, data: bytes) -> LaneRecord:
    """The record of a lane that a round has left in this state, having started from `start`."""
    return LaneRecord(lane=start.lane, version=start.version + 1, digest=hashlib.sha256(data).hexdigest())


def is_returned(data: bytes, actors: int) -> bool:
    """True if each of so many actors may return a carry of this size with its receipt."""
    return (len(data) + LANE_BYTES) * actors <= MAX_RETURNED_BYTES


async def publish(store: PolicyStore, job: str, epoch: int, round_: int, left: Mapping[LaneRecord, bytes]) -> None:
    """Publish the states in which a round has left lanes, by their records (see `after`); idempotent.

    Raises SpecError if another state was published for this round, NotFoundError if the store has lost a lane, and the
    errors of `PolicyStore.publish`.
    """
    # The digest is part of the key: an equal carry that is published again is answered with its version, and another
    # one for the same round is a conflict.
    writes = [
        PolicyWrite(name, lane.version - 1, f"{job}/{round_}/{name}/{lane.digest}", {PART: data})
        for lane, data in left.items()
        for name in (policy_of(lane.lane),)
    ]
    if not writes:
        return
    try:
        await store.publish(job, epoch, round_, writes)
    except ConflictError:
        # Other conflicts have other causes; the environment is to blame only if this very round has left another state.
        heads = await store.get(job, {policy_of(lane.lane): LATEST for lane in left}, (PART,))
        for lane in left:
            head = heads[policy_of(lane.lane)]
            known = (head.version, head.round) == (lane.version, round_)
            if known and hashlib.sha256(head.blobs[PART]).hexdigest() != lane.digest:
                raise SpecError(
                    f"the environment is not deterministic under its seed: in round {round_ + 1}, equal inputs have "
                    f"left lane {lane.lane} in two states; set actors.episodes: fresh"
                ) from None
        raise


async def restore(store: PolicyStore, job: str, epoch: int, round_: int, lane: LaneRecord, data: bytes) -> None:
    """Publish a carry of a checkpoint as the first version of its lane; idempotent."""
    policy = policy_of(lane.lane)
    write = PolicyWrite(policy, 0, f"{job}/restore-{round_}/{policy}", {PART: data}, first_version=lane.version)
    await store.publish(job, epoch, round_, [write])


async def fetch(store: PolicyStore, job: str, lane: LaneRecord) -> bytes:
    """The carry of a lane; raises the errors of `fetch_all`."""
    [(_, data)] = await fetch_all(store, job, (lane,))
    return data


async def fetch_all(store: PolicyStore, job: str, lanes: Sequence[LaneRecord]) -> list[tuple[LaneRecord, bytes]]:
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


def is_among(policies: Mapping[str, PolicyListing], lane: LaneRecord) -> bool:
    """True if this version of the lane's carry is among the listed policies of its job."""
    listed = policies.get(policy_of(lane.lane))
    return listed is not None and lane.version in listed.versions


def check_publish(header: param_store_pb2.PublishHeader) -> None:
    """Check the carries of a publish, before its bytes are read.

    Raises PermissionDeniedError if an actor publishes anything else, SpecError for a carry that is too large.
    """
    lanes = [
        each
        for each in header.policies
        if each.policy.startswith(_PREFIX) and {blob.part for blob in each.blobs} == {PART}
    ]
    roles.check_policies(only_lanes=len(lanes) == len(header.policies))
    if any(blob.bytes > MAX_CARRY_BYTES for lane in lanes for blob in lane.blobs):
        raise SpecError(f"a carry has {MAX_CARRY_BYTES:,} bytes at most")
