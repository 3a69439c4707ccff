"""The persistent status of a job: the contents of job.json and pending.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from pydantic import TypeAdapter, ValidationError

from marless.core.group import LaneRecord
from marless.jobs.record import Distances, InvocationRecord
from marless.learning.data.returns import EpisodeReturns, Sums

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The content of job.json."""

    job: str
    state: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or CANCELLED."""
    reason: str
    accepted_s: float
    """Unix seconds."""
    random: EpisodeReturns | None = None
    """The returns of the random baseline, once measured."""
    random_cut: bool = False
    """The job ended before the baseline was complete; it is measured again when the job is resumed."""
    summary_json: str = ""
    """The job's Summary as JSON once it has ended, until then ""."""
    request_id: str = ""
    """Id of the request that submitted the job."""
    attached: bool = False
    """The job belongs to the process that submitted it: other coordinators do not continue it."""
    env: str = ""
    """Name of the spec's environment."""
    algorithm: str = ""
    """Name of the spec's algorithm."""
    cancelling: bool = False
    """The user has asked the job to stop after the present round."""
    resumes: int = 0
    """How often the job was continued after an interruption or an end."""
    resume_request_id: str = ""
    """Id of the request that last resumed the job."""
    marless_version: str = ""
    """The version of marless that ran it last."""
    ended_s: float = 0.0
    """Unix seconds; 0 while it has not ended."""
    epoch: int = 0
    """Under schedule `stellaris`: the newest epoch under which a coordinator has worked on the job."""

    takeovers: int = 0
    """How many coordinators in a row have taken the job over, none of which recorded a round or stopped by itself."""
    takeovers_at: int = 0
    """How many rounds were recorded when the first of them did."""

    @property
    def ended(self) -> bool:
        """True in a terminal state, which only `resume` leaves."""
        return self.state in ENDED

    def resumed(self, request_id: str, *, reason: str, attached: bool) -> JobStatus:
        """The status of an ended job that this request continues."""
        return replace(
            self,
            state="PENDING",
            reason=reason,
            attached=attached,
            cancelling=False,
            resumes=self.resumes + 1,
            resume_request_id=request_id,
            ended_s=0.0,
            summary_json="",
            takeovers=0,
        )

    def taken_over(self, rounds: int) -> JobStatus:
        """The status once a further coordinator has taken the job over, with this many rounds recorded."""
        again = self.takeovers > 0 and self.takeovers_at == rounds
        return replace(
            self,
            takeovers=self.takeovers + 1 if again else 1,
            takeovers_at=rounds,
            marless_version=version("marless"),
        )


@dataclass(frozen=True, kw_only=True)
class PendingRollout:
    """The result of a round's rollout whose update is not recorded yet: a line of pending.json."""

    round: int
    actors: int
    rollout_s: float
    """Seconds that its round has taken until then; 0 if the round before it was still being trained."""
    env_steps: int
    returns: EpisodeReturns | None
    invocations: tuple[InvocationRecord, ...]
    lanes: tuple[LaneRecord, ...] = ()
    """As in the round's record."""
    broken_episodes: int = 0
    """As in the round's record."""
    arrivals: str = ""
    """Under schedule `stellaris`: what happened since the version before, as in its record."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Under schedule `stellaris`: of the gradients that arrived, as in its record."""
    distances: tuple[Distances, ...] = ()
    """Under schedule `stellaris`: as in its record."""
    sums: Sums | None = None
    """Under schedule `stellaris`: those of `returns`, because more episodes may end before the record is written."""


STATUS = TypeAdapter(JobStatus)
_PENDING = TypeAdapter(PendingRollout)


def pending_lines(pending: Iterable[PendingRollout]) -> bytes:
    """The content of pending.json."""
    return b"".join(_PENDING.dump_json(each) + b"\n" for each in pending)


def pending_of(content: bytes, first: int) -> tuple[PendingRollout, ...]:
    """The rollouts of round `first` and of those that follow it without a gap, from the content of pending.json.

    Lines of other rounds, and what follows a torn one, are left out.
    """
    found: list[PendingRollout] = []
    with suppress(ValidationError):
        for line in content.splitlines():
            pending = _PENDING.validate_json(line)
            if pending.round == first + len(found):
                found.append(pending)
    return tuple(found)
