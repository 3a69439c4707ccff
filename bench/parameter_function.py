"""Measures the parameter function in the real store with a real Redis: milliseconds a gradient, and gradients a second.

`python -m bench.parameter_function --json parameter_function.json`. Four learners publish a gradient each, at the same
time and through a connection of their own; then one Aggregate applies the four and removes them; and so on. Policy and
critic together have as many parameters as a gradient numbers.

The store's own figures are `vcpu_s` (reading gradients and state, Adam, writing the new state) and the time from its
start to its end, which includes reading from Redis and the transaction. CPU seconds are those of store and Redis, for
publishing the gradients and applying them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # psutil ships no types
from safetensors import numpy as safetensors

from bench import harness
from bench.aggregation import SIZES, blobs, fresh
from bench.harness import Row, spread
from bench.param_store import store_process
from marless.aggregation import gradient_file
from marless.algos.ppo.ippo import IPPOConfig
from marless.nets import serial
from marless.rpc import gradients
from marless.rpc.param_store import Aggregated, ParamStore, PolicyWrite, WeightedGradient

POLICY = "agents"
LEARNERS = 4
"""Gradients of each aggregation."""
WARM_UP = 10


@dataclass(frozen=True)
class Run:
    """Sums of one run, over its aggregations."""

    wall_s: float
    cpu_s: float
    function_cpu_s: float
    function_wall_s: float
    publish_s: float
    """Of the publishes of gradients, four at a time."""
    count: int
    """Gradients."""


async def measured(connect: Callable[[], ParamStore], job: str, units: int, rounds: int) -> Run:
    """One run: so many aggregations after the warm-up, one after another."""
    learners, coordinator = [connect() for _ in range(LEARNERS)], connect()
    state = fresh(units)
    files = [gradient_file.encode({POLICY: safetensors.load(blob)}) for blob in blobs(state, LEARNERS)]
    first = PolicyWrite(POLICY, 0, "init", dict(zip(("acting", "learning"), serial.encode(state), strict=True)))
    await coordinator.publish(job, 1, 0, [first])
    made: list[Aggregated] = []
    publish_s, start_s, cpu_s = 0.0, time.perf_counter(), _cpu_s()
    for number in range(WARM_UP + rounds):
        if number == WARM_UP:
            publish_s, start_s, cpu_s = 0.0, time.perf_counter(), _cpu_s()
            made.clear()
        before_s = time.perf_counter()
        sent = await asyncio.gather(
            *(_publish(learner, job, LEARNERS * number + slot, files[slot]) for slot, learner in enumerate(learners))
        )
        publish_s += time.perf_counter() - before_s
        steps = IPPOConfig.model_validate({}).net_steps(0)
        made.append(await coordinator.aggregate(job, 1, number, {POLICY: 1 + number}, sent, steps))
    return Run(
        wall_s=time.perf_counter() - start_s,
        cpu_s=_cpu_s() - cpu_s,
        function_cpu_s=sum(each.vcpu_s for each in made),
        function_wall_s=sum(each.end_s - each.start_s for each in made),
        publish_s=publish_s,
        count=LEARNERS * rounds,
    )


async def _publish(learner: ParamStore, job: str, number: int, data: bytes) -> WeightedGradient:
    name = gradients.name_of(number, 0)
    write = PolicyWrite(name, 0, gradients.request_id(job, number, 0, [number], [1]), {gradients.PART: data})
    return WeightedGradient(await learner.publish(job, 1, number, [write]), 1.0)


def _cpu_s() -> float:
    """CPU seconds of the store and its Redis, the children of this process."""
    times = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    return float(sum(each.user + each.system for each in times))


async def measure(runs: int, rounds: int) -> list[Row]:
    """One row per size; medians over runs."""
    rows: list[Row] = []
    async with store_process() as connect:
        for size, units in SIZES.items():
            harness.say(f"{size} …")
            took = [
                await measured(connect, f"aggregate-{size.replace(' ', '')}-{run}", units, rounds)
                for run in range(runs)
            ]
            rows.append(
                {
                    "gradient": size,
                    "function, CPU ms a gradient": _ms(took, lambda run: run.function_cpu_s),
                    "function, ms a gradient": _ms(took, lambda run: run.function_wall_s),
                    "publish, ms a gradient": _ms(took, lambda run: run.publish_s),
                    "store and Redis, CPU ms a gradient": _ms(took, lambda run: run.cpu_s),
                    "gradients/s": spread([run.count / run.wall_s for run in took]).cell(0),
                }
            )
    return rows


def _ms(runs: list[Run], figure: Callable[[Run], float]) -> Row:
    return spread([1000 * figure(run) / run.count for run in runs]).cell(3)


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--count", type=int, default=100, help="aggregations of each run and size")
    args = parser.parse_args()
    about = harness.machine()
    rows = asyncio.run(measure(args.runs, args.count))
    [chosen] = [row for row in rows if row["gradient"] == "100 kB"]
    headline = {"cpu_ms": chosen["function, CPU ms a gradient"]["median"], "per_s": chosen["gradients/s"]["median"]}
    harness.report("parameter_function", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
