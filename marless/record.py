"""RoundRecord: what is known of one round, durable before the next begins. A line of `rounds.jsonl`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marless.errors import CorruptError


@dataclass(frozen=True, kw_only=True)
class Returns:
    """Undiscounted episode returns. "Per agent" means averaged over the agents of an episode."""

    episodes: int
    mean: float
    """Per agent, averaged over episodes."""
    per_agent: Mapping[str, float]
    """Averaged over episodes."""
    standard_error: float
    """Of `mean`, treating the agents of an episode as fully correlated (an upper bound)."""


@dataclass(frozen=True, kw_only=True)
class InvocationRecord:
    """One execution of a function: what is billed. Times are Unix seconds; 0 where a share has none of its own."""

    id: str
    function: str
    name: str
    index: int
    attempt: int
    worker: str
    queued_s: float
    start_s: float
    end_s: float
    vcpu_s: float
    memory_bytes: int
    cold: bool


@dataclass(frozen=True, kw_only=True)
class PhaseSeconds:
    """Wall-clock seconds of a round, by phase, as the coordinator saw them."""

    rollout: float
    update: float
    evaluation: float


@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """Agents that shared one policy, and the version that this round published for it."""

    policy: str
    agents: tuple[str, ...]
    version: int


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """Everything a reader needs to know of one round; numbered from 0."""

    job: str
    round: int
    env_steps: int
    """Sampled for training up to and with this round: all agents act once in one copy."""
    actors: int
    groups: tuple[GroupRecord, ...]
    versions: Mapping[str, int]
    """Heads after this round, of every policy and joint critic."""
    started_s: float
    ended_s: float
    phases: PhaseSeconds
    returns: Returns | None
    """Of the exploring policies; None if no episode ended in this round."""
    evaluation: Returns | None
    """Of the greedy policies, if this round was evaluated."""
    metrics: Mapping[str, Mapping[str, float]]
    """Per policy and joint critic: losses, KL, entropy, explained variance, gradient norms."""
    invocations: tuple[InvocationRecord, ...]
    decisions: Mapping[str, str]
    """Why the next round has the groups and actors it has: "scaling" and "sharing", a sentence each."""

    def to_json(self) -> str:
        """One line of `rounds.jsonl`."""
        data = dataclasses.asdict(self)
        if self.evaluation:
            data["evaluation"]["return"] = self.evaluation.mean  # the figure that readers of the raw file look for
        return json.dumps(data, separators=(",", ":"))


def from_json(line: str) -> RoundRecord:
    """Read one line of `rounds.jsonl`; raises ValueError, KeyError or TypeError if it is not one."""
    data = json.loads(line)
    return RoundRecord(
        **data
        | {
            "groups": tuple(GroupRecord(**group | {"agents": tuple(group["agents"])}) for group in data["groups"]),
            "phases": PhaseSeconds(**data["phases"]),
            "returns": _returns(data["returns"]),
            "evaluation": _returns(data["evaluation"]),
            "invocations": tuple(InvocationRecord(**invocation) for invocation in data["invocations"]),
        }
    )


def read(path: Path, first: int = 0) -> Iterator[RoundRecord]:
    """The records of a `rounds.jsonl` from number `first` on; a last line that a crash cut short is no record.

    Raises CorruptError, naming the line, for any other line that is none.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number < first or not line.endswith("\n"):
                continue
            try:
                record = from_json(line)
            except (ValueError, KeyError, TypeError):
                raise CorruptError(f"{path}, line {number + 1}: this is no round record") from None
            yield record


def _returns(data: dict[str, Any] | None) -> Returns | None:  # Any: JSON
    if data is None:
        return None
    return Returns(**{name: data[name] for name in ("episodes", "mean", "per_agent", "standard_error")})


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a job ended: what `marless train -o json` prints."""

    job: str
    state: str
    reason: str
    rounds: int
    env_steps: int
    greedy: Returns | None
    random: Returns | None
    wall_s: float
    """Since the job was accepted."""
    env_steps_per_s: float
    """Over the rounds, without start-up."""
    run_dir: str

    def to_json(self) -> str:
        """One JSON object; `return` and `random_return` are means per agent of greedy and random play."""
        data = dataclasses.asdict(self)
        greedy, random = data.pop("greedy"), data.pop("random")
        headline = {
            "return": greedy and greedy["mean"],
            "random_return": random and random["mean"],
            "return_per_agent": greedy and greedy["per_agent"],
            "random_return_per_agent": random and random["per_agent"],
        }
        return json.dumps(data | headline)
