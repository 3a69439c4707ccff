"""What a job came to, as far as it follows from its spec alone: equal, to the last bit, whatever befell it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marless.jobs.record import RoundRecord
from marless.services.coordinator.state.run_folder import RunFolder

LEARNING = ("round", "env_steps", "actors", "groups", "versions", "returns", "metrics", "decisions", "lanes")
"""What a record says of learning; the rest, such as times and workers, differs from run to run."""


@dataclass(frozen=True)
class Result:
    """What a job came to."""

    records: Sequence[RoundRecord]
    files: Mapping[str, str]
    """sha256 of each file of the last checkpoint: weights, optimizer states, counters."""


def result_of(folder: RunFolder) -> Result:
    """Raises AssertionError as `check_versions` does."""
    records = list(folder.records())
    check_versions(records)
    newest = folder.checkpoints.path(folder.checkpoints.rounds()[-1])
    return Result(records, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in newest.iterdir()})


def check_versions(records: Sequence[RoundRecord]) -> None:
    """Raises AssertionError unless every round was recorded once and published one version of what it trained."""
    assert [record.round for record in records] == list(range(len(records))), "a round is lost or doubled"
    heads = {group.policy: 1 for record in records[:1] for group in record.groups}
    joint = {name: 1 for record in records[:1] for name in record.versions if name not in heads}
    for record in records:
        heads |= {group.policy: heads.get(group.policy, 0) + 1 for group in record.groups}
        heads |= (joint := {name: version + 1 for name, version in joint.items()})
        assert dict(record.versions) == heads, f"round {record.round} made {record.versions}"


def check_same(ours: Result, undisturbed: Result, *, evaluations: bool = True) -> None:
    """Raises AssertionError, naming the first round that differs, unless both came to the same.

    Which rounds are evaluated depends on where the job ended, if it was resumed: then `evaluations` are left out.
    """
    names = (*LEARNING, "evaluations") if evaluations else LEARNING
    for mine, other in zip(ours.records, undisturbed.records, strict=True):
        for name in names:
            assert getattr(mine, name) == getattr(other, name), f"round {mine.round} differs in its {name}"
    assert ours.files == undisturbed.files, "the last checkpoint differs"


def round_s(records: Sequence[RoundRecord]) -> float:
    """What an undisturbed round takes: the median."""
    return sorted(record.ended_s - record.started_s for record in records)[len(records) // 2]
