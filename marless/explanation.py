"""Why a job had the actors and groups it had: its decisions, read back from its records.

Rounds are numbered from 0, as in the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from marless.record import Decision, RoundRecord

What = Literal["start", "share", "split", "regroup", "more actors", "fewer actors"]
MOST_STRETCHES = 6
"""Between two changes of the groups; a number of actors that turned more often is told in one sentence."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The actors or the groups of a round are others than those of the round before, or the job's first."""

    round: int
    what: What
    before: str
    """"" at the start."""
    decision: Decision

    def to_json(self) -> dict[str, Any]:  # Any: what JSON can hold
        """Everything, for programs."""
        decision = self.decision
        return {
            "round": self.round,
            "kind": decision.kind,
            "change": self.what,
            "rule": decision.rule,
            "before": self.before,
            "after": decision.outcome,
            "reason": decision.reason,
            "inputs": decision.inputs,
        }


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Successive rounds over which the number of actors stayed, rose, or fell; or all of a chapter at once."""

    first: int
    last: int
    before: int | None
    """Actors of the round before; None at the start."""
    actors: tuple[int, ...]
    """Of every round."""
    turns: int
    """How many stretches it stands for."""
    decision: Decision
    """The last that changed something."""


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Successive rounds with the same groups."""

    first: int
    last: int
    opening: Change
    stretches: tuple[Stretch, ...]


def changes(records: Sequence[RoundRecord]) -> tuple[Change, ...]:
    """Every change of groups or actors, in order; the first round's decisions are changes too."""
    found: list[Change] = []
    before: RoundRecord | None = None
    for record in records:
        for kind, what in (("sharing", _regrouped(before, record)), ("scaling", _scaled(before, record))):
            if what:
                decision = _decision(record, kind)
                old = _decision(before, kind).outcome if before else ""
                found.append(Change(round=record.round, what=what, before=old, decision=decision))
        before = record
    return tuple(found)


def chapters(records: Sequence[RoundRecord]) -> tuple[Chapter, ...]:
    """The same, so that a person can read it: rounds with equal groups together, and in them rises and falls."""
    openings = {change.round: change for change in changes(records) if change.decision.kind == "sharing"}
    starts = [index for index, record in enumerate(records) if record.round in openings]
    found = []
    for start, end in pairwise([*starts, len(records)]):
        part = records[start:end]
        chapter = Chapter(
            first=part[0].round,
            last=part[-1].round,
            opening=openings[part[0].round],
            stretches=_few(tuple(_stretches(part, records[start - 1].actors if start else None)), part),
        )
        found.append(chapter)
    return tuple(found)


def _regrouped(before: RoundRecord | None, now: RoundRecord) -> What | None:
    if before is None:
        return "start"
    old, new = ({frozenset(group.agents) for group in record.groups} for record in (before, now))
    if old == new:
        return None
    return "share" if len(new) < len(old) else "split" if len(new) > len(old) else "regroup"


def _scaled(before: RoundRecord | None, now: RoundRecord) -> What | None:
    if before is None:
        return "start"
    if now.actors == before.actors:
        return None
    return "more actors" if now.actors > before.actors else "fewer actors"


def _decision(record: RoundRecord, kind: str) -> Decision:
    """What was decided for a round; records of before decisions were kept say only what came of it."""
    for decision in record.decisions:
        if decision.kind == kind:
            return decision
    if kind == "scaling":
        return Decision(kind="scaling", rule="", outcome=f"{record.actors} actors", reason="")
    groups = " ".join("+".join(group.agents) for group in record.groups)
    return Decision(kind="sharing", rule="", outcome=groups, reason="")


def _stretches(records: Sequence[RoundRecord], before: int | None) -> Iterator[Stretch]:
    """Cut where the number of actors turns; rounds without a change belong to what was before them."""
    part: list[RoundRecord] = []
    earlier, last, direction = before, before, 0
    decision = _decision(records[0], "scaling")
    for record in records:
        step = 0 if last is None else (record.actors > last) - (record.actors < last)
        if step and step != direction and part:
            yield _stretch(part, earlier, decision)
            part, earlier = [], last
        if step:
            direction, decision = step, _decision(record, "scaling")
        part.append(record)
        last = record.actors
    yield _stretch(part, earlier, decision)


def _stretch(part: Sequence[RoundRecord], before: int | None, decision: Decision, turns: int = 1) -> Stretch:
    return Stretch(
        first=part[0].round,
        last=part[-1].round,
        before=before,
        actors=tuple(record.actors for record in part),
        turns=turns,
        decision=decision,
    )


def _few(stretches: tuple[Stretch, ...], part: Sequence[RoundRecord]) -> tuple[Stretch, ...]:
    if len(stretches) <= MOST_STRETCHES:
        return stretches
    return (_stretch(part, stretches[0].before, stretches[-1].decision, turns=len(stretches)),)
