"""Fits a model of the control plane to what `bench.scale` has measured, and says where a larger pool would break first.

`python -m bench.scale_model scale.json --actors 20000 --picture docs/images/scale.png --json scale_model.json`

Each service's CPU time a round, its memory and the length of a record are taken as a + b · actors, fitted by least
squares of relative errors. What limits the number of actors comes from the constants of the code, and from the sizes of
its messages.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import harness
from bench.harness import ROOT, Row
from marless.core.limits import MAX_ACTORS
from marless.rpc.client import MAX_MESSAGE_BYTES
from marless.rpc.server import MAX_OPEN_RPCS, MAX_REQUEST_BYTES
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.services.actor_pool.worker import UPLOAD_TIMEOUT_S

Json = Any  # what JSON can hold
CPU, MEMORY, RECORD = " CPU ms/round", " MB", "record kB"
SHOWS = (
    "CPU time and memory of each service against the number of actors: points are measured, lines are the model, "
    "dashed lines the aims"
)
ROUND_S, SERVICE_MB = 0.5, 1000.0
"""What a service may take of a round, and of memory: the project's aims."""


@dataclass(frozen=True)
class Line:
    """A quantity as a function of the number of actors: `fixed` + `each` · actors."""

    fixed: float
    each: float
    error: float
    """The largest relative error over the measurements."""

    def at(self, actors: float) -> float:
        """The quantity at this many actors."""
        return self.fixed + self.each * actors

    def reaches(self, value: float) -> float:
        """The number of actors at which the quantity has this value; infinite if it never has."""
        return (value - self.fixed) / self.each if self.each > 0 else float("inf")


def fit(actors: Sequence[float], values: Sequence[float]) -> Line:
    """The line with the least squares of relative errors, and neither a negative intercept nor a negative slope."""
    weights = [1 / value**2 for value in values]
    total = sum(weights)
    mean_n = sum(w * n for w, n in zip(weights, actors, strict=True)) / total
    mean_v = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, n in zip(weights, actors, strict=True))
    joint = sum(w * (n - mean_n) * (v - mean_v) for w, n, v in zip(weights, actors, values, strict=True))
    each = max(joint / spread, 0.0) if spread else 0.0
    fixed = mean_v - each * mean_n
    if fixed < 0:
        fixed, each = (
            0.0,
            sum(w * n * v for w, n, v in zip(weights, actors, values, strict=True))
            / sum(w * n * n for w, n in zip(weights, actors, strict=True)),
        )
    errors = [abs(fixed + each * n - v) / v for n, v in zip(actors, values, strict=True)]
    return Line(fixed, each, max(errors))


def measured(result: Mapping[str, Json]) -> tuple[list[int], dict[str, list[float]]]:
    """The numbers of actors of a result of `bench.scale`, and each quantity's values at them."""
    actors = [int(name.replace(",", "")) for name in result["rows"][0] if name != "actors"]
    rows = {row["actors"]: [row[f"{each:,}"] for each in actors] for row in result["rows"]}
    return actors, {name: values for name, values in rows.items() if name.endswith((CPU, MEMORY)) or name == RECORD}


def lines(result: Mapping[str, Json]) -> dict[str, Line]:
    """The model: a line for each quantity."""
    actors, quantities = measured(result)
    return {name: fit(actors, values) for name, values in quantities.items()}


def receipt_bytes() -> int:
    """Bytes of one actor in the answer to a rollout: its receipt with the record of a lane, and its invocation."""
    lane = actor_pool_pb2.Lane(lane=9_999, version=9_999, digest="0" * 64)
    receipt = actor_pool_pb2.RolloutReceipt(
        index=9_999, env_steps=2_000, episodes=80, episode_steps=2_000, return_sum={"agent_0": -1.0, "agent_1": -1.0}
    )
    receipt.lane.CopyFrom(lane)
    invocation = common_pb2.Invocation(
        id="spread-20261124-120000/9999/train/9999",
        function="actor",
        index=9_999,
        attempt=1,
        worker="actor-9999",
        queued_s=1.8e9,
        start_s=1.8e9,
        end_s=1.8e9,
        vcpu_s=0.1,
        memory_bytes=10**8,
    )
    answer = actor_pool_pb2.RolloutResponse(receipts=[receipt], invocations=[invocation])
    return answer.ByteSize()


def lane_bytes() -> int:
    """Bytes of one lane in the request of a rollout."""
    lane = actor_pool_pb2.Lane(lane=9_999, version=9_999, digest="0" * 64)
    return actor_pool_pb2.RolloutRequest(lanes=[lane]).ByteSize()


def limits(model: Mapping[str, Line]) -> list[Row]:
    """What ends growth, and at how many actors: the first one first. Aims are missed there, nothing breaks."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    upload = model[f"learner_pool{CPU}"].reaches(1000 * UPLOAD_TIMEOUT_S)
    found = [
        ("limit", f"actors of a rollout (`MAX_ACTORS`, {MAX_ACTORS:,})", MAX_ACTORS),
        (
            "limit",
            f"calls that a pool has open, one a worker without relays (`MAX_OPEN_RPCS`, {MAX_OPEN_RPCS:,})",
            MAX_OPEN_RPCS,
        ),
        ("limit", f"open files of a pool, one a worker without relays (this machine's hard limit, {files:,})", files),
        ("limit", *_message("answer to a rollout", MAX_MESSAGE_BYTES, receipt_bytes())),
        ("limit", *_message("request of a rollout with carried episodes", MAX_REQUEST_BYTES, lane_bytes())),
        ("limit", f"an upload waits longer than its {UPLOAD_TIMEOUT_S:g} s for its turn", upload),
    ]
    for name, line in model.items():
        if name.endswith(CPU):
            found.append(("aim", f"{name.removesuffix(CPU)}: {ROUND_S} s a round", line.reaches(1000 * ROUND_S)))
        elif name.endswith(MEMORY):
            found.append(("aim", f"{name.removesuffix(MEMORY)}: {SERVICE_MB / 1000:g} GB", line.reaches(SERVICE_MB)))
    ordered = sorted(found, key=lambda each: each[2])
    return [{"kind": kind, "what": what, "reached at actors": f"{at:,.0f}"} for kind, what, at in ordered]


def _message(what: str, limit: int, each: int) -> tuple[str, float]:
    return f"the {what} ({limit >> 20} MiB), {each} bytes an actor", limit / each


def table(model: Mapping[str, Line], actors: int) -> list[Row]:
    """The model's lines and limits as one table."""
    rows: list[Row] = []
    for name, line in model.items():
        rows.append(
            {
                "quantity": name,
                "fixed": round(line.fixed, 1),
                "for each actor": round(line.each, 4),
                "largest error": f"{100 * line.error:.0f} %",
                f"at {actors:,} actors": f"{line.at(actors):,.0f}",
            }
        )
    return rows


def picture(result: Mapping[str, Json], model: Mapping[str, Line], actors: int, path: Path) -> None:
    """Draw what was measured as points, and the model as lines up to this many actors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    numbers, quantities = measured(result)
    grid = [min(numbers) * (actors / min(numbers)) ** (step / 60) for step in range(61)]
    for axes, suffix, label, aim in zip(
        figure.subplots(1, 2),
        (CPU, MEMORY),
        ("CPU ms a round", "memory of a service, MB"),
        (1000 * ROUND_S, SERVICE_MB),
        strict=True,
    ):
        for name in (each for each in quantities if each.endswith(suffix)):
            [line] = axes.plot(grid, [model[name].at(each) for each in grid], linewidth=1)
            axes.plot(numbers, quantities[name], "o", color=line.get_color(), label=name.removesuffix(suffix))
        axes.axhline(aim, color="grey", linestyle="--", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel="actors", ylabel=label)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Fit, print the tables, and write the picture and the file of --json if given."""
    parser = harness.parser(__doc__, runs=1)
    parser.add_argument("measured", type=Path, help="the file that `bench.scale --json` has written")
    parser.add_argument("--actors", type=int, default=20_000, help="how far to extrapolate")
    parser.add_argument("--picture", type=Path, help="where to write the picture (PNG)")
    args = parser.parse_args()
    result = json.loads(args.measured.read_text(encoding="utf-8"))
    model = lines(result)
    pictures = {}
    if args.picture:
        picture(result, model, args.actors, args.picture)
        pictures = {os.path.relpath(args.picture.resolve(), ROOT): SHOWS}
    reached = limits(model)
    first = next(each for each in reached if each["kind"] == "limit")
    headline = {"first_limit": first["what"], "at_actors": first["reached at actors"]}
    rows = table(model, args.actors)
    harness.report("scale_model", result["machine"], rows, headline | {"pictures": pictures}, args.json)
    file = args.json.with_name("scale_limits.json") if args.json else None
    harness.report("scale_limits", result["machine"], reached, headline, file)


if __name__ == "__main__":
    main()
