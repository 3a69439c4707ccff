"""What benchmarks compute from what systems say: rates, crossings, spreads, ratios."""

import argparse
import json
import math
import sys

import psutil
import pytest

from bench import harness, report, round_overhead, throughput, time_to_return
from bench.cold_start import Footprint
from bench.harness import ROOT, percentile, spread
from bench.peers import install
from bench.processes import role
from bench.systems import Point, Request, crossing, named, points, rounds, settings, steady_rate, systems
from bench.time_to_return import TUNING
from marless.fleet.launchers.template import command
from marless.jobs import spec
from marless.learning.algos.ppo.algorithms import PPOConfig

RECORDED = """\
Submoduled environments not found. Skipping import.
{"event": "iteration", "env_steps": 4000, "wall_s": 10.0, "return": null}
{"event": "iteration", "env_steps": 8000, "wall_s": 12.0, "return": -24.5}
 20%|██        | 1/5 [00:04<00:16,  4.16s/it]
17
{"event": "iteration", "env_steps": 12000, "wall_s": 16.0, "return": null}
{"event": "iteration", "env_steps": 16000, "wall_s": 20.0, "return": -20.9}
{"event": "iteration", "env_steps": 20000, "wall_s": 29.0, "return": -21.3}
"""


@pytest.fixture
def curve():
    return points(harness.json_lines(RECORDED.splitlines()))


def test_only_json_objects_are_read(curve):
    assert [point.env_steps for point in curve] == [4000, 8000, 12000, 16000, 20000]
    assert curve[1] == Point(8000, 12.0, -24.5)


def test_steady_rate_leaves_out_start_up_and_the_last_iteration(curve):
    assert steady_rate(curve, skip=1) == pytest.approx(12000 / 10)
    assert steady_rate(curve, skip=2) == pytest.approx(8000 / 8)
    with pytest.raises(ValueError, match="more than 5 iterations"):
        steady_rate(curve, skip=4)


def test_crossing_is_the_first_evaluation_that_reaches_the_target(curve):
    assert crossing(curve, -21.0).wall_s == 20.0
    assert crossing(curve, -24.5).wall_s == 12.0
    assert crossing(curve, -20.0).wall_s == math.inf


def test_rounds_of_marless_count_from_the_start_of_the_process():
    records = [
        {"round": 0, "env_steps": 4000, "ended_s": 101.5, "evaluation": None, "earlier_evaluation": None},
        {"round": 1, "env_steps": 8000, "ended_s": 102.25, "evaluation": {"return": -20.0}, "earlier_evaluation": None},
    ]
    assert rounds(records, started_s=100.0) == (Point(4000, 1.5, None), Point(8000, 2.25, -20.0))
    records[1]["earlier_evaluation"] = {"rounds": 1, "env_steps": 4000, "returns": {"return": -25.0}}
    assert rounds(records, started_s=100.0) == (Point(4000, 2.25, -25.0), Point(8000, 2.25, -20.0))


def test_spread_and_its_cell():
    assert spread([3.0, 1.0, 2.0]).cell(1) == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert spread([12.5, math.inf, 7.25]).cell(1) == {"median": 12.5, "min": 7.2, "max": None}
    assert json.dumps(spread([10.6]).cell(0)) == '{"median": 11, "min": 11, "max": 11}'


def test_percentile_is_the_nearest_rank():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, p) for p in (0, 20, 50, 95, 100)] == [1.0, 1.0, 3.0, 5.0, 5.0]


def test_table_shows_spreads_gaps_and_what_never_happened():
    rows = [{"system": "a", "s": {"median": 1234.5, "min": 1.0, "max": None}}, {"system": "bb", "n": 3}]
    assert harness.table(rows).splitlines() == [
        "| system | s                     | n |",
        "| ------ | --------------------- | - |",
        "| a      | 1,234.5 (1.0 – never) |   |",
        "| bb     |                       | 3 |",
    ]


def test_headlines_are_ratios_of_medians():
    def steady(rate):
        return tuple(Point(4000 * k, 4000 * k / rate, -20.0 if k == 9 else None) for k in range(1, 11))

    curves = {"marless": [steady(400.0), steady(600.0), steady(500.0)], "rllib": [steady(50.0)]}
    assert throughput.headline(curves) == {"env_steps_per_s": 500, "ratio_to": {"rllib": 10.0}}
    assert time_to_return.headline(curves, -21.0) == {
        "target_return": -21.0,
        "seconds": 72.0,
        "times_sooner_than": {"rllib": 10.0},
    }
    assert time_to_return.headline(curves, -1.0)["seconds"] is None


def test_a_chosen_value_says_where_the_grid_has_its_edge():
    said = [harness.chosen(value, (5e-4, 5e-4, 1e-3, 2e-3)) for value in (5e-4, 1e-3, 2e-3)]
    assert said == ["0.0005 (smallest tried)", "0.001", "0.002 (largest tried)"]
    assert harness.chosen(5e-4, (5e-4,)) == "0.0005"  # nothing was chosen


def test_the_best_rate_is_that_with_which_most_seeds_get_there_then_the_soonest():
    def there(*seconds):
        return [(Point(1, 0.5, -30.0), Point(2, each, -20.0)) for each in seconds]

    curves = {1e-3: there(9.0, 8.0), 2e-3: [*there(1.0), (Point(1, 0.5, -30.0),)], 4e-3: there(2.0, 14.0)}
    assert time_to_return.best_rate(curves, -21.0) == 4e-3
    assert time_to_return.best_rate(curves | {3e-3: there(7.0, 7.0)}, -21.0) == 3e-3
    assert time_to_return.best_rate({1e-3: there(1.0), 2e-3: there(1.0)}, -1.0) == 1e-3


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--runs=0", "'0' is not a whole number above 0"),
        ("--tuning-seeds=x", "'x' is not a whole number above 0"),
        ("--rates=1e-3,-1", "'1e-3,-1' are not learning rates above 0"),
        ("--rates=x", "'x' are not learning rates above 0"),
    ],
)
def test_options_that_measure_nothing_are_refused_before_anything_runs(monkeypatch, capsys, option, said):
    monkeypatch.setattr("sys.argv", ["time_to_return", option])
    with pytest.raises(SystemExit):
        time_to_return.main()
    assert said in capsys.readouterr().err


def test_every_system_learns_at_the_rate_that_tuning_seeds_chose_for_it():
    asked = []

    def system(best):
        def run(request):
            asked.append((request.seed, request.lr))
            return (Point(4000, 1.0 if request.lr == best else 2.0, -20.0),)

        return run

    found, requests = {"a": system(2e-3), "b": system(1e-3)}, [Request(TUNING + seed, 1, 1, -21.0) for seed in (0, 1)]
    rates = time_to_return.best_rates(found, requests, (1e-3, 2e-3), -21.0)
    assert rates == {"a": time_to_return.Tuned(2e-3, 1.0), "b": time_to_return.Tuned(1e-3, 1.0)}
    assert len(asked) == 8
    asked.clear()
    time_to_return.measure(found, [Request(0, 1, 1, -21.0)], {name: each.rate for name, each in rates.items()})
    assert asked == [(0, 2e-3), (0, 1e-3)]
    assert time_to_return.best_rates(found, requests, (5e-4,), -21.0) == dict.fromkeys("ab", time_to_return.Tuned(5e-4))


def test_report_replaces_one_section():
    document = "# A\n<!-- x -->\nold\n<!-- /x -->\nrest <!-- y -->\n<!-- /y -->\n"
    assert report.insert(document, "x", r"\1 new") == document.replace("old", r"\1 new")
    with pytest.raises(ValueError, match="no section"):
        report.insert(document, "z", "")


def test_marless_is_given_the_task():
    def load(sections):
        return spec.load(ROOT / "examples/spread.yaml", [f"{k}={json.dumps(v)}" for k, v in sections.items()])

    job = load(settings(Request(seed=7, env_steps=9000, eval_every=5, stop_return=-21.0)))
    assert isinstance(job.algorithm, PPOConfig)
    assert (job.seed, job.stop.env_steps, job.stop.greedy_return, job.evaluation.every) == (7, 9000, -21.0, 5)
    assert job.actors.count * job.actors.envs * job.actors.steps == 4000
    assert (job.model.hidden, job.algorithm.epochs, job.algorithm.lr, job.algorithm.gamma) == ((64, 64), 4, 5e-4, 0.95)
    empty = load(round_overhead.SETTINGS | {"stop": {"rounds": 1}})
    assert (empty.actors.envs, empty.actors.steps, empty.actors.count) == (1, 1, 1)


def test_unknown_peers_are_named():
    assert named("rllib,benchmarl/vmas,jaxmarl") == ("rllib", "benchmarl/vmas", "jaxmarl")
    for wrong in ("rlib", "benchmarl/vma", "rllib/vmas"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"unknown: {wrong}; known: benchmarl, "):
            named(wrong)


def test_a_peer_is_run_with_its_simulator(monkeypatch):
    ran = []

    def run(command, *, timeout_s):
        ran.append(command[command.index("-m") + 1 :])
        return harness.Output(0.0, ())

    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr(install, "installed", lambda peer: peer == "benchmarl")
    with pytest.raises(SystemExit, match="jaxmarl is not installed"):
        systems(("benchmarl", "jaxmarl"))
    measured = systems(("benchmarl", "benchmarl/vmas"), without_marless=True)
    assert [*measured][-2:] == ["benchmarl", "benchmarl/vmas"]
    for name in ("benchmarl", "benchmarl/vmas"):
        measured[name](Request(0, 10))
    assert [each[0] for each in ran] == ["bench.peers.run_benchmarl"] * 2
    assert [each[each.index("--simulator") + 1] for each in ran] == ["mpe2", "vmas"]


def test_a_failing_program_says_why():
    with pytest.raises(harness.BenchError, match=r"exit code 3:\nno such game"):
        harness.run(["sh", "-c", "echo no such game >&2; exit 3"], timeout_s=20)


def test_a_program_past_its_deadline_ends_with_its_children_and_keeps_its_lines():
    script = """sleep 300 & echo "{\\"pid\\": $!}"; wait"""
    seen = []
    output = harness.run(["sh", "-c", script], timeout_s=0.7, watch=lambda process: seen.append(process.pid))
    assert not psutil.pid_exists(output.lines[0]["pid"])
    assert seen
    assert not psutil.pid_exists(seen[0])


def test_roles_are_read_from_command_lines():
    assert role(["python", "-m", "marless.services.actor_pool.worker", "--pool", "x"]) == "actor worker"
    assert role(command("marless.services.learner_pool.worker", ())) == "template of learner workers"
    assert role(command("services", ())) == "template of services"
    assert role(["python", "-m", "marless.services.actor_pool", "--listen", "x"]) == "actor_pool"
    assert role(["/a/redis-server", "unixsocket:/b"]) == "redis-server"
    assert role(["python", "/a/marless", "train"]) == "marless train"


def test_footprint_keeps_the_largest_moment():
    footprint = Footprint()
    footprint(psutil.Process())
    memory = psutil.Process().memory_full_info()
    assert footprint.rows[0]["RSS (MB)"] == pytest.approx(memory.rss / 1e6, rel=0.1)
    assert footprint.total_pss_mb >= footprint.rows[0]["PSS (MB)"]
    assert footprint.largest_rss_mb("learner worker") == 0.0


def test_an_earlier_round_is_compared_with_the_present_one_of_its_turn():
    present, before = [[1.0, 2.0, 3.0], [2.0, 4.0, 9.0]], [[1.0, 3.0, 9.0], [1.0, 6.0, 9.0]]
    found = round_overhead.row("before", before, present)
    assert found["p50 (ms)"] == {"median": 4.5, "min": 3.0, "max": 6.0}
    assert found["p50 of present (%)"]["median"] == 150.0


def test_measured_programs_keep_their_bytecode(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    says = "import json, sys; print(json.dumps({'keeps': not sys.dont_write_bytecode}))"
    assert harness.run([sys.executable, "-c", says], timeout_s=60).lines == ({"keeps": True},)
