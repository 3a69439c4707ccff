"""`load_policy`: loads a team from a run folder, a checkpoint, a job id or an exported file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from marless.core import documents, regular_files
from marless.core.errors import CorruptError, NotFoundError, SpecError
from marless.learning.data.returns import EpisodeReturns
from marless.learning.envs.allowed import MASK_OPTION
from marless.learning.nets.serial import decode_acting
from marless.learning.policies import onnx_file
from marless.learning.policies.policy import Origin, Policy
from marless.learning.policies.policy_file import options_of, read_policies, text_of
from marless.learning.policies.team import Team
from marless.storage import checkpoint, places, round_file
from marless.storage.checkpoint import MANIFEST, Checkpoint, DiskCheckpoints, WhichRound

_ACTING = ("acting",)
_LATER_ROUNDS = 200
"""Rounds in which the evaluation of a policy is looked for: it may take longer than some asynchronous versions."""


def load_policy(
    path_or_job: str | Path,
    *,
    round: WhichRound = None,  # noqa: A002  # the project's term
    runs: str | Path | None = None,
) -> Team:
    """Load the newest policies of a job, those after `round` rounds, or the "best", ready to act.

    Takes the path of a run folder, a checkpoint or an exported team or policy, or a job id, which is looked up in
    `runs` (default: $MARLESS_RUNS, else ./runs). A path takes precedence; if a job in `runs` has the same name, a
    warning is issued. The best are those of the checkpoint whose greedy evaluation had the highest mean return: with
    `checkpoint.best`, a job keeps it. `s3://bucket/prefix` names any of these in a bucket, which is read with the
    credentials that programs of AWS find (extra `aws`). Does not need torch.

    Raises NotFoundError if nothing is found or there is no such checkpoint, CorruptError if a file is damaged or no
    file, UnavailableError if the system refuses to read it, and SpecError for a `round` of anything but a job, or a
    file of another kind. For a bucket, also UnreachableError,
    UnauthenticatedError and PermissionDeniedError.
    """
    if places.is_address(path_or_job):
        from marless.storage.bucket import reading

        with reading.local_copy(str(path_or_job), reading.checkpoint(round, acting_only=True)) as path:
            team = load_policy(path, round=round)
        team.origin = replace(team.origin, run_dir=None)  # the copy is gone
        return team
    home = Path(runs or os.environ.get("MARLESS_RUNS") or "runs")
    path = _find(str(path_or_job), home)
    if path == Path(path_or_job) and (note := places.ambiguity_note(str(path_or_job), home)):
        warnings.warn(note, stacklevel=2)
    if _is_run(path):
        return _from_run(path, round)
    if round is not None:
        raise SpecError(
            f"round {round} of {path}: that is a single checkpoint; to choose a round, give its job or run folder"
        )
    if not regular_files.is_directory(path):
        held = (onnx_file.read_onnx if path.suffix == onnx_file.SUFFIX else read_policies)(path)
        return Team.of(held.policies, held.origin, held.card)
    run_dir = path.resolve().parent.parent
    return _team(checkpoint.read(path, _ACTING), run_dir if _is_run(run_dir) else None)


def _find(wanted: str, runs: Path) -> Path:
    for path in (Path(wanted), runs / wanted):
        # A directory that is none of these does not hide a job of the same name.
        is_file = regular_files.is_there(path) and not regular_files.is_directory(path)
        if is_file or regular_files.is_there(path / MANIFEST) or _is_run(path):
            return path
    raise NotFoundError(
        f"{wanted}: there is no such policy file, checkpoint or run folder here, and no such job in {runs.resolve()}"
    )


def _is_run(path: Path) -> bool:
    return any(regular_files.is_there(path / name) for name in ("job.json", "spec.yaml"))


def _from_run(run_dir: Path, round_: WhichRound) -> Team:
    checkpoints = DiskCheckpoints(run_dir / "checkpoints")
    name = run_dir.resolve().name
    if isinstance(round_, str):
        if round_ != "best":
            raise SpecError(f"round {round_!r} of {run_dir}: give a number of rounds, or 'best'")
        round_ = _best(run_dir, checkpoints.rounds())
    while round_ is None and (known := checkpoints.rounds()):
        try:
            return _team(checkpoints.load(known[-1], _ACTING), run_dir)
        except NotFoundError:
            if checkpoints.rounds()[-1:] == known[-1:]:  # else the running job has just replaced it
                raise
    if round_ is None:
        raise NotFoundError(
            f"job {name} has no checkpoint yet; one is written every checkpoint.every rounds and at the end"
        )
    known = checkpoints.rounds()
    if round_ not in known:
        have = ", ".join(map(str, known)) or "none yet"
        raise NotFoundError(f"job {name} has no checkpoint after {round_} rounds; there is {have}")
    return _team(checkpoints.load(round_, _ACTING), run_dir)


def _best(run_dir: Path, rounds: Sequence[int]) -> int:
    """The one of these rounds, which have checkpoints, with the highest greedy return; of equal ones the newest."""
    evaluated = [(found.mean, each) for each in rounds if (found := _reported(run_dir, each))]
    if not evaluated:
        name, have = run_dir.resolve().name, ", ".join(map(str, rounds)) or "none yet"
        raise NotFoundError(
            f"job {name} has no checkpoint that was evaluated, of which one could be the best; there is {have}. With "
            "checkpoint.best, a job keeps the best one of those that evaluation.every asks for"
        )
    return max(evaluated)[1]


def _team(saved: Checkpoint, run_dir: Path | None) -> Team:
    progress = saved.progress
    if not progress.groups:
        raise CorruptError(f"the checkpoint after {progress.round} rounds does not say which policy each agent plays")
    policies = []
    for name, agents in progress.groups.items():
        if name not in saved.policies:
            raise CorruptError(
                f"the checkpoint after {progress.round} rounds lacks policy {name} of {', '.join(agents)}"
            )
        held = saved.policies[name]
        if "acting" not in held.blobs:
            raise CorruptError(f"the checkpoint after {progress.round} rounds lacks the weights of policy {name}")
        state = decode_acting(bytes(held.blobs["acting"]))
        policies.append(Policy(name=name, agents=agents, version=held.version, state=state))
    return Team.of(policies, _origin(run_dir, progress.round))


def _origin(run_dir: Path | None, round_: int) -> Origin:
    """Read the origin from the run folder's resolved spec, without validating it, which would import pydantic."""
    if run_dir is None:
        return Origin(round=round_)
    path = run_dir / "spec.yaml"
    try:
        spec = documents.stored(path)
        if not isinstance(spec, dict):
            raise TypeError(spec)
        mask = spec["env"].get("mask", "auto")
        return Origin(
            job=run_dir.resolve().name,
            round=round_,
            algorithm=text_of(spec["algorithm"]["name"]),
            env=text_of(spec["env"]["name"]),
            env_options={**options_of(spec["env"]["options"]), **({} if mask == "auto" else {MASK_OPTION: mask})},
            run_dir=run_dir,
        )
    except (SpecError, NotFoundError, TypeError, KeyError):
        raise CorruptError(f"{path}: it is missing, or not a job's resolved spec") from None


def reported(origin: Origin) -> EpisodeReturns | None:
    """The greedy evaluation that the job has recorded of these policies; None if there is none, or no run folder.

    Raises CorruptError if the job's records are damaged.
    """
    return _reported(origin.run_dir, origin.round) if origin.run_dir and origin.round else None


def _reported(run_dir: Path, round_: int) -> EpisodeReturns | None:
    # The round after may hold it, as an evaluation of an older policy; under schedule `stellaris` one of many after.
    own_and_later = islice(round_file.read(run_dir / "rounds.jsonl", round_ - 1), _LATER_ROUNDS)
    later = (each for record in own_and_later for each in record.evaluations)
    found = next((each for each in later if each.rounds >= round_), None)
    return found.returns if found and found.rounds == round_ else None
