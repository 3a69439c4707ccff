"""What a run folder says of where its job stands: the contents of job.json and pending.json."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from marless.record import InvocationRecord, Returns

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
    random: Returns | None = None
    """What a random policy scores, once measured."""
    random_cut: bool = False
    """The job ended before that was measured to the bounds of its spec: it is measured anew when the job is resumed."""
    summary_json: str = ""
    """Once the job has ended."""
    request_id: str = ""
    """Of the request that submitted it."""
    attached: bool = False
    """Belongs to the process that submitted it: not continued by itself once its coordinator was killed."""
    env: str = ""
    """Name of the spec's environment."""
    algorithm: str = ""
    """Name of the spec's algorithm."""
    cancelling: bool = False
    """Its user has asked it to stop after the present round."""
    resumes: int = 0
    """How often it was continued after an interruption or an end."""
    resume_request_id: str = ""
    """Of the request that last resumed it."""
    ended_s: float = 0.0
    """Unix seconds; 0 while it has not ended."""

    @property
    def ended(self) -> bool:
        """True once nothing more happens, unless it is resumed."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class Pending:
    """What came of a round's rollout: the content of pending.json."""

    round: int
    rollout_s: float
    env_steps: int
    returns: Returns | None
    invocations: tuple[InvocationRecord, ...]


STATUS = TypeAdapter(JobStatus)
PENDING = TypeAdapter(Pending)
