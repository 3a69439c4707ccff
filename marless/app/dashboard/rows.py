"""`RoundRow`: what the curves of a job need of a round's record, decoded many times faster than the whole record; and
`RoundUpdate`, what a page that shows the job is sent of it.

A line of rounds.jsonl with 100 actors has some ten kilobytes, of which the curves need one: msgspec skips the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from marless.core.errors import CorruptError

_FIRST = re.compile(rb'"attempt": ?(?:[01]|\{"all": ?[01]\})[,}]')
"""How a record writes that an invocation, or all of a table, succeeded at the first attempt; 0: inside a learner."""


class RowReturns(msgspec.Struct, frozen=True):
    """Returns of the episodes of one round."""

    episodes: int
    mean: float
    per_agent: dict[str, float]
    wins: int | None = None

    @property
    def win_rate(self) -> float | None:
        """Fraction of the episodes that were won; None if the environment does not report wins."""
        return None if self.wins is None or not self.episodes else self.wins / self.episodes


class RowEvaluation(msgspec.Struct, frozen=True):
    """A greedy evaluation of the policies after `rounds` rounds."""

    rounds: int
    returns: RowReturns


class RowGroup(msgspec.Struct, frozen=True):
    """A group of agents."""

    policy: str
    agents: tuple[str, ...]
    version: int = 0


class RowDecision(msgspec.Struct, frozen=True):
    """A decision; `inputs` are left as JSON."""

    kind: str
    rule: str
    outcome: str
    reason: str
    inputs: msgspec.Raw = msgspec.Raw(b"{}")


class RowGradient(msgspec.Struct, frozen=True):
    """A gradient of an asynchronous job."""

    staleness: int


class RowAggregation(msgspec.Struct, frozen=True):
    """How a version of an asynchronous job came about."""

    gradients: tuple[RowGradient, ...]
    lost: int = 0
    dropped: int = 0
    refused: int = 0


class RowPhases(msgspec.Struct, frozen=True):
    """Seconds of a round by phase."""

    rollout: float
    update: float
    evaluation: float


class RoundRow(msgspec.Struct, frozen=True):
    """The part of a `RoundRecord` that curves show; fields have the names and units of the record."""

    round: int
    env_steps: int
    actors: int
    groups: tuple[RowGroup, ...]
    started_s: float
    ended_s: float
    phases: RowPhases
    metrics: dict[str, dict[str, float | None]]
    decisions: tuple[RowDecision, ...]
    versions: dict[str, int] = {}
    invocations: msgspec.Raw = msgspec.Raw(b"[]")
    returns: RowReturns | None = None
    evaluation: RowReturns | None = None
    earlier_evaluation: RowEvaluation | None = None
    aggregation: RowAggregation | None = None
    idle_s: float | None = None
    evaluation_given_up: bool = False

    @property
    def spent_s(self) -> float:
        """Seconds of training time: see `RoundRecord.spent_s`."""
        return max(self.idle_s or 0.0, 0.0) + max(self.ended_s - self.started_s, 0.0)

    @property
    def retried(self) -> bool:
        """True if an invocation of this round succeeded only at a later attempt."""
        text = bytes(self.invocations)
        # No name can look like this, because quotes in names are escaped.
        return text.count(b'"attempt":') > len(_FIRST.findall(text))


_DECODER = msgspec.json.Decoder(RoundRow, strict=False)


def decode(line: bytes, number: int, where: str) -> RoundRow:
    """The row of line `number` (from 0) of a job's records; raises CorruptError, naming file and line."""
    try:
        try:
            row = _DECODER.decode(line)
        except msgspec.DecodeError:
            # Python's JSON has NaN and infinity, which msgspec does not take from text.
            data = json.loads(line)
            if isinstance(data, dict):
                for decision in data.get("decisions") or ():
                    decision["inputs"] = msgspec.Raw(json.dumps(_finite(decision.get("inputs") or {})).encode())
                data["invocations"] = msgspec.Raw(
                    json.dumps(data.get("invocations", []), separators=(",", ":")).encode()
                )
            row = msgspec.convert(data, RoundRow, strict=False)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise CorruptError(f"{where}, line {number + 1}: this is not a round record") from None
    if row.round != number:
        raise CorruptError(f"{where}, line {number + 1}: this is the record of round {row.round + 1}")
    return row


def _finite(value: Any) -> Any:  # Any: JSON
    """The same JSON without numbers that are none."""
    match value:
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list():
            return [_finite(each) for each in value]
        case float() if value - value != 0.0:
            return None
    return value


@dataclass(frozen=True)
class Mark:
    """Something that a curve has a mark for: a fault, or how it was recovered from."""

    round: int
    kind: str
    """fault, recovery or note."""
    text: str


@dataclass
class GroupStretch:
    """Successive rounds with the same groups, decided for the same kind of reason."""

    first: int
    last: int
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """Policy and agents of each."""
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RoundUpdate:
    """What a new round adds to the curves."""

    row: RoundRow
    changed: Mapping[int, Mapping[str, float]]
    """Numbers of the round, and of an earlier one that was evaluated late."""
    stretch: GroupStretch
    known: Collection[str] | None
    """The curves that are kept, if not all are."""

    @cached_property
    def json(self) -> bytes:
        """The update as JSON; encoded once for all browsers, and only if one follows."""
        known = self.known
        told = [
            {"round": number, "values": {k: v for k, v in values.items() if known is None or k in known}}
            for number, values in self.changed.items()
        ]
        row = self.row
        return msgspec.json.encode(
            {
                "rows": told,
                "ended_s": row.ended_s,
                "versions": row.versions,
                "stretch": self.stretch,
                "decisions": [{"kind": each.kind, "reason": each.reason} for each in row.decisions],
            }
        )
