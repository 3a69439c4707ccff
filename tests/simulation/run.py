"""One simulation: a job of a few rounds, run to its end by the whole system, with what befalls it drawn from a seed."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from marless.jobs import spec as specs
from marless.jobs.job import PreparedJob, prepare
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from marless.services.learner_pool.updates import Updates
from marless.services.param_store.aggregation import Aggregator
from tests.simulation.asynchronous import AsynchronousChecks
from tests.simulation.chaos import Chaos, drawn
from tests.simulation.checks import Checks, Reference
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network, Weather
from tests.simulation.surroundings import Descriptors, Trap, surroundings
from tests.simulation.system import SERVICES, System, production
from tests.templates import SCRIPTED

MOST_S = 600.0
"""Virtual seconds within which a job must end."""
ACTORS, ROUNDS = 2, 4
MORE_ACTORS, VERSIONS = 3, 5
"""Of jobs that have no rounds; there are fewer workers than actors."""
RUNS_A_COLLECTION = 40
_runs = itertools.count(1)


@dataclass(frozen=True)
class Plan:
    """What is simulated."""

    schedule: str = "synchronous"
    episodes: str = "carried"


IN_ROUNDS = tuple(itertools.starmap(Plan, itertools.product(("synchronous", "pipelined"), ("carried", "fresh"))))
ASYNCHRONOUS: dict[str, Any] = {
    "stellaris": {"name": "stellaris", "learners": 2},
    "softsync": {
        "name": "stellaris",
        "learners": 3,
        "batch": 2,
        "aggregation": {"rule": "softsync", "gradients": 2, "step": "separate"},
    },
}
"""Settings of schedule `stellaris`, by the name of the rule of aggregation."""
OF_GRADIENTS = tuple(Plan(name, "fresh") for name in ASYNCHRONOUS)
OF_UPDATES = (Plan("off-policy", "fresh"),)
"""Jobs whose learner makes each version by itself."""
REGROUPING = (Plan("regrouping", "fresh"),)
"""Jobs whose groups change every other version."""
PLANS = (*IN_ROUNDS, *OF_GRADIENTS, *OF_UPDATES, *REGROUPING)
ON_POLICY: dict[str, Any] = {"name": "ippo", "epochs": 1, "minibatches": 1}
OFF_POLICY: dict[str, Any] = {"name": "iql", "updates": 1, "batch": 1, "warmup": 0, "replay": {"capacity": 64}}


def plan_of(seed: int) -> Plan:
    """Seeds take turns among the plans."""
    return PLANS[seed % len(PLANS)]


@contextmanager
def scripted() -> Iterator[pytest.MonkeyPatch]:
    """While the context lasts, the policy that changes groups is installed, as a third party's is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [*sys.path, str(SCRIPTED)])
        yield patched


@cache
def job_of(plan: Plan) -> PreparedJob:
    with scripted():
        return _job_of(plan)


def _job_of(plan: Plan) -> PreparedJob:
    actors, rounds = (ACTORS, ROUNDS) if plan in IN_ROUNDS else (MORE_ACTORS, VERSIONS)
    return prepare(
        specs.parse(
            {
                "seed": 3,
                "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 2}},
                "algorithm": OFF_POLICY if plan in OF_UPDATES else ON_POLICY,
                "model": {"hidden": [2]},
                "actors": {"count": actors, "envs": 1, "steps": 2, "episodes": plan.episodes, "timeout_s": 20},
                "learner": {"timeout_s": 20},
                "evaluation": {"every": 2, "episodes": 2, "random_episodes": 2},
                "checkpoint": {"every": 2, "keep": 2},
                "schedule": "stellaris"
                if plan in (*OF_UPDATES, *REGROUPING)
                else ASYNCHRONOUS.get(plan.schedule, plan.schedule),
                "sharing": {"name": "scripted", "period": 2} if plan in REGROUPING else "fixed",
                "stop": {"rounds": rounds},
            },
            "spec",
        )
    )


class Simulation:
    """One run of one seed; without a seed, nothing befalls it."""

    def __init__(self, seed: int | None, plan: Plan, directory: Path) -> None:
        self.chance = random.Random(0 if seed is None else seed)
        self.loop = VirtualLoop(self.chance)
        self._hash = hashlib.sha256()
        self.lines: list[str] = []
        self.network = Network(self.loop, self.chance, self.log)
        self.system = System(self.loop, self.chance, directory, job_of(plan))
        self.system.died = self._died
        self.descriptors = Descriptors()
        self.trap = Trap(lambda process: process.kill(), self._passed)
        self.problems: list[str] = []
        if plan not in IN_ROUNDS:
            self.checks: Checks = AsynchronousChecks(self.system, self._found)
        else:
            self.checks = Checks(self.system, None if seed is None else undisturbed(plan), self._found)
        self.chaos = Chaos(self.system, self.network, self.trap, self.chance)
        self.weather, self.faults = (Weather(), []) if seed is None else drawn(self.chance)
        self.reference: Reference | None = None
        self.loop.set_exception_handler(self._defect)

    def log(self, *words: object) -> None:
        line = f"{self.loop.time():.6f} {self.loop.events} {' '.join(map(str, words))}"
        self._hash.update(line.encode())
        self.lines.append(line)

    @property
    def fingerprint(self) -> str:
        """Of all that has happened."""
        return self._hash.hexdigest()

    def _found(self, problem: str) -> None:
        self.log("problem", problem)
        self.problems.append(problem)

    def run(self) -> None:
        with scripted() as patched:
            production(patched, self.system)
            self._watch(patched)
            with surroundings(self.loop, self.network, self.chance, self.trap, self.descriptors) as complaints:
                try:
                    self.loop.run_until_complete(self._main())
                finally:
                    self.problems += complaints.found
                    self._tidy()

    async def _main(self) -> None:
        for service in SERVICES[::-1]:
            self.system.start(service)
        self.chaos.begin(self.weather, self.faults)
        client = self.system.process("client")
        using = client.start(self.system.use())
        with suppress(TimeoutError):
            async with asyncio.timeout(MOST_S):
                await asyncio.wait([using])
        if not using.done():
            self._found(f"the job has not ended after {MOST_S:g} s")
        elif using.exception():
            self._found(f"the client failed: {using.exception()!r}")
        else:
            self.reference = self.checks.ended(self.system.state, self.system.reason)

    def _watch(self, patched: pytest.MonkeyPatch) -> None:
        """See what the learner pool takes in, and which updates and aggregations the services are asked for."""
        store, update, aggregate = TrajectoryBuffer._store, Updates.update, Aggregator.run
        checks = self.checks

        def stored(buffer: TrajectoryBuffer, known: Any, file: Any) -> None:
            checks.stored(known.waiting.get((file.header.round, file.header.index)), file)
            store(buffer, known, file)

        async def updated(updates: Updates, request: Any) -> Any:
            checks.requested(request.round, request.epoch)
            return await update(updates, request)

        async def aggregated(aggregator: Aggregator, wanted: Any) -> Any:
            checks.requested(wanted.round, wanted.epoch)
            return await aggregate(aggregator, wanted)

        patched.setattr(Aggregator, "run", aggregated)
        patched.setattr(TrajectoryBuffer, "_store", stored)
        patched.setattr(Updates, "update", updated)

    def _passed(self, failpoint: str) -> None:
        self.log("passes", failpoint)
        self.checks.passed(failpoint)

    def _died(self, process: Process) -> None:
        self.log("dead", process.name)
        self.descriptors.end(process)
        self.system.workers.pop(process.name, None)
        self.chaos.died(process)

    def _defect(self, _loop: Any, context: dict[str, Any]) -> None:
        self.problems.append(f"{context['message']}: {context.get('exception')!r}")

    def _tidy(self) -> None:
        """End all tasks where they are."""
        self.loop.set_exception_handler(lambda _loop, _context: None)  # of killed processes, nobody asks
        for process in (*self.system.running.values(), *self.system.workers.values()):
            process.alive = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in self.loop.tasks:
                asyncio._unregister_task(task)
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with suppress(BaseException):
                        task.get_coro().close()  # type: ignore[union-attr]
        self.loop.tasks.clear()
        self.loop.close()


@cache
def undisturbed(plan: Plan) -> Reference:
    """What the job comes to if nothing befalls it."""
    simulation = simulate(None, plan)
    assert not simulation.problems and simulation.reference, simulation.problems
    return simulation.reference


def simulate(seed: int | None, plan: Plan) -> Simulation:
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir="/dev/shm"))
    try:
        simulation = Simulation(seed, plan, directory)
        simulation.run()
        return simulation
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if next(_runs) % RUNS_A_COLLECTION == 0:
            gc.collect()  # what killed processes have mapped is closed only now
