"""Calibration: measures in a few seconds how long one actor of a job takes, and each function of an update.

Run as a program (`python -m marless.cost.estimates.calibration`, spec as JSON on standard input, result as JSON on
standard output), so that it runs with the same number of threads as workers. It needs NumPy, and torch to measure
updates.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marless.core.documents import dataclass_of
from marless.core.errors import CorruptError, MarlessError
from marless.core.process_environment import stdout_for_data
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.sharing.base import initial_groups
from marless.jobs.spec import JobSpec, from_json
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext

if TYPE_CHECKING:
    from marless.core.group import Group
    from marless.learning.algos.learner import Learner
    from marless.learning.data.trajectory import Trajectory
    from marless.learning.nets.acting import ActingPolicies

MOST_SAMPLES = 40_000
"""Most agent samples in a measured update; larger updates are extrapolated in proportion."""
ROLLOUTS, UPDATES = 3, 2
"""Number of measured rollouts and updates, after one of each for warm-up."""


@dataclass(frozen=True)
class FunctionSeconds:
    """The measured time of one function of an update."""

    function: str
    name: str
    index: int
    """Index of its scope."""
    seconds: float
    after: tuple[str, ...] = ()
    """Functions of its scope that it depends on, as "<function>/<name>"."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measured times, extrapolated to a whole round."""

    actor_s: tuple[float, ...]
    """Seconds of one actor, for each measured rollout."""
    updates: tuple[tuple[FunctionSeconds, ...], ...]
    """Times of every function, for each measured update; empty without torch."""
    samples_share: float
    """Fraction of a round's samples in the measured updates; 1 if updates do not depend on the number of samples."""

    def to_json(self) -> str:
        """Encode as JSON for another process."""
        return json.dumps(dataclasses.asdict(self))


def from_text(text: str) -> Calibration:
    """Parse the output of `Calibration.to_json`; raises CorruptError."""
    try:
        return dataclass_of(Calibration, json.loads(text))
    except (ValueError, RecursionError):
        raise CorruptError(f"this is no calibration: {text[:80]!r}") from None


def calibrate(spec: JobSpec) -> Calibration:
    """Measure rollouts, and updates on their samples; raises SpecError for a job that cannot run."""
    job = prepare(spec)
    agents, actors = len(job.spaces.agents), spec.actors
    steps = min(actors.steps, max(MOST_SAMPLES // agents, 1))
    envs = min(actors.envs, max(MOST_SAMPLES // (agents * steps), 1))
    count = min(actors.count, max(MOST_SAMPLES // (agents * steps * envs), 1))
    try:
        parts = _scopes(job)
    except ImportError:
        parts = []
    trajectories, rollout_s = _roll_out(job, parts, envs, steps, count)
    scale = actors.envs * actors.steps / (envs * steps)
    share = count / (actors.count * scale) if spec.algorithm.drawn(actors.steps) is None else 1.0
    updates = [_update(job, parts, trajectories, number, 1 / share) for number in range(UPDATES + 1) if parts][1:]
    return Calibration(
        actor_s=tuple(each * scale for each in rollout_s),
        updates=tuple(updates) if parts else (),
        samples_share=share,
    )


@dataclass(frozen=True)
class _Scope:
    """A learner with initial weights, and the groups and acting policies of its scope."""

    groups: tuple[Group, ...]
    learner: Learner
    acting: Sequence[ActingPolicies]
    """One entry per agent class."""


def _scopes(job: PreparedJob) -> list[_Scope]:
    """Create the learners of all scopes; raises ImportError without torch."""
    import torch

    from marless.learning.nets.acting import ActingPolicies

    # Functions run one after another, so that they do not slow one another down; where this process has computed in
    # parallel before, torch refuses.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    torch.set_num_threads(1)
    spec, all_groups = job.spec, initial_groups(job.spec.sharing.groups, job.spaces)
    algorithm, made = algorithms.algorithm(spec.algorithm.name), []
    for scope in scopes(algorithm, spec.algorithm, job.spaces):
        learner = algorithm.learner(spec.algorithm.warm(), LearnerContext(spec.nets, job.spaces, scope, "cpu"))
        served = scope.agent_classes(job.spaces)
        members = {agent for each in served for agent in each.agents}
        groups = tuple(group for group in all_groups if group.agents[0] in members)
        states = {name: learner.initial(name, spec.seed) for name in learner.names(groups)}
        for name, state in states.items():
            learner.load(name, state)
        owner = {agent: states[group.policy] for group in groups for agent in group.agents}
        acting = [ActingPolicies.from_states(each, [owner[agent] for agent in each.agents]) for each in served]
        made.append(_Scope(groups, learner, acting))
    return made


def _roll_out(
    job: PreparedJob, parts: Sequence[_Scope], envs: int, steps: int, count: int
) -> tuple[list[Trajectory], list[float]]:
    """The trajectories of `count` actors, and the seconds of the measured ones. Without policies, actions are random
    and there are no trajectories.
    """
    from marless.learning.data.rollout import play, rollout
    from marless.learning.envs import registry as environments

    made = environments.make_carried if job.carried else environments.make
    env = made(job.spec.env.name, job.spec.env.arguments, envs)
    sampled, seconds = [], []
    for index in range(max(count, ROLLOUTS + 1) if parts else ROLLOUTS + 1):
        started_s = time.perf_counter()
        if parts:
            acting = [acting for part in parts for acting in part.acting]
            sampled.append(rollout(env, acting, steps=steps, seed=index, with_state=job.with_state)[0])
            seconds.append(time.perf_counter() - started_s)
        else:
            played = play(env, None, episodes=envs, seed=index).env_steps
            seconds.append((time.perf_counter() - started_s) * envs * steps / played)
    env.close()
    return sampled[:count], seconds[1 : ROLLOUTS + 1]


def _update(
    job: PreparedJob, parts: Sequence[_Scope], trajectories: Sequence[Trajectory], number: int, scale: float
) -> tuple[FunctionSeconds, ...]:
    """The functions of one update of every scope, on one thread, extrapolated to `scale` times the samples."""
    from marless.core.settings import Measure
    from marless.learning.algos.learner import RoundInput

    measure = Measure(curvature=job.spec.curvature if job.curvature else None, noise=job.noise, gradients=job.gradients)
    groups = tuple(group for each in parts for group in each.groups)
    after = {(each.index, each.node.id): each.node.after for each in job.functions(groups)}
    found = []
    for index, each in enumerate(parts):
        inputs = RoundInput(
            round=number,
            env_steps=0,
            seed=job.spec.seed,
            groups=each.groups,
            trajectories=trajectories,
            pooling=job.spec.sharing.samples,
            measure=measure,
        )
        for run in each.learner.update(inputs).runs:
            # Measurements use a subset of fixed size, however many samples a round has.
            grows = run.function not in ("curvature", "similarity")
            seconds = run.vcpu_s * (scale if grows else 1.0)
            waits = after.get((index, f"{run.function}/{run.name}"), ())
            found.append(FunctionSeconds(run.function, run.name, index, seconds, waits))
    return tuple(found)


def main() -> None:
    """Calibrate the job on standard input; for an invalid job, prints the error to stderr and exits with code 1."""
    output = stdout_for_data()
    try:
        output.write(calibrate(from_json(sys.stdin.read())).to_json())
        output.flush()
    except MarlessError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(1)  # the error is the last line: what the environment registered to run at the exit prints no more


if __name__ == "__main__":
    main()
