"""The invocations of some rounds as a timeline: who ran what, when, and how long it waited or started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from marless.jobs.record import InvocationRecord, RoundRecord
from marless.jobs.usage import HOST, WHOLE

MOST_BARS = 1500
"""Invocations of one answer: more cannot be told apart on a screen."""
MOST_ROUNDS = 200


def timeline(records: Sequence[RoundRecord]) -> dict[str, Any]:  # Any: JSON
    """The whole invocations of these rounds, as many rounds as fit into MOST_BARS but at least one, as JSON.

    Functions inside a learner are left out: they have the times of the learner's passes. Seconds are from `origin_s`.
    """
    bars: list[dict[str, Any]] = []
    shown: list[RoundRecord] = []
    for record in records:
        found = [each for each in record.invocations if each.function in (HOST, *WHOLE)]
        if shown and len(bars) + len(found) > MOST_BARS:
            break
        shown.append(record)
        bars += [_bar(each, record.round) for each in found[:MOST_BARS]]
    origin_s = min([record.started_s for record in shown] + [bar["queued"] for bar in bars], default=0.0)
    for bar in bars:
        for name in ("queued", "start", "end"):
            bar[name] = round(bar[name] - origin_s, 6)
    return {
        "origin_s": origin_s,
        "bars": bars,
        "workers": workers_of(shown),
        "rounds": [
            {"round": each.round, "start": each.started_s - origin_s, "end": each.ended_s - origin_s} for each in shown
        ],
    }


def _bar(each: InvocationRecord, round_: int) -> dict[str, Any]:  # Any: JSON
    return {
        "round": round_,
        "worker": each.worker,
        "function": each.function,
        "name": each.name,
        "index": each.index,
        "attempt": each.attempt,
        "queued": each.queued_s,
        "start": each.start_s,
        "end": each.end_s,
        "cold": each.cold,
        "init": each.init_s,
        "vcpu_s": each.vcpu_s,
        "memory_bytes": each.memory_bytes,
    }


def workers_of(records: Iterable[RoundRecord]) -> list[dict[str, Any]]:  # Any: JSON
    """The workers of these rounds: pool, host and launcher, what they ran, and their memory at the last time."""
    launchers: dict[tuple[str, str], str] = {}
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        launchers |= {(each.id, each.pool): each.launcher for each in record.machines if each.launcher}
        for each in record.invocations:
            if each.function not in (HOST, *WHOLE):
                continue
            pool = "learner" if each.function == HOST else "actor"
            worker = found.setdefault(
                each.worker, {"worker": each.worker, "pool": pool, "invocations": 0, "cold": 0, "busy_s": 0.0}
            )
            worker["invocations"] += 1
            worker["cold"] += each.cold
            worker["busy_s"] += max(each.end_s - each.start_s, 0.0)
            worker |= {"machine": each.machine, "memory_bytes": each.memory_bytes, "last_s": each.end_s}
    for worker in found.values():
        worker["launcher"] = launchers.get((worker["machine"], worker["pool"]), "")
    return sorted(found.values(), key=lambda each: (each["pool"], each["machine"], _natural(each["worker"])))


def _natural(name: str) -> tuple[str, int, str]:
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :][:15] or 0), name
