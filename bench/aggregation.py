"""Measures the CPU time that a parameter function takes for a gradient, and the gradients per second that follow.

`python -m bench.aggregation --json aggregation.json`. In one process and one thread: read a gradient (safetensors),
check it against the newest state, let it arrive in the queue; and, if the rule aggregates, read that state, apply all
that wait with Adam, and write the new state. Policy and critic together have as many parameters as a gradient numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors import numpy as safetensors

from bench import harness
from bench.harness import Row, percentile, spread
from bench.workers import on_one_thread
from marless.core.state import PolicyState
from marless.learning.aggregation.applying import applied, check
from marless.learning.aggregation.config import AggregationConfig, AsyncRule, SoftsyncRule, StellarisRule
from marless.learning.aggregation.queue import GradientQueue, Queue, QueuedGradient
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.nets import serial
from marless.learning.nets.layout import layout
from marless.learning.nets.model import ModelSpec

SIZES = {"10 kB": 25, "100 kB": 100, "1 MB": 340}
"""Units of both hidden layers, so that policy and critic have about so many bytes of parameters together."""
OBS, ACTIONS = 18, 5
RULES: Mapping[str, AggregationConfig] = {
    "async": AsyncRule.model_validate({}),
    "softsync of 4": SoftsyncRule.model_validate({}),
    "stellaris": StellarisRule.model_validate({}),
    "stellaris, separate steps": StellarisRule.model_validate({"step": "separate"}),
}
LEARNERS = 4
"""Learners under way at any time; each begins with the newest version when it has answered."""
WARM_UP = 20


def fresh(units: int) -> PolicyState:
    """A policy and its critic, as a learner of IPPO publishes them."""
    model, rng = ModelSpec.model_validate({"hidden": (units, units)}), np.random.default_rng(0)
    acting: dict[str, NDArray[np.generic]] = {}
    learning: dict[str, NDArray[np.generic]] = {}
    for prefix, outputs in (("policy", ACTIONS), ("critic", 1)):
        shape = layout(OBS, model, outputs)
        (acting if prefix == "policy" else learning).update(shape.to_arrays(prefix, shape.initial(rng, 1.0)))
        zeros_D = np.zeros(shape.size, np.float32)
        learning |= {f"{prefix}.first": zeros_D, f"{prefix}.second": zeros_D, f"{prefix}.count": np.array(0)}
    learning["critic.moments"] = np.zeros((1, 3))
    return PolicyState(acting, learning, {})


def blobs(state: PolicyState, count: int) -> list[bytes]:
    """Gradients of a state, as bytes."""
    rng = np.random.default_rng(1)
    sizes = {prefix: state.learning[f"{prefix}.first"].size for prefix in ("policy", "critic")}
    return [
        safetensors.save(
            {prefix: rng.normal(size=size).astype(np.float32) for prefix, size in sizes.items()}
            | {"critic.returns": np.array([[1.0, 0.5, 1.5]])}
        )
        for _ in range(count)
    ]


def gradient_s(config: AggregationConfig, units: int, count: int) -> Iterator[float]:
    """CPU seconds of each gradient in turn, with what its arrival leads to."""
    aggregator, steps = GradientQueue(config), IPPOConfig.model_validate({}).net_steps(0)
    queue, state = Queue(scope="agents"), fresh(units)
    known, stored, arrays = blobs(state, LEARNERS), serial.encode(state), {}
    clocks = [0] * LEARNERS
    for number in range(count):
        slot = number % LEARNERS
        start_s = time.process_time()
        arrays[f"{number}"] = safetensors.load(known[slot])
        check(state, [arrays[f"{number}"]], steps)
        arrived = QueuedGradient(
            id=f"{number}", learner=f"{number}", scope="agents", clock=clocks[slot], env_steps=1000
        )
        outcome = aggregator.arrive(queue, arrived, clocks[:slot] + clocks[slot + 1 :])
        queue = outcome.queue
        if outcome.aggregation is not None:
            chosen = [arrays.pop(each.gradient.id) for each in outcome.aggregation.gradients]
            state = serial.decode(*stored)
            state = applied(state, chosen, outcome.aggregation.weights, steps, separate=config.step == "separate")
            stored = serial.encode(state)
        clocks[slot] = queue.clock
        yield time.process_time() - start_s


def row(rule: str, size: str, runs: int, count: int) -> Row:
    """One row: medians over runs."""
    took = [list(gradient_s(RULES[rule], SIZES[size], WARM_UP + count))[WARM_UP:] for _ in range(runs)]
    return {
        "rule": rule,
        "gradient": size,
        "CPU ms a gradient": spread([1000 * sum(each) / count for each in took]).cell(3),
        "p99 (ms)": spread([1000 * percentile(each, 99) for each in took]).cell(3),
        "gradients per CPU second": spread([count / sum(each) for each in took]).cell(0),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--count", type=int, default=400, help="gradients of each run")
    args = parser.parse_args()
    on_one_thread()
    about = harness.machine()
    rows = [row(rule, size, args.runs, args.count) for size in SIZES for rule in RULES]
    chosen = {each["rule"]: each["CPU ms a gradient"]["median"] for each in rows if each["gradient"] == "100 kB"}
    harness.report("aggregation", about, rows, {"cpu_ms_per_100_kB_gradient": chosen}, args.json)


if __name__ == "__main__":
    main()
