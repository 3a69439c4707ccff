"""How much of the curvature C is noise of its measurement, and what a better one costs.

    python -m bench.curvature_noise --json curvature_noise.json

Trains the job of examples/spread6-long.yaml with eight actors and a policy per agent. After some rounds, C of all
policies is measured several times on the same round's samples and weights, with other draws each time: with the default
of 128 samples and 8 Lanczos steps, and with more. "Deviation" is the standard deviation of log C over draws, the mean
of policies. Between policies and rounds, log C itself varies by "signal", the standard deviation of means over draws.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, pstdev, stdev

import torch

from bench import harness
from bench.decisions import JOB, Rounds
from bench.harness import Row
from marless.core.settings import CurvatureSpec, Measure
from marless.jobs import spec
from marless.jobs.job import prepare
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput

MEASUREMENTS = ((128, 8), (1024, 8), (1024, 32), (5000, 32))
"""Samples and Lanczos steps; a round has 5,000 samples of each agent."""
MEASURED = (5, 10, 20, 40)
"""Rounds after which C is measured."""


@dataclass
class Draws:
    """Values of log C, by policy and round, one for each draw; and seconds of the measurements of all policies."""

    values: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: list[float] = field(default_factory=list)

    def row(self, samples: int, steps: int, update_s: float) -> Row:
        """One line of the table."""
        means = [fmean(each) for each in self.values.values()]
        noise = fmean(stdev(each) for each in self.values.values())
        return {
            "samples": samples,
            "Lanczos steps": steps,
            "deviation of log C": round(noise, 3),
            "signal": round(pstdev(means), 3),
            "% of the update": round(100 * median(self.seconds) / update_s, 1),
        }


class MeasuredRounds(Rounds):
    """The job's rounds, after some of which C is measured again and again."""

    def train(self, number: int) -> float:
        """Make a round without measurements; returns the seconds of its update."""
        trajectories, _, _ = self._sample(number)
        started_s = time.perf_counter()
        self._learners[0].update(RoundInput(number, 0, self._seed, self._groups, trajectories))
        return time.perf_counter() - started_s

    def _still(self) -> Learner:
        """A copy of the learner whose updates change no weights."""
        config = self._job.spec.algorithm.model_copy(update={"lr": 0.0})
        algorithm = algorithms.algorithm(config.name)
        (scope,) = scopes(algorithm, config, self._job.spaces)
        still = algorithm.learner(config, LearnerContext(self._job.spec.model, self._job.spaces, scope, "cpu"))
        for group in self._groups:
            still.load(group.policy, self._learners[0].state(group.policy))
        return still

    def measure(self, number: int, draws: int, found: dict[tuple[int, int], Draws]) -> None:
        """Measure on a fresh round's samples, at the present weights, with each kind of measurement."""
        trajectories, _, _ = self._sample(number)
        for samples, steps in MEASUREMENTS:
            curvature = CurvatureSpec.model_validate({"samples": samples, "steps": steps})
            for draw in range(draws):
                # The seed decides the draws; the weights stay, because a copy is updated with a rate of 0.
                inputs = RoundInput(number, 0, 1000 + draw, self._groups, trajectories)
                output = self._still().update(replace(inputs, measure=Measure(curvature=curvature)))
                into = found[samples, steps]
                for name, metrics in output.metrics.items():
                    into.values[name, number].append(math.log(metrics["curvature"]))
                runs = [run for run in output.runs if run.function == "curvature"]
                into.seconds.append(max(run.end_s for run in runs) - min(run.start_s for run in runs))


def rows(found: dict[tuple[int, int], Draws], updates_s: Sequence[float]) -> list[Row]:
    """The table."""
    return [found[each].row(*each, median(updates_s)) for each in MEASUREMENTS]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=1)
    parser.add_argument("--draws", type=int, default=8, help="measurements of each kind after each of the rounds")
    args = parser.parse_args()
    about = harness.machine()
    torch.set_num_interop_threads(torch.get_num_threads())
    torch.set_num_threads(1)
    job = prepare(spec.load(JOB, ["scaling=marless", "sharing=marless", "actors.count=8"]))
    found: dict[tuple[int, int], Draws] = defaultdict(Draws)
    updates_s: list[float] = []
    for seed in range(args.runs):
        rounds = MeasuredRounds(job, seed)
        for number in range(max(MEASURED) + 1):
            updates_s.append(rounds.train(number))
            if number in MEASURED:
                rounds.measure(number, args.draws, found)
    harness.report("curvature_noise", about, rows(found, updates_s), {}, args.json)


if __name__ == "__main__":
    main()
