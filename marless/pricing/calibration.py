"""A few seconds of a job's own work, in this process: what one actor takes, and what each function of an update takes.

Run as a program (`python -m marless.pricing.calibration`, the spec as JSON on standard input, the outcome as JSON on
standard output), so that it starts with the threads that workers have. It needs NumPy, and torch for the updates.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marless.algos import registry as algorithms
from marless.algos.base import LearnerContext, scopes
from marless.errors import CorruptError, MarlessError
from marless.job import Job, prepare
from marless.sharing.groups import initial_groups
from marless.spec import JobSpec, from_json

if TYPE_CHECKING:
    from marless.algos.base import Group, Learner
    from marless.data.trajectory import Trajectory
    from marless.nets.acting import ActingPolicies

MOST_SAMPLES = 40_000
"""Agent samples of a calibration's update; more are extrapolated in proportion."""
ROLLOUTS, UPDATES = 3, 2
"""Measured, after one each that warms up."""


@dataclass(frozen=True)
class FunctionSeconds:
    """One function of an update."""

    function: str
    name: str
    index: int
    """Of its scope."""
    seconds: float
    after: tuple[str, ...] = ()
    """"<function>/<name>" of those in its scope that it waits for."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured, extrapolated to the whole of a round."""

    actor_s: tuple[float, ...]
    """One actor, each time it was run."""
    updates: tuple[tuple[FunctionSeconds, ...], ...]
    """Every function of an update, each time; empty if there is no torch here."""
    samples_share: float
    """Part of a round's samples that the updates were measured on; 1 where updates do not depend on it."""

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(dataclasses.asdict(self))


def from_text(text: str) -> Calibration:
    """Read what `Calibration.to_json` wrote; raises CorruptError."""
    try:
        known = json.loads(text)
        return Calibration(
            actor_s=tuple(known["actor_s"]),
            updates=tuple(
                tuple(FunctionSeconds(**each | {"after": tuple(each["after"])}) for each in update)
                for update in known["updates"]
            ),
            samples_share=known["samples_share"],
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptError(f"this is no calibration: {text[:80]!r}") from None


def calibrate(spec: JobSpec) -> Calibration:
    """Run one actor, and updates on what it sampled; raises SpecError for a job that cannot work."""
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
    """A learner holding first states, and what it serves."""

    groups: tuple[Group, ...]
    learner: Learner
    acting: Sequence[ActingPolicies]
    """By agent class."""


def _scopes(job: Job) -> list[_Scope]:
    """Raises ImportError without torch."""
    import torch

    from marless.nets.acting import ActingPolicies

    torch.set_num_interop_threads(1)  # functions one after another: none is slowed down by its neighbours
    torch.set_num_threads(1)
    spec, all_groups = job.spec, initial_groups(job.spec.sharing.groups, job.spaces)
    algorithm, made = algorithms.algorithm(spec.algorithm.name), []
    for scope in scopes(algorithm, spec.algorithm, job.spaces):
        learner = algorithm.learner(spec.algorithm.warm(), LearnerContext(spec.model, job.spaces, scope, "cpu"))
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
    job: Job, parts: Sequence[_Scope], envs: int, steps: int, count: int
) -> tuple[list[Trajectory], list[float]]:
    """What `count` actors sampled, and the seconds of some; without policies chance plays, and nothing is sampled."""
    from marless.data.rollout import play, rollout
    from marless.envs import registry as environments

    env = environments.make(job.spec.env.name, job.spec.env.options, envs)
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
    job: Job, parts: Sequence[_Scope], trajectories: Sequence[Trajectory], number: int, scale: float
) -> tuple[FunctionSeconds, ...]:
    """The functions of one update of every scope, on one thread, extrapolated to `scale` times the samples."""
    from marless.algos.base import Measure, RoundInput

    measure = Measure(curvature=job.spec.curvature if job.curvature else None, noise=job.noise)
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
            grows = run.function not in ("curvature", "similarity")
            seconds = run.vcpu_s * (scale if grows else 1.0)
            waits = after.get((index, f"{run.function}/{run.name}"), ())
            found.append(FunctionSeconds(run.function, run.name, index, seconds, waits))
    return tuple(found)


def main() -> None:
    """Calibrate the job on standard input; a job that cannot be is said on standard error, with exit code 1."""
    try:
        sys.stdout.write(calibrate(from_json(sys.stdin.read())).to_json())
    except MarlessError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
