"""Checkpoints of a job: copied between the store and the disk as bytes, and the one that a new job starts from.

The coordinator interprets the bytes of the latter only, to refuse policies that do not fit the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marless.core.errors import CorruptError, NotFoundError, SpecError
from marless.core.failpoint import failpoint
from marless.core.group import Group, LaneRecord, Versions
from marless.core.limits import is_id
from marless.core.state import REPLAY
from marless.jobs.job import PreparedJob
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.rpc import carries
from marless.rpc.concurrency import to_the_end
from marless.rpc.param_store import PolicyStore, PolicyWrite
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.uploads import PREFIX, FileUploads
from marless.storage.checkpoint import (
    EARLIER,
    PARTS,
    Checkpoint,
    CheckpointProgress,
    SavedLane,
    SavedPolicy,
    newest,
    read,
)


class Snapshots:
    """Saves the versions of one job to disk, and restores them."""

    def __init__(self, job_id: str, folder: RunFolder, store: PolicyStore, log: JobLog) -> None:
        self._id = job_id
        self._folder = folder
        self._store = store
        self._log = log

    async def save(
        self,
        progress: CheckpointProgress,
        versions: Versions,
        acting: Versions,
        lanes: Sequence[LaneRecord],
        *,
        keep: int,
        spared: Collection[int] = (),
    ) -> None:
        """Copy these versions and lanes to disk, unless the round has a checkpoint.

        Of policies that act in the next round with an earlier version, `acting`, that one is saved, too. All but the
        `keep` newest checkpoints, and those of the rounds `spared`, are dropped.
        """
        # After a restart, the checkpoint of the newest round is due once more.
        if await asyncio.to_thread(self._folder.checkpoints.has, progress.round):
            return
        stored = await self._store.get(self._id, dict(versions), PARTS)
        earlier = {name: version for name, version in acting.items() if version < versions[name]}
        acts = await self._store.get(self._id, earlier, ("acting",)) if earlier else {}
        policies = {}
        for name, each in stored.items():
            blobs = {**each.blobs, EARLIER: acts[name].blobs["acting"]} if name in acts else each.blobs
            policies[name] = SavedPolicy(version=each.version, blobs=blobs)
        held = [SavedLane(lane, data) for lane, data in await carries.fetch_all(self._store, self._id, lanes)]
        checkpoint = Checkpoint(progress=progress, policies=policies, lanes=tuple(held))
        await to_the_end(self._folder.save_checkpoint, checkpoint, keep, spared)
        self._log.info("checkpoint.saved", round=progress.round)

    def newest(self, rounds: int) -> Checkpoint | None:
        """The newest readable checkpoint of the first `rounds` rounds; None if there are no checkpoints.

        Raises CorruptError if there are some and none is readable.
        """
        problem = ""
        for round_ in reversed(self._folder.checkpoints.rounds()):
            if round_ > rounds:
                continue
            try:
                return self._folder.checkpoints.load(round_, (*PARTS, EARLIER), lanes=True)
            except (CorruptError, NotFoundError) as error:
                self._log.error("checkpoint.unreadable", round=round_, error=str(error))
                problem = problem or str(error)
        if problem:
            raise CorruptError(f"the store has lost the job's versions, and no checkpoint can be read: {problem}")
        return None

    async def restore(self, checkpoint: Checkpoint, epoch: int) -> None:
        """Publish a checkpoint's policies and carries under their original versions.

        The store must hold no version of the job.
        """
        failpoint("coordinator.restore.before")
        round_ = checkpoint.progress.round
        for name, saved in checkpoint.policies.items():
            await self._restore(epoch, round_, name, saved)
        for held in checkpoint.lanes:
            await carries.restore(self._store, self._id, epoch, round_, held.lane, held.data)
        failpoint("coordinator.restore.after")

    async def start_from(self, checkpoint: Checkpoint, epoch: int) -> None:
        """Publish another job's checkpoint as the first versions of this one; idempotent."""
        for name, saved in checkpoint.policies.items():
            await self._publish(epoch, 0, name, saved, "init", 1)

    async def _restore(self, epoch: int, round_: int, name: str, saved: SavedPolicy) -> None:
        """Publish a policy under its version, after the earlier one that acts in the next round, if there is one."""
        what, version = f"restore-{round_}", saved.version
        if EARLIER not in saved.blobs:
            await self._publish(epoch, round_, name, saved, what, version)
            return
        # In this order, because the store takes a version only as the successor of its head. So both have again the
        # numbers by which records name them.
        earlier = SavedPolicy(version=version - 1, blobs={"acting": saved.blobs[EARLIER]})
        await self._publish(epoch, round_, name, earlier, f"{what}/earlier", version - 1)
        newest = {part: blob for part, blob in saved.blobs.items() if part != EARLIER}
        write = PolicyWrite(name, version - 1, f"{self._id}/{what}/{name}", newest)
        await self._store.publish(self._id, epoch, round_, [write])

    async def _publish(self, epoch: int, round_: int, name: str, saved: SavedPolicy, what: str, version: int) -> None:
        write = PolicyWrite(
            policy=name, expected=0, req_id=f"{self._id}/{what}/{name}", blobs=saved.blobs, first_version=version
        )
        await self._store.publish(self._id, epoch, round_, [write])


def start_checkpoint(job: PreparedJob, job_id: str, runs: Path, uploads: FileUploads) -> Path | None:
    """The directory of the checkpoint that a new job starts from, checked; None if it starts from random weights.

    Raises SpecError.
    """
    if not job.spec.start.checkpoint:
        return None
    source = find_start(job.spec.start.checkpoint, runs, uploads)
    if (runs / job_id) in source.resolve().parents:
        raise SpecError("start.checkpoint: a job cannot start from the job that it replaces; choose another id")
    _check_nets(load_start(source, job), job)
    return source


def find_start(reference: str, runs: Path, uploads: FileUploads) -> Path:
    """The directory of the checkpoint that `reference` names: the newest of a job in `runs`, or an uploaded one.

    Raises NotFoundError for an unknown upload, SpecError for a job without a checkpoint, for a damaged checkpoint, and
    for any other reference, paths above all: a client must not read files of this machine.
    """
    if reference.startswith(PREFIX):
        directory = uploads.find(reference)
    elif is_id(reference):
        directory = _of_job(reference, runs)
    else:
        raise SpecError(
            f"start.checkpoint: {reference[:80]!r} is no job id; the command and the Python client send a checkpoint "
            "that lies where they run, a coordinator opens no path"
        )
    _read_start(directory)
    return directory


def _of_job(job: str, runs: Path) -> Path:
    try:
        directory = newest(runs / job)
    except NotFoundError:
        raise SpecError(
            f"start.checkpoint: there is no job {job!r} here, or it has no checkpoint yet; the path of a directory on "
            f"your machine has a slash in it: ./{job}"
        ) from None
    except CorruptError as error:
        raise SpecError(f"start.checkpoint: {error}") from None
    if directory.resolve() != runs.resolve() / directory.relative_to(runs):
        raise SpecError(f"start.checkpoint: job {job!r} is a link; links are not followed")
    return directory


def load_start(directory: Path, job: PreparedJob) -> Checkpoint:
    """Read the checkpoint that a job starts from, with its policies renamed to this job's first groups.

    A group starts from the policy of its own name if the checkpoint's agents used one of that name, else from the one
    policy that all its agents used; agents that shared a policy can so start from a copy each. Policies that no agent
    used when the checkpoint was written are left out, and so are replay buffers, which hold another job's rounds.
    Raises SpecError if the checkpoint does not fit this job.
    """
    checkpoint = _read_start(directory)
    _check_family(checkpoint.progress.algorithm, job.spec.algorithm)
    played = checkpoint.progress.groups
    sources = {group.policy: _source(group, played) for group in job.sharing.decide(()).groups}
    if missing := [policy for policy, source in sources.items() if source not in checkpoint.policies]:
        raise SpecError(
            f"start.checkpoint holds no policy {', '.join(missing)}; it has {', '.join(sorted(played))}: "
            "give this job the groups (sharing.groups) of the job that wrote it"
        )
    if strangers := sorted(played.keys() - sources.values()):
        raise SpecError(f"start.checkpoint holds {', '.join(strangers)}, which this job does not use")
    policies = {policy: checkpoint.policies[source] for policy, source in sources.items()}
    policies |= {name: each for name, each in checkpoint.policies.items() if name not in played and _is_joint(each)}
    return replace(checkpoint, policies=policies)


def _source(group: Group, played: Mapping[str, Sequence[str]]) -> str:
    """The policy of a checkpoint that a group starts from; "" if none fits."""
    if group.policy in played:
        return group.policy
    policies = {policy for policy, agents in played.items() if not set(agents).isdisjoint(group.agents)}
    known = {agent for agents in played.values() for agent in agents}
    return policies.pop() if len(policies) == 1 and known.issuperset(group.agents) else ""


def _check_family(saved: str, wanted: AlgorithmConfig) -> None:
    """Raise SpecError for policies of another algorithm family; learners check what differs within a family."""
    if saved in ("", wanted.name):
        return
    try:
        theirs, ours = algorithms.algorithm(saved).config_type.family, wanted.family
    except SpecError:
        theirs = ours = ""
    if not ours or theirs != ours:
        raise SpecError(
            f"start.checkpoint holds policies that {saved} trained, and {wanted.name} cannot go on with them: their "
            f"outputs mean other things; set algorithm.name: {saved}, or leave start.checkpoint out"
        )


def _check_nets(checkpoint: Checkpoint, job: PreparedJob) -> None:
    """Raise SpecError, naming what differs, for policies with other nets than those of the section `model` of a job.

    Learners would refuse their weights later, in the middle of the job's start. An algorithm without a family may have
    nets of its own.
    """
    if not job.spec.algorithm.family:
        return
    for group in job.sharing.decide(()).groups:
        try:
            found = _nets(checkpoint.policies[group.policy])
        except CorruptError as error:
            raise SpecError(f"start.checkpoint: {group.policy}: {error}") from None
        model = job.spec.nets
        wanted = {
            "net": model.kind,
            "hidden": list(model.hidden),
            "activation": model.activation,
            "normalise_observations": model.normalise_observations,
            "observation_clip": model.observation_clip if model.normalise_observations else None,
        }
        if differing := [name for name in wanted if found[name] != wanted[name]]:
            theirs, ours = (", ".join(f"{name} {nets[name]}" for name in differing) for nets in (found, wanted))
            raise SpecError(
                f"start.checkpoint: {group.policy} has a model with {theirs}, this job one with {ours}; give this job "
                "the model of the job that wrote the checkpoint, or leave start.checkpoint out"
            )


def _nets(saved: SavedPolicy) -> dict[str, object]:
    """What a policy's nets are like, by the fields of `model`; raises CorruptError."""
    from marless.learning.nets import normalising  # imported here: see `_is_joint`
    from marless.learning.nets.acting_nets import hidden_of
    from marless.learning.nets.kinds import MLP, OURS
    from marless.learning.nets.serial import decode_acting

    state = decode_acting(bytes(saved.blobs["acting"]))
    kind, units = state.metadata.get("kind", MLP), state.metadata.get("hidden", "")
    given = [int(each) for each in units.split(",") if each.isascii() and each.isdecimal()]
    hidden = list(hidden_of(state.acting, kind)) if kind in OURS else given
    normalises, clip = normalising.parse(state.metadata)
    return {
        "net": kind,
        "hidden": hidden,
        "activation": state.metadata.get("activation", ""),
        "normalise_observations": normalises,
        "observation_clip": clip,
    }


def _is_joint(saved: SavedPolicy) -> bool:
    """True for a joint critic or mixer; False for the policies of agents and for replay buffers."""
    # imported here, because the coordinator loads NumPy only for such a job
    from marless.learning.nets.serial import decode_acting

    try:
        state = decode_acting(bytes(saved.blobs["acting"]))
    except CorruptError as error:
        raise SpecError(f"start.checkpoint: {error}") from None
    return not state.acting and state.metadata.get("kind") != REPLAY


def _read_start(directory: Path) -> Checkpoint:
    try:
        return read(directory)
    except (CorruptError, NotFoundError) as error:
        raise SpecError(f"start.checkpoint: {error}") from None
