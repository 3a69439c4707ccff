"""Measures what it costs that a learner worker is on another host than its pool: `python -m bench.learner_hosts`.

Two (with --before, three) sets of services wait side by side, over TLS: one whose learner worker maps the pool's files,
one whose learner worker is in another network and mount namespace, and the one-host set of another checkout. They
train the same jobs in turns, one at a time. Needs root and `ip`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench import harness
from bench.harness import Row, spread
from bench.processes import Cpu
from tests import certificates
from tests.hosts.network import network
from tests.integration.hosts import SERVICES, Hosts, running_hosts

HERE, APART, BEFORE = "same host", "other host", "same host, before"
WARM = 4
"""Rounds at the beginning of a job that do not count."""
ENV_STEPS = 2 * 80 * 25
"""Of a round."""
ELSEWHERE = harness.ROOT / "tests" / "integration" / "elsewhere"
JOBS: dict[str, Row] = {
    "IPPO": {"algorithm": {"name": "ippo", "lr": 0.002}, "stop": {"rounds": 44}},
    "VDN": {"algorithm": {"name": "vdn", "lr": 0.001, "warmup": 1000}, "stop": {"rounds": 12}},
}


def document(name: str) -> Row:
    """A job of 4,000 env steps a round."""
    return JOBS[name] | {
        "env": {"name": "mpe/simple_spread", "options": {"agents": 3}},
        "actors": {"count": 2, "envs": 80, "steps": 25, "episodes": "fresh"},  # as before, when there was no other way
        "evaluation": {"every": 0, "random_episodes": 2, "episodes": 2},
    }


@dataclass(frozen=True)
class Run:
    """What one job took in its steady state."""

    rounds_s: tuple[float, ...]
    """Unix times at which its rounds ended."""
    cpu_ms: float
    """CPU milliseconds a round, of all services and workers."""

    @property
    def rate(self) -> float:
        """Env steps per second of a quick round: a quarter are quicker. Load by other programs changes it least."""
        lasted_s = [now_s - then_s for then_s, now_s in itertools.pairwise(self.rounds_s[WARM - 1 :])]
        return ENV_STEPS / harness.percentile(lasted_s, 25)


async def trained(hosts: Hosts, name: str, job: str) -> Run:
    """Train a job."""
    spec = hosts.place / f"{job}.yaml"
    spec.write_text(json.dumps(document(name)), encoding="utf-8")
    before_s = _cpu_s(hosts)
    await hosts.marless("submit", str(spec), "--job", job, "--wait")
    used_s = _cpu_s(hosts) - before_s
    lines = (hosts.place / "runs" / job / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    rounds_s = tuple(json.loads(line)["ended_s"] for line in lines)
    return Run(rounds_s, 1000 * used_s / len(rounds_s))


def _cpu_s(hosts: Hosts) -> float:
    """CPU seconds that the services and their workers have used so far."""
    measured = Cpu()
    for process in hosts.processes.values():
        measured(psutil.Process(process.pid))
    return sum(measured.looks[-1].cpu_s.values())


@asynccontextmanager
async def sets(place: Path, before: Path | None) -> AsyncIterator[dict[str, Hosts]]:
    """The sets of services by name; each has the first host to itself, but for the learner worker of one of them."""
    async with AsyncExitStack() as stack:
        here, apart = stack.enter_context(network(2))
        tls = certificates.made(_directory(place / "tls"), here.address)
        moved = {"ELSEWHERE": "/dev/shm", "ELSEWHERE_NETWORK": apart.name}
        found = {}
        for name in (HERE, APART, *((BEFORE,) if before else ())):
            root = before if before and name == BEFORE else harness.ROOT
            common = {"MARLESS_ADVERTISE": here.address, "PYTHONPATH": f"{ELSEWHERE}:{root}"}
            of_service = dict.fromkeys(SERVICES, common)
            if name == APART:
                of_service["learner_pool"] = common | moved
            prefixes = dict.fromkeys(SERVICES, ("env", "-C", str(root), *here.command))
            found[name] = await stack.enter_async_context(
                running_hosts(_directory(place / name.replace(" ", "-")), tls, of_service, prefixes)
            )
        yield found


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


Runs = dict[str, dict[str, list[Run]]]
"""By job, then by set of services."""


async def measure(before: Path | None, runs: int) -> Runs:
    """Train each job `runs` times with each set of services. Another set is the first of each turn."""
    made: Runs = {name: {} for name in JOBS}
    with tempfile.TemporaryDirectory() as place:
        async with sets(Path(place), before) as found:
            for run, name in itertools.product(range(runs), JOBS):
                first = run % len(found)
                for each in [*found][first:] + [*found][:first]:
                    made[name].setdefault(each, []).append(await trained(found[each], name, f"{name.lower()}-{run}"))
                rates = {each: round(of[-1].rate) for each, of in made[name].items()}
                harness.say(f"run {run + 1} of {runs}: {name}: {rates} env steps/s")
    return made


def rows(made: Runs) -> list[Row]:
    """A row for each job and set; ratios are those of runs of one turn."""
    return [
        {
            "job": name,
            "learner worker": each,
            "env steps/s": spread([run.rate for run in of]).cell(0),
            f"of {HERE} (%)": spread([100 * a.rate / b.rate for a, b in zip(of, by_set[HERE], strict=True)]).cell(1),
            "CPU ms a round": spread([run.cpu_ms for run in of]).cell(0),
            "runs": len(of),
        }
        for name, by_set in made.items()
        for each in (HERE, APART, BEFORE)
        if (of := by_set.get(each))
    ]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=7)
    parser.add_argument("--before", type=Path, help="another checkout, whose rates on one host are measured, too")
    args = parser.parse_args()
    about = harness.machine()
    made = rows(asyncio.run(measure(args.before, args.runs)))
    harness.report("learner_hosts", about, made, {}, args.json)


if __name__ == "__main__":
    main()
