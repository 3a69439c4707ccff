"""Measures the parameter function in the real store with a real Redis: milliseconds a gradient, and gradients a second.

`python -m bench.parameter_function --json parameter_function.json`. Four learners publish gradients, one after another
and each through a connection of its own. Meanwhile one Aggregate after another applies the next four and removes them.
Policy and critic together have as many parameters as a gradient numbers. For comparison: aggregations while nothing is
published ("alone"), and four clients that publish as many bytes, without aggregations ("publishes/s alone").

The store's own figures are `vcpu_s` (reading gradients and state, Adam, writing the new state) and the time from its
start to its end, which includes reading from Redis and the transaction. CPU seconds are those of store and Redis, for
publishing the gradients and applying them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import psutil  # type: ignore[import-untyped]  # psutil ships no types
from safetensors import numpy as safetensors

from bench import harness
from bench.aggregation import SIZES, blobs, fresh
from bench.harness import Row, spread
from bench.param_store import store_process, throughput
from marless.learning.aggregation import gradient_file
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.nets import serial
from marless.rpc import gradients
from marless.rpc.param_store import Aggregation, AggregationReply, ParamStore, PolicyWrite, WeightedGradient

POLICY = "agents"
LEARNERS = 4
"""Gradients of each aggregation."""
WARM_UP = 10
STEPS = IPPOConfig.model_validate({}).net_steps(0)


@dataclass(frozen=True)
class _Sent:
    """A gradient in the store."""

    gradient: WeightedGradient
    publish_s: float


@dataclass(frozen=True)
class Run:
    """Sums of one run, over its aggregations."""

    wall_s: float
    cpu_s: float
    function_cpu_s: float
    function_wall_s: float
    alone_s: float
    """As `function_wall_s`, while nothing is published."""
    publish_s: float
    """Of the publishes of gradients, from the call to the answer."""
    count: int
    """Gradients."""


async def measured(connect: Callable[[], ParamStore], job: str, units: int, rounds: int) -> Run:
    """One run: so many aggregations after the warm-up, one after another, while learners publish the next gradients."""
    state = fresh(units)
    files = [gradient_file.encode({POLICY: safetensors.load(blob)}) for blob in blobs(state, LEARNERS)]
    first = PolicyWrite(POLICY, 0, "init", dict(zip(("acting", "learning"), serial.encode(state), strict=True)))
    coordinator, waiting = connect(), asyncio.Queue[_Sent](LEARNERS)
    await coordinator.publish(job, 1, 0, [first])
    learners = [asyncio.create_task(_learn(connect(), job, slot, data, waiting)) for slot, data in enumerate(files)]
    try:
        await _aggregations(coordinator, job, 1, WARM_UP, waiting)
        start_s, cpu_s = time.perf_counter(), _cpu_s()
        made, publish_s = await _aggregations(coordinator, job, 1 + WARM_UP, rounds, waiting)
        wall_s, cpu_s = time.perf_counter() - start_s, _cpu_s() - cpu_s
    finally:
        for learner in learners:
            learner.cancel()
        await asyncio.gather(*learners, return_exceptions=True)
    made_alone = await _alone(coordinator, job, 1 + WARM_UP + rounds, rounds, files)
    return Run(
        wall_s=wall_s,
        cpu_s=cpu_s,
        function_cpu_s=sum(each.vcpu_s for each in made),
        function_wall_s=sum(each.end_s - each.start_s for each in made),
        alone_s=sum(each.end_s - each.start_s for each in made_alone),
        publish_s=publish_s,
        count=LEARNERS * rounds,
    )


async def _learn(store: ParamStore, job: str, slot: int, data: bytes, waiting: asyncio.Queue[_Sent]) -> None:
    """Publish gradients without end, each as soon as there is room for it in the queue."""
    for number in count(slot, LEARNERS):
        start_s = time.perf_counter()
        gradient = await _publish(store, job, number, data)
        await waiting.put(_Sent(gradient, time.perf_counter() - start_s))


async def _publish(store: ParamStore, job: str, number: int, data: bytes) -> WeightedGradient:
    name = gradients.name_of(number, 0)
    write = PolicyWrite(name, 0, gradients.request_id(job, number, 0, [number], [1]), {gradients.PART: data})
    return WeightedGradient(await store.publish(job, 1, number, [write]), 1.0)


async def _alone(store: ParamStore, job: str, head: int, rounds: int, files: list[bytes]) -> list[AggregationReply]:
    """So many aggregations, each after its gradients have been published."""
    made = []
    for version in range(head, head + rounds):
        first = 10**6 + LEARNERS * version
        sent = [await _publish(store, job, first + slot, data) for slot, data in enumerate(files)]
        made.append(await store.aggregate(_of(job, version, sent)))
    return made


async def _aggregations(
    store: ParamStore, job: str, head: int, rounds: int, waiting: asyncio.Queue[_Sent]
) -> tuple[list[AggregationReply], float]:
    """So many aggregations, and the seconds that publishing their gradients took."""
    made, publish_s = [], 0.0
    for version in range(head, head + rounds):
        sent = [await waiting.get() for _ in range(LEARNERS)]
        publish_s += sum(each.publish_s for each in sent)
        made.append(await store.aggregate(_of(job, version, [each.gradient for each in sent])))
    return made, publish_s


def _of(job: str, version: int, sent: Sequence[WeightedGradient]) -> Aggregation:
    """The aggregation that makes the version after this one."""
    return Aggregation(job=job, epoch=1, round=version, heads={POLICY: version}, gradients=sent, steps=STEPS)


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
            took, publishes = [], []
            for run in range(runs):
                job = f"aggregate-{size.replace(' ', '')}-{run}"
                took.append(await measured(connect, job, units, rounds))
                size_bytes = len(blobs(fresh(units), 1)[0])
                publishes.append((await throughput(connect, f"{job}-publish", size_bytes, rounds))[0])
            rows.append(
                {
                    "gradient": size,
                    "function, CPU ms a gradient": _ms(took, lambda run: run.function_cpu_s),
                    "function, ms a gradient": _ms(took, lambda run: run.function_wall_s),
                    "alone, ms a gradient": _ms(took, lambda run: run.alone_s),
                    "publish, ms a gradient": _ms(took, lambda run: run.publish_s),
                    "store and Redis, CPU ms a gradient": _ms(took, lambda run: run.cpu_s),
                    "gradients/s": spread([run.count / run.wall_s for run in took]).cell(0),
                    "publishes/s alone": spread(publishes).cell(0),
                }
            )
    return rows


def _ms(runs: list[Run], figure: Callable[[Run], float]) -> Row:
    return spread([1000 * figure(run) / run.count for run in runs]).cell(3)


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--count", type=int, default=400, help="aggregations of each run and size")
    args = parser.parse_args()
    about = harness.machine()
    rows = asyncio.run(measure(args.runs, args.count))
    [chosen] = [row for row in rows if row["gradient"] == "100 kB"]
    headline = {"cpu_ms": chosen["function, CPU ms a gradient"]["median"], "per_s": chosen["gradients/s"]["median"]}
    harness.report("parameter_function", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
