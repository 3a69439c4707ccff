"""Reads a round record from its line of `rounds.jsonl`, which `RoundRecord.to_json` has written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any, TypeVar

from marless.core import columns
from marless.core.lanes import LaneRecord
from marless.core.limits import MAX_COUNT
from marless.core.machine import record_of
from marless.jobs.record import (
    AggregationRecord,
    Decision,
    Distances,
    Evaluation,
    GradientRecord,
    GroupRecord,
    InvocationRecord,
    PhaseSeconds,
    RoundRecord,
)
from marless.learning.data.returns import EpisodeReturns

Part = TypeVar("Part")


def from_json(line: str) -> RoundRecord:
    """Parse one line of `rounds.jsonl`; raises ValueError if it is not a round record."""
    try:
        return _record(json.loads(line))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no round record: {error}") from None


def _record(data: dict[str, Any]) -> RoundRecord:  # Any: JSON
    parts = {
        "groups": tuple(_made(GroupRecord, each | {"agents": _texts(each["agents"])}) for each in data["groups"]),
        "versions": _numbers(data["versions"]),
        "phases": _made(PhaseSeconds, data["phases"]),
        "returns": _returns(data["returns"]),
        "evaluation": _returns(data["evaluation"]),
        "earlier_evaluation": _evaluation(data["earlier_evaluation"]),
        "metrics": {name: _numbers(values) for name, values in data["metrics"].items()},
        "invocations": tuple(
            _made(InvocationRecord, each | {"after": _texts(each["after"])})
            for each in columns.decoded(data["invocations"])
        ),
        "decisions": tuple(_made(Decision, each) for each in data["decisions"]),
        "distances": tuple(
            Distances(agents=_texts(each["agents"]), values=tuple(map(_row, each["values"])))
            for each in data["distances"]
        ),
        "lanes": tuple(_made(LaneRecord, each) for each in columns.decoded(data["lanes"])),
        "aggregation": _aggregation(data.get("aggregation")),  # missing in records of rounds
        "machines": tuple(map(record_of, columns.decoded(data["machines"]))),
    }
    return _made(RoundRecord, data | parts)


def _aggregation(data: dict[str, Any] | None) -> AggregationRecord | None:  # Any: JSON
    if data is None:
        return None
    gradients = (_made(GradientRecord, each | {"rollouts": _whole(each["rollouts"])}) for each in data["gradients"])
    return _made(AggregationRecord, data | {"gradients": tuple(gradients)})


def _whole(numbers: Any) -> tuple[int, ...]:  # Any: JSON
    # Not isinstance, for which True is an int.
    if not isinstance(numbers, list) or not all(type(each) is int for each in numbers):
        raise TypeError(f"{numbers!r:.80} is no list of numbers")
    return tuple(numbers)


_SCALARS: Mapping[Any, tuple[type, ...]] = {
    **{"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)},
    "float | None": (float, int, NoneType),
}
"""Annotation of a field → types that its JSON value may have."""


@cache
def _scalars(kind: Any) -> tuple[tuple[str, tuple[type, ...]], ...]:  # Any: the class of a part
    return tuple((field.name, _SCALARS[field.type]) for field in dataclasses.fields(kind) if field.type in _SCALARS)


def _made(kind: Callable[..., Part], data: Mapping[str, Any]) -> Part:  # Any: JSON
    """Construct a part of a record; raises TypeError for a field that is missing, unknown, of the wrong type, or NaN or
    infinite, and for times and counts beyond `MAX_COUNT`, with which costs cannot be computed.
    """
    # Returns are as large as an environment makes them, and enter no cost.
    most = math.inf if kind is EpisodeReturns else MAX_COUNT
    part = kind(**data)
    for name, types in _scalars(kind):
        value: Any = getattr(part, name)  # Any: JSON
        if not isinstance(value, types):
            raise TypeError(f"{name} is {value!r:.80}")
        if isinstance(value, int | float) and not (-most <= value <= most and math.isfinite(value)):
            raise TypeError(f"{name} is {value!r:.80}")
    return part


def _numbers(data: Mapping[str, Any]) -> Mapping[str, float]:  # Any: JSON
    _row(list(data.values()))
    return data


def _row(data: list[Any]) -> tuple[float, ...]:  # Any: JSON
    for value in data:
        if not isinstance(value, int | float):
            raise TypeError(f"{value!r:.80} is no number")
        # A whole number beyond the range of float64 raises OverflowError here, not where somebody computes with it.
        float(value)
    return tuple(data)


def _texts(data: list[Any]) -> tuple[str, ...]:  # Any: JSON
    # A text would pass as the list of its letters.
    if isinstance(data, str) or not all(isinstance(each, str) for each in data):
        raise TypeError(f"{data!r:.80} is no list of names")
    return tuple(data)


def _returns(data: dict[str, Any] | None) -> EpisodeReturns | None:  # Any: JSON
    if data is None:
        return None
    kept = {name: data[name] for name in ("episodes", "mean", "standard_error")}
    wins = data["wins"]
    found = _made(EpisodeReturns, kept | {"per_agent": _numbers(data["per_agent"]), "wins": wins})
    if found.episodes < 1 or not (wins is None or (isinstance(wins, int) and 0 <= wins <= found.episodes)):
        raise ValueError(f"{wins!r:.80} wins of {found.episodes} episodes")
    return found


def _evaluation(data: dict[str, Any] | None) -> Evaluation | None:  # Any: JSON
    if data is None:
        return None
    returns = _returns(data["returns"])
    if returns is None:
        raise ValueError("an evaluation has no returns")
    return _made(Evaluation, data | {"returns": returns})
