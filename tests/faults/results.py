"""What a job came to, as far as it follows from its spec alone: equal, to the last bit, whatever befell it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from marless.jobs.record import RoundRecord
from tests.faults.rig import Disturbed, Rig

_serials = count()
_FACTS = ("round", "env_steps", "actors", "groups", "versions", "returns", "evaluations", "metrics", "decisions")


@dataclass(frozen=True)
class Result:
    """The learning of a job."""

    weights: str
    """sha256 of all files of the last checkpoint: weights, optimizer states, counters."""
    rounds: Sequence[Mapping[str, object]]
    """What each record says of learning."""


def check_versions(records: Sequence[RoundRecord]) -> None:
    """Raises AssertionError unless every round was recorded once and published one version of what it trained."""
    assert [record.round for record in records] == list(range(len(records))), "a round is lost or doubled"
    heads = {group.policy: 1 for record in records[:1] for group in record.groups}
    joint = {name: 1 for record in records[:1] for name in record.versions if name not in heads}
    for record in records:
        heads |= {group.policy: heads.get(group.policy, 0) + 1 for group in record.groups}
        heads |= (joint := {name: version + 1 for name, version in joint.items()})
        assert dict(record.versions) == heads, f"round {record.round} made {record.versions}"


def result_of(job: Disturbed) -> Result:
    """Raises AssertionError as `check_versions` does."""
    records = job.records()
    check_versions(records)
    newest = max((job.folder / "checkpoints").glob("round-*"))
    digest = hashlib.sha256()
    for path in sorted(newest.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return Result(digest.hexdigest(), [{name: getattr(record, name) for name in _FACTS} for record in records])


def same(job: Disturbed, undisturbed: Result) -> None:
    """Raises AssertionError, naming the first round that differs, unless this job came to the same."""
    ours = result_of(job)
    for mine, other in zip(ours.rounds, undisturbed.rounds, strict=True):
        assert mine == other, f"round {mine['round']} differs"
    assert ours.weights == undisturbed.weights, "the weights differ"


async def undisturbed(rig: Rig, rounds: int) -> Result:
    """What the small job comes to when nothing befalls it."""
    # Numbered: a name that was submitted before would be answered with the job of that name, which has ended.
    job = await rig.submit(f"undisturbed-{next(_serials)}", rounds)
    await job.succeeded()
    assert set(job.trainings().values()) == {1}
    return result_of(job)


def round_s(records: Sequence[RoundRecord]) -> float:
    """What an undisturbed round takes: the median."""
    return sorted(record.ended_s - record.started_s for record in records)[len(records) // 2]
