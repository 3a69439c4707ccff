"""Asynchronous learning on modelled slots: which schedule comes to a return first, at what cost, how stale.

    python -m bench.asynchronous --machines uneven --tuning-seeds 2 --target=-19 --json asynchronous_uneven.json
    python -m bench.asynchronous --slots --rollouts 6000
    python -m bench.asynchronous --machines uneven --actors 48 --learners 16 --rollouts 3200 --target=-19 \
        --run-file 64.jsonl
    python -m bench.asynchronous --game adversary --machines uneven

Independent PPO in `simple_spread`, three agents, or in `simple_adversary`, two agents and their adversary. There, the
score is the gain of the weaker side: its return against random opponents, less that of a random side in its place.
Rollouts, gradients, their aggregation and updates are really computed, in this process and in the order in which they
begin on a virtual clock; how long they take there is drawn from CPU times that this program measures first. So the
seconds are those of as many slots as asked for, each as fast as a core of this machine that does nothing else, without
the time of messages.

All systems learn from equally many rollouts. Each has its own learning rate: the best of `--rates`, with seeds that are
not used again. Systems:
- `synchronous`, `pipelined`: rounds of all actors, each followed by one learner's PPO update (epochs and minibatches as
  usual); `synchronous in parts`: all learners share that update, at best;
- `sync`: several learners, one gradient of each rollout, and a barrier: every version waits for all of them;
- `stellaris`; with data of up to 64 versions; with gradients of three rollouts each, and so a third of the versions of
  lag; without its bound; without its weights; with ratios truncated over the learners, as printed and as in the
  authors' code (a floor); `softsync`, `ssp` and `async`.
`uneven` machines have a quarter of the actors at half speed, and stragglers: one function in twenty takes five times as
long. With `--lengths`, rollouts also differ by themselves, as where episodes end at different times: they take a
quarter to 1.75 times as long, and are learned from as if all had as many steps.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter

from bench import harness
from bench.asynchronous_work import GAMES, Functions, Game, Result, Setting, System, Training, UpdateSeconds, trained
from bench.harness import Row, spread
from bench.kept_rows import KeptRows
from bench.workers import on_one_thread
from marless.cost.simulation.asynchronous import SlotCounts, SlotSeconds, SpeedSpread, simulate
from marless.jobs.schedules.base import Command
from marless.jobs.schedules.stellaris import Stellaris, StellarisConfig

MEASURED, ROUNDS = 40, 4
"""Gradients and updates whose durations are measured."""
TUNING = 1000
"""The first seed of those that choose a learning rate."""
LENGTHS = (0.25, 0.5, 1.0, 1.5, 1.75)
"""How long rollouts take with `--lengths`, relative to their mean."""
MACHINES = {"even": SpeedSpread(), "uneven": SpeedSpread(slow=0.25, straggling=0.05)}
SYSTEMS: Mapping[str, System] = {
    "synchronous": System(rounds="synchronous"),
    "synchronous in parts": System(rounds="synchronous", in_parts=True),
    "pipelined": System(rounds="pipelined"),
    "sync": System(settings={"barrier": True, "aggregation": "sync"}),
    "stellaris": System(settings={"aggregation": "stellaris"}),
    "stellaris of older data": System(settings={"aggregation": "stellaris", "data_lag": 64}),
    "stellaris in threes": System(settings={"aggregation": "stellaris", "batch": 3}),
    "stellaris without bound": System(
        settings={"aggregation": {"rule": "stellaris", "decay": 1.0, "first_round": 10_000}}
    ),
    "stellaris without weights": System(settings={"aggregation": {"rule": "stellaris", "weights": "equal"}}),
    "stellaris with truncation": System(settings={"aggregation": "stellaris"}, algorithm={"truncation": "least"}),
    "stellaris with a floor": System(settings={"aggregation": "stellaris"}, algorithm={"truncation": "floor"}),
    "softsync of 4": System(settings={"aggregation": "softsync"}),
    "ssp": System(settings={"aggregation": "ssp"}),
    "async": System(settings={"aggregation": "async"}),
}


def durations_of(game: Game, actors: int, learners: int, file: Path | None) -> tuple[SlotSeconds, UpdateSeconds]:
    """The durations of a run file, so that all its runs have the same; measured if there is none."""
    beside = file.with_suffix(".durations.json") if file else None
    if beside and beside.exists():
        row = json.loads(beside.read_text("utf-8"))
        return TypeAdapter(SlotSeconds).validate_python(row["functions"]), UpdateSeconds(**row["update_s"])
    durations, update_s = measured(game, actors, learners)
    if beside:
        beside.write_text(json.dumps({"functions": asdict(durations), "update_s": asdict(update_s)}), "utf-8")
    return durations, update_s


def measured(game: Game, actors: int, learners: int) -> tuple[SlotSeconds, UpdateSeconds]:
    """CPU seconds of rollouts, gradients and aggregations in this process, and of updates of rounds."""
    work = Functions(Training(game, 0, 1e-3, {}), truncates=False)
    found: dict[str, list[float]] = {"rollout": [], "learn": [], "publish": []}
    schedule = Stellaris(StellarisConfig.model_validate({"aggregation": "async", "learners": 1}))

    class Clocked:
        def do(self, command: Command) -> None:
            before_s = time.process_time()
            work.do(command)
            found[type(command).__name__.lower()].append(time.process_time() - before_s)

    durations = SlotSeconds(sample_s=[1.0], learn_s=[1.0])
    simulate(schedule, SlotCounts(1, 1), durations, SpeedSpread(), gradients=MEASURED, seed=0, work=Clocked())
    later = {name: each[MEASURED // 4 :] for name, each in found.items()}
    publish_s = sorted(later["publish"])[len(later["publish"]) // 2]
    update_s = UpdateSeconds(
        whole=_updates(game, actors),
        part=_updates(game, max(actors // learners, 1)),
        lagging=_updates(game, actors, lags=True),
    )
    return SlotSeconds(sample_s=later["rollout"], learn_s=later["learn"], publish_s=publish_s), update_s


def _updates(game: Game, rollouts: int, *, lags: bool = False) -> list[float]:
    """CPU seconds of updates from so many rollouts, without the first one."""
    one, found = Training(game, 0, 1e-3, {}, lags=lags), []
    for round_ in range(ROUNDS):
        taken = [one.sample(rollouts * round_ + number, one.states) for number in range(rollouts)]
        before_s = time.process_time()
        one.update(round_, taken)
        found.append(time.process_time() - before_s)
    return found[1:]


class Runs:
    """Runs by system, seed and learning rate; with a file, those that it has are not made again."""

    def __init__(self, setting: Setting, file: Path | None, *, lengths: bool = False) -> None:
        self._setting = setting
        self._lengths = ", lengths differ" if lengths else ""
        self._rows = KeptRows(file, harness.machine())

    def get(self, name: str, seed: int, lr: float) -> Result:
        """This run, made if it is not known."""
        setting = self._setting
        slots = f"{setting.game.env}, {setting.actors}+{setting.learners} slots, {setting.machines}"
        key = f"{name}, seed {seed}, rate {lr:g}, {slots}, {setting.rollouts} rollouts{self._lengths}"
        row = self._rows.get(key)
        if row is None:
            result = trained(SYSTEMS[name], setting, seed=seed, lr=lr)
            harness.say(f"{key}: last {setting.game.measure} {last(result):.2f}")
            self._rows.put(key, row := {"result": asdict(result)})
        return TypeAdapter(Result).validate_python(row["result"])


def last(result: Result) -> float:
    """The mean of the last three evaluations."""
    return -math.inf if result.diverged else sum(result.scores[-3:]) / 3


def best_rate(runs: Runs, name: str, rates: Sequence[float], seeds: int, target: float) -> float:
    """The rate with which most tuning seeds reach the target, soonest; if none does, that of the best last score."""

    def merit(lr: float) -> tuple[int, float, float]:
        found = [runs.get(name, TUNING + seed, lr) for seed in range(seeds)]
        times = [each.at_s[at] for each in found if (at := each.reached(target)) is not None]
        return len(times), -sum(times) / max(len(times), 1), sum(map(last, found))

    return max(rates, key=merit)


def row(name: str, rate: str, runs: Sequence[Result], reference: Sequence[Result], target: float, measure: str) -> Row:
    """A line of the table; figures of slots and queues are those of runs that have not diverged."""
    places, theirs = ([each.reached(target) for each in some] for some in (runs, reference))
    there = [(each, at) for each, at in zip(runs, places, strict=True) if at is not None]
    ratios = [
        before.at_s[then] / ours.at_s[at]
        for ours, at, before, then in zip(runs, places, reference, theirs, strict=True)
        if at is not None and then is not None
    ]
    whole = [each for each in runs if not each.diverged]
    return {
        "system": name,
        "rate": rate,
        f"seconds to {target:g}": _cell([each.at_s[at] for each, at in there], 2) or "never",
        "function seconds": _cell([each.worked_s[at] for each, at in there], 1),
        "seeds there": f"{len(there)} of {len(runs)}",
        "sooner": _cell(ratios, 2),
        f"last {measure}": _cell([last(each) for each in whole], 1) or "diverged",
        "staleness": _cell([each.staleness for each in whole], 2),
        "versions": round(sum(each.versions for each in whole) / max(len(whole), 1)),
        "actors busy": _cell([each.actors_busy for each in whole], 2),
        "learners busy": _cell([each.learners_busy for each in whole], 2),
        "longest queue": max((each.longest_queue for each in whole), default=0),
        "dropped": sum(each.dropped for each in whole),
    }


def _cell(values: Sequence[float], digits: int) -> Row | str:
    return spread(values).cell(digits) if values else ""


def slot_rows(setting: Setting, lags: Sequence[int | None], seed: int = 0) -> list[Row]:
    """How busy slots are under `stellaris`, by learners and data lag; nothing learns."""
    rows = []
    for learners in (8, 16, 18):
        for lag in lags:
            config = StellarisConfig.model_validate({"learners": learners, "data_lag": lag})
            slots, given = SlotCounts(setting.actors, learners), (setting.durations, setting.machines)
            course = simulate(Stellaris(config), slots, *given, gradients=setting.rollouts, seed=seed)
            rows.append(
                {
                    "actors": setting.actors,
                    "learners": learners,
                    "data lag": setting.actors if lag is None else lag,
                    "actors busy": round(course.actors_busy, 2),
                    "learners busy": round(course.learners_busy, 2),
                    "staleness": round(sum(course.staleness) / len(course.staleness), 2),
                    "longest queue": course.longest_queue,
                    "gradients a second": round(len(course.staleness) / course.ended_s),
                }
            )
    return rows


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--game", choices=GAMES, default="spread")
    parser.add_argument("--actors", type=int, default=16, help="slots of actors")
    parser.add_argument("--learners", type=int, default=8, help="slots of learners")
    parser.add_argument("--machines", choices=MACHINES, default="even")
    parser.add_argument("--lengths", action="store_true", help="rollouts differ in how long they take")
    parser.add_argument(
        "--rollouts", type=harness.positive, default=1600, help="rollouts of a run, of 500 env steps each"
    )
    parser.add_argument(
        "--rates", type=harness.rates, default="2e-3,4e-3,8e-3", help="learning rates to choose from, by comma"
    )
    parser.add_argument("--tuning-seeds", type=harness.positive, default=1, help="seeds for that choice")
    parser.add_argument("--target", type=float, help="score to be reached; by default, the game's")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="those to run, by comma; the first: the reference")
    parser.add_argument("--slots", action="store_true", help="instead: how busy slots are, without learning")
    parser.add_argument("--run-file", type=Path, help="file of finished runs, to go on with after an interruption")
    args = parser.parse_args()
    if unknown := [name for name in args.systems.split(",") if name not in SYSTEMS]:
        parser.error(f"--systems: there is no {', '.join(unknown)}; known: {', '.join(SYSTEMS)}")
    if min(args.actors, args.learners, args.rollouts, args.tuning_seeds, args.runs) < 1:
        parser.error("--actors, --learners, --rollouts, --tuning-seeds and --runs are at least 1")
    return args


def setting_of(args: argparse.Namespace) -> Setting:
    """What the command line asks for, with durations that are measured now or with the first runs of its file."""
    game = GAMES[args.game]
    durations, update_s = durations_of(game, args.actors, args.learners, args.run_file)
    if args.lengths:
        durations = replace(durations, sample_s=[length * each for each in durations.sample_s for length in LENGTHS])
    return Setting(
        game=game,
        actors=args.actors,
        learners=args.learners,
        machines=MACHINES[args.machines],
        durations=durations,
        update_s=update_s,
        rollouts=args.rollouts,
    )


def compared(args: argparse.Namespace, setting: Setting) -> list[Row]:
    """A line for each system, at its best rate."""
    target = setting.game.target if args.target is None else args.target
    runs, names = Runs(setting, args.run_file, lengths=args.lengths), args.systems.split(",")
    chosen = {name: best_rate(runs, name, args.rates, args.tuning_seeds, target) for name in names}
    found = {name: [runs.get(name, seed, chosen[name]) for seed in range(args.runs)] for name in names}
    reference = found[names[0]]
    rates = {name: harness.chosen(lr, args.rates) for name, lr in chosen.items()}
    return [row(name, rates[name], each, reference, target, setting.game.measure) for name, each in found.items()]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = parsed()
    on_one_thread()
    about, setting = harness.machine(), setting_of(args)
    if args.slots:
        harness.report("asynchronous_slots", about, slot_rows(setting, (None, 24, 40, 64)), {}, args.json)
        return
    durations = setting.durations
    headline = {
        "cpu_ms": {
            "rollout": round(1e3 * spread(durations.sample_s).median, 2),
            "gradient": round(1e3 * spread(durations.learn_s).median, 2),
            "aggregation": round(1e3 * durations.publish_s, 2),
            "update": round(1e3 * spread(setting.update_s.whole).median, 1),
            "part of an update": round(1e3 * spread(setting.update_s.part).median, 1),
        }
    }
    name = args.json.stem if args.json else f"asynchronous_{args.machines}"
    harness.report(name, about, compared(args, setting), headline, args.json)


if __name__ == "__main__":
    main()
