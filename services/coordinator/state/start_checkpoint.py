"""`start.checkpoint`: finds and loads the checkpoint that a job's policies start from instead of random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marless.core.errors import CorruptError, NotFoundError, SpecError
from marless.core.group import Group
from marless.core.job_id import is_id
from marless.core.state import REPLAY
from marless.jobs.job import PreparedJob
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.storage.checkpoint import Checkpoint, SavedPolicy, newest, read
from services.coordinator.state.uploads import PREFIX, FileUploads


def of(job: PreparedJob, job_id: str, runs: Path, uploads: FileUploads) -> Path | None:
    """The directory of the checkpoint that a new job starts from, checked; None if it starts from random weights.

    Raises SpecError.
    """
    if not job.spec.start.checkpoint:
        return None
    source = find(job.spec.start.checkpoint, runs, uploads)
    if (runs / job_id) in source.resolve().parents:
        raise SpecError("start.checkpoint: a job cannot start from the job that it replaces; choose another id")
    _check_nets(load(source, job), job)
    return source


def find(reference: str, runs: Path, uploads: FileUploads) -> Path:
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
    _read(directory)
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


def load(directory: Path, job: PreparedJob) -> Checkpoint:
    """Read the checkpoint that a job starts from, with its policies renamed to this job's first groups.

    A group starts from the policy of its own name if the checkpoint's agents used one of that name, else from the one
    policy that all its agents used; agents that shared a policy can so start from a copy each. Policies that no agent
    used when the checkpoint was written are left out, and so are replay buffers, which hold another job's rounds.
    Raises SpecError if the checkpoint does not fit this job.
    """
    checkpoint = _read(directory)
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
        wanted = {"net": model.kind, "hidden": list(model.hidden), "activation": model.activation}
        if differing := [name for name in wanted if found[name] != wanted[name]]:
            theirs, ours = (", ".join(f"{name} {nets[name]}" for name in differing) for nets in (found, wanted))
            raise SpecError(
                f"start.checkpoint: {group.policy} has a model with {theirs}, this job one with {ours}; give this job "
                "the model of the job that wrote the checkpoint, or leave start.checkpoint out"
            )


def _nets(saved: SavedPolicy) -> dict[str, object]:
    """What a policy's nets are like, by the fields of `model`; raises CorruptError."""
    from marless.learning.nets.acting_nets import hidden_of  # imported here: see `_is_joint`
    from marless.learning.nets.kinds import MLP, OURS
    from marless.learning.nets.serial import decode_acting

    state = decode_acting(bytes(saved.blobs["acting"]))
    kind, units = state.metadata.get("kind", MLP), state.metadata.get("hidden", "")
    given = [int(each) for each in units.split(",") if each.isascii() and each.isdecimal()]
    hidden = list(hidden_of(state.acting, kind)) if kind in OURS else given
    return {"net": kind, "hidden": hidden, "activation": state.metadata.get("activation", "")}


def _is_joint(saved: SavedPolicy) -> bool:
    """True for a joint critic or mixer; False for the policies of agents and for replay buffers."""
    # imported here, because the coordinator loads NumPy only for such a job
    from marless.learning.nets.serial import decode_acting

    try:
        state = decode_acting(bytes(saved.blobs["acting"]))
    except CorruptError as error:
        raise SpecError(f"start.checkpoint: {error}") from None
    return not state.acting and state.metadata.get("kind") != REPLAY


def _read(directory: Path) -> Checkpoint:
    try:
        return read(directory)
    except (CorruptError, NotFoundError) as error:
        raise SpecError(f"start.checkpoint: {error}") from None
