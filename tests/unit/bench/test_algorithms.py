"""What the comparison of algorithms computes from runs, and the jobs that it asks for."""

import argparse
import math
import time
from dataclasses import replace

import pytest

from bench import algorithms
from bench.algorithms import (
    CHOOSING_ENV_STEPS,
    CHOOSING_SEED,
    SETTINGS,
    System,
    evaluation_env_steps,
    headline,
    names,
    plays,
    row,
    settings,
)
from bench.run_file import Outcome, Request, RunFile
from bench.systems import Point
from bench.task import ALGORITHMS, ALIKE, EQUAL, GAMES, GRID, peer_env_steps
from marless.jobs import spec


def outcome(final: float, *, reached_s: float | None = None, sides=None) -> Outcome:
    """A run of two evaluations, the first at `reached_s` seconds and already past −21."""
    first = Point(12_000, reached_s or 5.0, -20.0 if reached_s else -25.0)
    return Outcome((first, Point(16_000, 6.0, None), Point(24_000, 9.0, final)), -26.0, sides=sides or {})


def test_a_row_of_a_cooperative_game():
    found = row("spread", "vdn", "marless", "own", [outcome(-19.0, reached_s=4.0), outcome(-23.0)])
    assert found["greedy return"] == "-21.00 [-23.00, -19.00]"
    assert (found["env steps"], found["random"], found["seeds there"]) == (24_000, -26.0, "1 of 2")
    assert (found["target"], found["env steps to it"]) == (-21.0, 12_000)
    assert found["seconds to it"] == {"median": None, "min": 4.0, "max": None}  # one never came
    assert found["wall-clock (s)"]["median"] == 9.0
    assert row("spread", "ippo", "marless", "own", [outcome(-19.0)])["target"] == -20.5
    compared = row("spread", "ippo", "marless", "equal", [outcome(-19.0), outcome(-23.0)])
    assert compared["each seed"] == "-19.0 / -23.0"
    assert not {"wall-clock (s)", "target"} & set(compared)


def test_a_row_of_a_game_of_two_sides():
    sides = [{"adversary": 2.0, "agent": 1.0}, {"adversary": 4.0, "agent": -1.0}]
    found = row("adversary", "iql", "marless", "own", [outcome(-9.0, sides=each) for each in sides])
    assert found["adversary, above chance"] == "+3.00 [2.00, 4.00]"
    assert found["agent, above chance"] == "+0.00 [-1.00, 1.00]"
    assert "env steps to it" not in found


def test_the_headline_says_how_many_times_sooner():
    results = {
        ("iql", "marless"): [outcome(-20.0, reached_s=4.0)],
        ("iql", "benchmarl"): [outcome(-20.0, reached_s=60.0)],
        ("vdn", "marless"): [outcome(-24.0)],
        ("vdn", "benchmarl"): [outcome(-24.0)],
    }
    assert headline(results) == {
        "iql": {"greedy_return": -20.0, "seconds": 4.0, "times_sooner_than": {"benchmarl": 15.0}},
        "vdn": {"greedy_return": -24.0, "seconds": None, "times_sooner_than": {}},
    }


def test_a_run_that_was_never_evaluated_has_no_return():
    with pytest.raises(ValueError, match="no final return"):
        _ = Outcome((Point(400, 1.0, None),)).final


def test_sums_of_rewards_are_left_out_where_rewards_compete():
    assert [a for a in ALGORITHMS if not plays("adversary", a)] == list(algorithms.TEAM_ONLY)
    assert all(plays("spread", a) for a in ALGORITHMS)


def test_carts_have_no_continuous_actions():
    assert [a for a in ALGORITHMS if not plays("cartpoles", a)] == ["maddpg", "iddpg"]
    request = Request("cartpoles", "vdn", 3, 104_000, 60.0, EQUAL)
    assert spec.parse({"name": "bench", **settings(request)}, "test").env.options == {"agents": 3}


@pytest.mark.parametrize("game", ["spread", "adversary"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_job_is_one(game, algorithm):
    request = Request(game, algorithm, 3, 120_000, 60.0)
    job = spec.parse({"name": "bench", **settings(request)}, "test")
    assert (job.seed, job.stop.env_steps) == (3, 120_000)
    per_round = job.actors.count * job.actors.envs * job.actors.steps
    assert per_round == 4_000
    assert job.evaluation.every == 2
    assert job.env.options["continuous_actions"] is (algorithm in ("maddpg", "iddpg"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_settings_are_valid_and_those_of_the_peer(algorithm):
    request = Request("spread", algorithm, 3, 120_000, 60.0, EQUAL)
    job = spec.parse({"name": "bench", **settings(request)}, "test")
    config, per_round = job.algorithm, job.actors.count * job.actors.envs * job.actors.steps
    assert (config.lr, config.max_grad_norm, config.gamma) == (5e-4, 0.5, 0.95)
    assert per_round * job.evaluation.every == 60_000  # half-way and at the end
    if algorithm in ("ippo", "mappo"):
        assert per_round == 4_000
    else:
        assert (per_round, config.updates, config.batch, config.target_tau) == (400, 16, 800, 0.005)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_alike_settings_differ_from_equal_ones_in_what_is_named(algorithm):
    equal, alike = (
        spec.parse({"name": "bench", **settings(Request("spread", algorithm, 3, 1_000, 60.0, EQUAL, alike=alike))}, "")
        for alike in (False, True)
    )
    changed = {
        name
        for name in equal.algorithm.model_dump()
        if getattr(equal.algorithm, name) != getattr(alike.algorithm, name)
    }
    assert changed == set(ALIKE[algorithm])


def test_the_best_of_several_settings_are_chosen_by_a_seed_of_their_own():
    made = []

    def run(request: Request) -> Outcome:
        made.append((request.rates, request.seed, request.env_steps))
        lucky = request.rates == GRID[1] and request.seed != CHOOSING_SEED
        final = -20.0 if request.rates == GRID[2] else -10.0 if lucky else -21.0
        return Outcome((Point(24_000, 9.0, final),), -26.0, request.rates)

    file = RunFile(None, {})
    found = System("marless", run, file).measured(Request("spread", "vdn", 0, 1, 1.0), SETTINGS["best"], 3)
    chosen = [(rates, CHOOSING_SEED, CHOOSING_ENV_STEPS) for rates in GRID]
    assert made == chosen + [(GRID[2], seed, 1) for seed in range(3)]
    assert [each.rates for each in found] == [GRID[2]] * 3
    assert row("spread", "vdn", "marless", "best", found)["settings"] == "best: lr 0.001, clip 10, τ 0.02"
    at_the_edge = [replace(each, rates=GRID[-1]) for each in found]
    said = row("spread", "vdn", "marless", "best", at_the_edge)["settings"]
    assert said == "best: lr 0.002 (largest tried), clip 0.5, τ 0.02"


def test_runs_that_are_compared_are_evaluated_at_their_end():
    for env_steps in (*(game.env_steps for game in GAMES.values()), CHOOSING_ENV_STEPS):
        for algorithm in ALGORITHMS:
            request = Request("spread", algorithm, 0, env_steps, 1.0, EQUAL)
            every = evaluation_env_steps(request)
            assert every % peer_env_steps(algorithm) == 0
            assert env_steps % every == 0


def test_unknown_names_are_refused():
    assert names(("a", "b"))("b,a") == ("b", "a")
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: c; known: a, b"):
        names(("a", "b"))("a,c")


def test_what_no_time_is_left_for_is_left_out(tmp_path, capsys):
    file, made = RunFile(tmp_path / "runs.jsonl", {}), []

    def run(request: Request) -> Outcome:
        made.append(request.seed)
        return outcome(-20.0)

    def compared(deadline_s):
        args = argparse.Namespace(
            game="spread", algorithms=["vdn", "iql"], settings=["equal"], runs=2, env_steps=None, limit_s=9.0
        )
        systems = [System("marless", run, file, deadline_s), System("benchmarl", run, file, deadline_s)]
        return [*algorithms.compared(args, systems)]

    assert compared(math.inf) == [(a, s, "equal") for a in ("vdn", "iql") for s in ("marless", "benchmarl")]
    assert made == [0, 1] * 4
    kept = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(kept[:3] + kept[4:]))
    file = RunFile(tmp_path / "runs.jsonl", {})
    # a run of VDN in BenchMARL is missing
    assert compared(time.monotonic()) == [("iql", "marless", "equal"), ("iql", "benchmarl", "equal")]
    assert made == [0, 1] * 4
    assert "the same command goes on" in capsys.readouterr().err


def test_runs_that_are_kept_are_not_made_again(tmp_path):
    file, made = tmp_path / "sub" / "runs.jsonl", []
    asked = Request("spread", "vdn", 0, 24_000, 60.0)

    def run(request: Request) -> Outcome:
        made.append((request.rates, request.seed))
        if len(made) == 4:
            raise KeyboardInterrupt
        curve = (Point(12_000, 5.0, None), Point(24_000, 9.0, -20.0 - request.seed))
        return Outcome(curve, -26.5, request.rates, {"agent": 1.5})

    def measured(name: str, about: dict[str, str]) -> list[list[Outcome]]:
        system = System(name, run, RunFile(file, about))
        return [system.measured(asked, rates, 2) for rates in ((None,), (EQUAL,))]

    with pytest.raises(KeyboardInterrupt):
        measured("marless", {"cpu": "one"})
    found = measured("marless", {"cpu": "two"})
    once = [(None, 0), (None, 1), (EQUAL, 0), (EQUAL, 1)]
    assert made == [*once, once[-1]]
    assert measured("marless", {}) == found
    assert made == [*once, once[-1]]
    System("benchmarl", run, RunFile(file, {})).measured(asked, (None,), 1)
    assert made[-1] == once[0]  # the other system's runs are its own
    switched_off = replace(asked, alike=True)
    assert System("marless", run, RunFile(file, {})).measured(switched_off, (EQUAL,), 1) == found[1][:1]
    assert made[-1] == once[2]  # a run that the file has for other settings was made again
    kept = len(made)
    System("benchmarl", run, RunFile(file, {})).measured(switched_off, (None,), 1)
    assert len(made) == kept  # what marless alone has does not matter to others
    assert RunFile(file, {}).get("marless", replace(asked, env_steps=48_000)) is None


def test_a_damaged_line_of_kept_runs_is_named(tmp_path):
    file = tmp_path / "runs.jsonl"
    RunFile(file, {}).put("marless", Request("spread", "vdn", 0, 1, 1.0), outcome(-20.0))
    with file.open("a") as lines:
        lines.write('{"run": {"rates": nu')
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2 is no run"):
        RunFile(file, {})
