"""Measures the cost of decisions relative to a round: curvature, noise, similarity, trend, grouping, scaling.

`python -m bench.decisions --json decisions.json`: independent PPO on simple_spread with the job of
examples/spread6-long.yaml (6 agents, [64, 64], 31,250 env steps per round), in one process, with a worker's number of
threads. "Round" is the slowest actor's rollout plus the update without measurements. A round over the services takes
longer, so the shares are upper bounds. Sharing begins in one to three rounds of a hundred; everything else happens in
every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from bench import harness
from bench.harness import ROOT, Row, spread
from marless.core.group import Group
from marless.core.settings import Measure
from marless.jobs import spec
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.record import Decision, Distances, GroupRecord, PhaseSeconds, RoundRecord
from marless.jobs.sharing.base import SHARING_POLICIES
from marless.jobs.sharing.marless import labels
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput, UpdateOutput
from marless.learning.data.returns import EpisodeReturns, returns_of
from marless.learning.data.rollout import rollout
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry as environments
from marless.learning.nets.acting import ActingPolicies

JOB = ROOT / "examples" / "spread6-long.yaml"
ALWAYS, SHARING = "every round", "where sharing begins"
WHEN = {"curvature": ALWAYS, "trend": ALWAYS, "scaling": ALWAYS, "similarity": SHARING, "grouping": SHARING}
"""Part → rounds in which a job with `scaling: marless` and `sharing: marless` does it; noise is for `scaling: gns`."""
WARM_UP = 2
"""Number of first rounds that are not measured, because libraries are still being loaded."""


@dataclass
class Seconds:
    """Seconds of each part, one value per round."""

    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        """Add a measurement."""
        self.parts.setdefault(part, []).append(seconds)

    def timed(self, part: str, call: Callable[[], object]) -> None:
        """Measure a call."""
        started_s = time.perf_counter()
        call()
        self.add(part, time.perf_counter() - started_s)


class Rounds:
    """The job's rounds, one after another; each update is done twice: without measurements, then with all of them."""

    def __init__(self, job: PreparedJob, seed: int) -> None:
        self._job, self._seed = job, seed
        (self._class,) = job.spaces.classes
        spec_ = job.spec
        algorithm = algorithms.algorithm(spec_.algorithm.name)
        (scope,) = scopes(algorithm, spec_.algorithm, job.spaces)
        self._learners = [
            algorithm.learner(spec_.algorithm, LearnerContext(spec_.model, job.spaces, scope, "cpu")) for _ in range(2)
        ]
        self._groups = tuple(Group(agent, (agent,)) for agent in self._class.agents)
        for learner in self._learners:
            for group in self._groups:
                learner.load(group.policy, learner.initial(group.policy, seed))
        self._env = environments.make(spec_.env.name, spec_.env.arguments, spec_.actors.envs)
        similarity = SHARING_POLICIES.find(spec_.sharing.name).similarity(spec_.sharing)
        self._measure = Measure(curvature=spec_.curvature, noise=False, similarity=similarity)
        self.history: list[RoundRecord] = []

    def next(self, seconds: Seconds) -> None:
        """Run and measure the next round."""
        number = len(self.history)
        trajectories, returns, rollout_s = self._sample(number)
        inputs = RoundInput(number, 0, self._seed, self._groups, trajectories)
        plain, measuring = self._learners
        updated_s = _seconds(lambda: plain.update(inputs))
        outputs: list[UpdateOutput] = []
        together_s = _seconds(lambda: outputs.append(measuring.update(replace(inputs, measure=self._measure))))
        self._noise(inputs, seconds)
        self._decide(seconds)
        (output,) = outputs
        self.history.append(self._record(number, returns, output))
        seconds.add("rollout", rollout_s)
        seconds.add("update", updated_s)
        seconds.add("update, all measured beside it", together_s)
        for function in ("curvature", "similarity"):
            run = next(run for run in output.runs if run.function == function)
            seconds.add(function, run.end_s - run.start_s)
        if self._class.name in output.distances:
            distances = output.distances[self._class.name].tolist()
            seconds.timed("grouping", lambda: labels(distances, 2, "kmeans"))

    def _sample(self, number: int) -> tuple[list[Trajectory], EpisodeReturns | None, float]:
        actors, learner = self._job.spec.actors, self._learners[0]
        team = ActingPolicies.from_states(self._class, [learner.state(group.policy) for group in self._groups])
        trajectories, stats, took_s = [], [], []
        for index in range(actors.count):
            started_s = time.perf_counter()
            seed = 10_000 * self._seed + 10 * number + index
            trajectory, sums = rollout(self._env, [team], steps=actors.steps, seed=seed, with_state=False)
            took_s.append(time.perf_counter() - started_s)
            trajectories.append(trajectory)
            stats.append(sums)
        return trajectories, returns_of(stats), max(took_s)

    def _noise(self, inputs: RoundInput, seconds: Seconds) -> None:
        """Measure the noise with a separate learner, so that the other update is as with the default scaling policy."""
        learner = _copy(self._job, self._learners[0], self._groups)
        output = learner.update(replace(inputs, measure=Measure(noise=True)))
        run = next(run for run in output.runs if run.function == "curvature")
        seconds.add("noise", run.end_s - run.start_s)

    def _decide(self, seconds: Seconds) -> None:
        """Decide on sharing (trend, and grouping if due), then on the number of actors."""
        seconds.timed("trend", lambda: self._job.sharing.decide(self.history))
        seconds.timed("scaling", lambda: self._job.scaling.decide(self.history, self._groups))

    def _record(self, number: int, returns: EpisodeReturns | None, output: UpdateOutput) -> RoundRecord:
        decided = self._job.sharing.decide(self.history)
        measured = output.distances.get(self._class.name)
        distances = [] if measured is None else measured.tolist()
        return RoundRecord(
            job="bench",
            round=number,
            env_steps=0,
            actors=self._job.spec.actors.count,
            groups=tuple(GroupRecord(policy=g.policy, agents=g.agents, version=number + 1) for g in self._groups),
            versions={group.policy: number + 1 for group in self._groups},
            started_s=0.0,
            ended_s=0.0,
            phases=PhaseSeconds(rollout=0.0, update=0.0, evaluation=0.0),
            returns=returns,
            evaluation=None,
            metrics=output.metrics,
            invocations=(),
            decisions=(
                Decision(kind="sharing", rule="marless", outcome="", reason=decided.reason, inputs=decided.inputs),
            ),
            distances=(Distances(agents=self._class.agents, values=tuple(map(tuple, distances))),),
        )


def _copy(job: PreparedJob, learner: Learner, groups: Sequence[Group]) -> Learner:
    algorithm = algorithms.algorithm(job.spec.algorithm.name)
    (scope,) = scopes(algorithm, job.spec.algorithm, job.spaces)
    copy = algorithm.learner(job.spec.algorithm, LearnerContext(job.spec.model, job.spaces, scope, "cpu"))
    for group in groups:
        copy.load(group.policy, learner.state(group.policy))
    return copy


def _seconds(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def rows(seconds: Seconds) -> list[Row]:
    """One row per part: when it is done, its milliseconds, and its share of a round by medians."""
    ms = {part: spread([1000 * each for each in values]) for part, values in seconds.parts.items()}
    round_ms = ms["rollout"].median + ms["update"].median
    return [
        {
            "what": part,
            "when": WHEN.get(part, ""),
            "median (ms)": of.cell(2),
            "% of a round": round(100 * of.median / round_ms, 2),
        }
        for part, of in ms.items()
    ]


def headline(seconds: Seconds) -> Row:
    """Milliseconds of a round, and the share of it taken by decisions: in every round, and when sharing begins."""
    median = {part: spread(values).median for part, values in seconds.parts.items()}
    always, sharing = (sum(median[part] for part in median if WHEN.get(part) == when) for when in (ALWAYS, SHARING))
    round_s = median["rollout"] + median["update"]
    return {
        "round_ms": round(1000 * round_s, 1),
        "update_longer_ms": round(1000 * (median["update, all measured beside it"] - median["update"]), 1),
        "share_of_every_round": round(always / round_s, 4),
        "share_where_sharing_begins": round((always + sharing) / round_s, 4),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each run")
    args = parser.parse_args()
    about = harness.machine()
    torch.set_num_interop_threads(torch.get_num_threads())
    torch.set_num_threads(1)
    job = prepare(spec.load(JOB, ["scaling=marless", "sharing=marless"]))
    seconds = Seconds()
    for seed in range(args.runs):
        run = Rounds(job, seed)
        found = Seconds()
        for _ in range(args.rounds):
            run.next(found)
        for part, values in found.parts.items():
            seconds.parts.setdefault(part, []).extend(values[WARM_UP:])
    harness.report("decisions", about, rows(seconds), headline(seconds), args.json)


if __name__ == "__main__":
    main()
