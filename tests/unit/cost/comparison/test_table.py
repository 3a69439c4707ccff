"""The table and its sentences, from runs of which every figure is known."""

import dataclasses
import json

import pytest

from marless.core.errors import CorruptError
from marless.cost.comparison import table
from marless.cost.comparison.report import OTHER_ENVS, above_random, equal, statements
from marless.cost.comparison.runs import Figures, RunCurves, Variant, curves, figures, learners_of
from marless.jobs.presets import presets
from marless.jobs.record import Evaluation
from tests.unit.cost.comparison.synthetic import ACTOR_S, LEARNER_S, ROUND_S, record, returns, spec

PAIRED = (("agent_0", "agent_1"),)


def ways(names: str, **settings: tuple[str, ...]) -> tuple[Variant, ...]:
    """Presets as variants; only their names and accountings matter here, and what is said of their settings."""
    return tuple(
        Variant(
            name=each.name, label=each.name, counts=each.accounting, settings=settings.get(each.name, ()), spec=spec()
        )
        for each in presets(names)
    )


def run(
    variant: str,
    seed: int,
    *,
    greedy: float,
    random: float = -30.0,
    rounds: int = 2,
    id_: str = "",
    sides=None,
    **usd: float,
) -> Figures:
    cost_usd = {"paper": 1.0, "billed": 2.0, "serverful": 4.0} | usd
    line = RunCurves(
        learners=(4,) * rounds, actors=(8,) * rounds, exploring=(-20.0,) * rounds, greedy=(None,) * rounds, cost_usd={}
    )
    return Figures(
        variant=variant,
        seed=seed,
        run=id_ or f"{variant}-{seed}",
        rounds=rounds,
        env_steps=100,
        greedy=greedy,
        random=random,
        sides=sides or {},
        cost_usd=cost_usd,
        charged_usd={side: cost_usd[side] for side in ("billed", "serverful")},
        modelled_s=5.0,
        measured_s=50.0,
        learners=4.0,
        actors=8.0,
        cold_starts=0,
        curves=line,
    )


def two(greedy: list[float], other: list[float], **usd: float) -> table.Comparison:
    """`vanilla` and `marless`, a value a seed."""
    runs = [run("vanilla", seed, greedy=value) for seed, value in enumerate(greedy)]
    runs += [run("marless", seed, greedy=value, **usd) for seed, value in enumerate(other)]
    return table.compared("tiny", 64, ways("vanilla,marless", marless=("sharing.window 5 (default 10)",)), runs)


def cells(comparison: table.Comparison) -> dict[str, list[str]]:
    return {name: values for name, *values in table.rows(comparison)}


def test_every_quantity_has_its_row():
    shown = cells(two([-20.0, -22.0], [-20.0, -22.0], paper=1.0))
    assert shown[""] == ["vanilla", "marless"]
    # mean −21, s = √2, t(0.975; 1) = 12.7062: ± 12.7062
    assert shown["greedy return per agent, at the end"] == ["-21.00 ± 12.71"] * 2
    assert shown["random policy"] == ["-30.00 ± 0.00"] * 2
    assert shown["serverful cost, $, modelled"] == ["4.000 ± 0.000"] * 2
    assert shown["cost that counts"] == ["serverful", "paper"]
    assert shown["that / vanilla's"] == ["1.00 [1.00, 1.00]", "0.25 [0.25, 0.25]"]
    assert shown["as charged / vanilla's (serverful)"] == ["1.00 [1.00, 1.00]", "0.50 [0.50, 0.50]"]
    assert shown["wall-clock modelled on 64 slots, s"] == ["5.000 ± 0.000"] * 2
    assert shown["wall-clock measured, s"] == ["50.00 ± 0.00"] * 2
    assert shown["as charged, $, modelled"] == ["4.000 ± 0.000", "2.000 ± 0.000"]
    assert shown["learners invoked per round (logical functions of stacked passes)"] == ["4.00 ± 0.00"] * 2
    assert shown["cold starts per run"] == ["0.00 ± 0.00"] * 2
    assert "that / marless-minus's" not in shown


def test_interquartile_means_stand_beside_means():
    shown = cells(two([-20.0, -22.0], [-20.0, -20.0]))
    assert shown["the same, interquartile mean"] == ["-21.00 [-22.00, -20.00]", "-20.00 [-20.00, -20.00]"]
    assert cells(two([-20.0], [-21.5]))["the same, interquartile mean"] == ["-20.00", "-21.50"]


def test_returns_while_exploring_are_those_of_the_last_tenth_of_rounds():
    runs = []
    for preset, last in (("vanilla", (4.0, 6.0)), ("marless", (3.0, 3.0))):
        one = run(preset, 0, greedy=0.0, rounds=20)
        runs.append(dataclasses.replace(one, curves=dataclasses.replace(one.curves, exploring=(9.0,) * 18 + last)))
    comparison = table.compared("tiny", 64, ways("vanilla,marless"), runs)
    assert cells(comparison)["return while exploring, last tenth"] == ["5.000", "3.000"]
    assert cells(comparison)["that − vanilla's"] == ["0.00", "-2.00"]
    assert table.to_json(comparison, [])["variants"]["marless"]["exploring"]["mean"] == 3.0
    without = [
        dataclasses.replace(each, curves=dataclasses.replace(each.curves, exploring=(None,) * 20)) for each in runs
    ]
    comparison = table.compared("tiny", 64, ways("vanilla,marless"), without)
    assert "return while exploring, last tenth" not in cells(comparison)


def test_wins_have_rows_where_there_are_any():
    assert "random policy won" not in cells(two([-20.0], [-20.0]))
    runs = [
        dataclasses.replace(run(preset, seed, greedy=1.0), wins=wins, random_wins=0.25)
        for preset, rates in (("vanilla", (0.5, 1.0)), ("marless", (1.0, 1.0)))
        for seed, wins in enumerate(rates)
    ]
    comparison = table.compared("tiny", 64, ways("vanilla,marless"), runs)
    shown = cells(comparison)
    assert shown["greedy episodes won, interquartile mean"] == ["75% [50%, 100%]", "100% [100%, 100%]"]
    assert shown["random policy won"] == ["25% [25%, 25%]"] * 2
    found = table.to_json(comparison, [])["variants"]["vanilla"]
    assert (found["win_rate"]["mean"], found["random_win_rate"]["low"]) == (0.75, 0.25)
    assert table.to_json(two([-20.0], [-20.0]), [])["variants"]["vanilla"]["win_rate"] is None


def test_environments_that_differ_are_said_to():
    runs = [run(name, 0, greedy=-20.0) for name in ("vanilla", "marless")]
    one, other = ways("vanilla,marless")
    three = dataclasses.replace(other, spec=spec(env={"name": "mpe/simple_spread", "options": {"agents": 3}}))
    assert OTHER_ENVS in statements(table.compared("tiny", 64, (one, three), runs))
    assert OTHER_ENVS not in statements(table.compared("tiny", 64, (one, other), runs))


def test_small_money_keeps_its_digits():
    assert table.plus_minus(table.statistics.interval([0.000012346]), 4) == "0.00001235"
    assert table.plus_minus(table.statistics.interval([1234.5]), 3) == "1,234"


def test_one_seed_has_no_interval():
    comparison = two([-20.0], [-20.0])
    assert cells(comparison)["greedy return per agent, at the end"] == ["-20.00", "-20.00"]
    said = statements(comparison)
    assert any("one seed gives no interval" in sentence for sentence in said)
    assert said[-1].startswith("One seed: no intervals")


def verdict(comparison: table.Comparison) -> str:
    [sentence] = [each for each in statements(comparison) if each.startswith("marless − vanilla")]
    return sentence


def test_returns_are_equal_only_if_that_is_shown_within_the_margin():
    # Differences −1, 0, 1: 0 ± 4.3027 · 1/√3 = 2.484. vanilla learned 10. With two degrees of freedom
    # p = (1 − t / √(t² + 2)) / 2: a margin of 0.5 is t = 0.8660, p = 0.239; one of 2 is t = 3.4641, p = 0.0371.
    greedy = ([-20.0, -20.0, -20.0], [-21.0, -20.0, -19.0])
    comparison = two(*greedy)
    assert verdict(comparison) == (
        "marless − vanilla: greedy return +0.00 [-2.48, +2.48]: not shown equal within ±0.50 (5 % of what vanilla "
        "learned; p = 0.24); it could hide a loss of 2.48."
    )
    assert equal(comparison, comparison.columns[1]) is False
    wide = dataclasses.replace(comparison, margin=0.2)
    assert verdict(wide) == (
        "marless − vanilla: greedy return +0.00 [-2.48, +2.48]: equal within ±2.00 (20 % of what vanilla learned; "
        "p = 0.037)."
    )
    assert equal(wide, wide.columns[1]) is True
    found = table.to_json(wide, [])
    shown = found["variants"]["marless"]["equality_with_vanilla"]["greedy return"]
    assert (found["margin"], shown["verdict"], shown["margin"]) == (0.2, "equal", 2.0)


@pytest.mark.parametrize(("other", "word"), [(-25.0, "worse"), (-15.0, "better")])
def test_returns_that_differ_are_said_to(other, word):
    comparison = two([-20.0, -20.1, -20.2], [other, other - 0.1, other - 0.3])
    assert f": {word}, not equal within ±0.50 (5 %" in verdict(comparison)
    assert equal(comparison, comparison.columns[1]) is False


def test_a_difference_that_is_certain_and_small_is_equal():
    comparison = two([-20.0, -20.0, -20.0], [-20.25, -20.25, -20.25])
    assert verdict(comparison).endswith(
        "-0.25 [-0.25, -0.25]: equal within ±0.50 (5 % of what vanilla learned; p = 0)."
    )


def test_nothing_is_equal_to_a_reference_that_has_learned_nothing():
    comparison = two([-31.0, -31.0], [-31.0, -31.0])
    assert "not shown equal within ±0.00 (5 % of what vanilla learned; p = 1)" in verdict(comparison)


def test_a_team_that_did_not_learn_compares_nothing():
    comparison = two([-20.0, -20.5, -20.2], [-29.0, -31.0, -30.0])
    said = statements(comparison)
    assert any(each.startswith("vanilla: greedy") and each.endswith(": clearly above random.") for each in said)
    assert any(each.startswith("marless: greedy") and "NOT clearly above random" in each for each in said)
    assert [above_random(column) for column in comparison.columns] == [True, False]


def test_sides_that_compete_are_set_against_chance_one_by_one():
    """The mean of both ends below random play, though both have learned: it is not asked."""
    gains = {"vanilla": (1.0, 1.1, 1.2), "marless": (1.0, 1.2, 1.1)}
    runs = [
        run(preset, seed, greedy=-35.0, sides={"hunter": gain, "prey": 0.5 if preset == "vanilla" else 0.1 * seed})
        for preset, values in gains.items()
        for seed, gain in enumerate(values)
    ]
    comparison = table.compared("tiny", 64, ways("vanilla,marless"), runs)
    assert cells(comparison)["hunter against chance, above chance"] == ["1.100 ± 0.248"] * 2
    assert [above_random(column) for column in comparison.columns] == [True, False]  # prey: 0, 0.1 and 0.2
    said = statements(comparison)
    assert any(each.startswith("vanilla: hunter against chance, minus chance there +1.10 [") for each in said)
    assert any(
        each.startswith("marless − vanilla: prey against chance -0.40 [-0.65") and "worse" in each for each in said
    )
    assert any(each.startswith("marless − vanilla: hunter against chance +0.00") and "equal" in each for each in said)
    assert equal(comparison, comparison.columns[1]) is False


def test_costs_are_said_as_savings():
    comparison = two([-20.0, -20.0], [-20.0, -20.0], paper=1.72, billed=5.0)
    [sentence] = [each for each in statements(comparison) if " costs " in each]
    assert sentence == (
        "marless costs 57 % less [57 to 57 %] than vanilla (paper against serverful); as charged, both "
        "modelled, 25 % more [25 to 25 %] (billed against serverful)."
    )


def test_runs_whose_actors_waited_are_marked_unless_cpu_time_is_billed():
    runs = [run("vanilla", seed, greedy=-20.0) for seed in (0, 1)]
    crowded = [run("marless", seed, greedy=-20.0) for seed in (0, 1)]
    runs += [dataclasses.replace(each, waiting=waited) for each, waited in zip(crowded, (1.3, 0.25), strict=True)]
    said = statements(table.compared("tiny", 64, ways("vanilla,marless"), runs))
    assert [each for each in said if "contain waiting" in each] == [
        "marless: durations contain waiting: actors took longer than their CPU seconds with seed 0 (2.3 times). If "
        "they waited for a core, its cost measures other programs, too: bill by CPU time with --set bill.time=cpu. If "
        "their environments wait, that is part of its cost."
    ]
    by_cpu = [dataclasses.replace(each, time="cpu") for each in runs]
    said = statements(table.compared("tiny", 64, ways("vanilla,marless"), by_cpu))
    assert not any("contain waiting" in each for each in said)
    assert "functions' CPU seconds (bill.time: cpu) scheduled on 64 vCPUs" in said[-1]


def test_a_run_tells_how_its_actors_waited_and_what_is_billed():
    records = [dataclasses.replace(record(0), evaluation=returns(-20.0))]
    slow = dataclasses.replace(
        records[0],
        invocations=tuple(dataclasses.replace(each, vcpu_s=each.vcpu_s / 4) for each in records[0].invocations),
    )
    by_cpu = spec(bill={"time": "cpu"})
    one = figures(records, spec(), returns(-30.0), variant="v", slots=64)
    two = figures([slow], by_cpu, returns(-30.0), variant="v", slots=64)
    assert (one.waiting, one.time, two.waiting, two.time) == (0.0, "duration", 3.0, "cpu")
    # Actors of 2 s, four policies and critics of 1 s, then a quarter of each.
    assert two.cost_usd["paper"] == pytest.approx(one.cost_usd["paper"] / 4, rel=1e-3)


def test_runs_made_once_settings_and_lengths_are_said():
    runs = [run("vanilla", 0, greedy=-20.0, id_="a"), run("marless-minus", 0, greedy=-20.0, id_="a")]
    runs += [run("marless", 0, greedy=-20.0, rounds=3)]
    variants = ways("vanilla,marless-minus,marless", marless=("sharing.window 5 (default 10)",))
    said = statements(table.compared("tiny", 64, variants, runs))
    assert said[0].startswith("vanilla and marless-minus train identically")
    assert "made once and billed twice" in said[0]
    assert "marless was run with sharing.window 5 (default 10)." in said
    assert any(
        "different numbers of rounds: vanilla 2 to 2, marless-minus 2 to 2, marless 3 to 3" in each for each in said
    )


def test_presets_without_the_same_seeds_are_refused():
    with pytest.raises(ValueError, match="was not run with the seeds of vanilla"):
        two([-20.0, -20.0], [-20.0])


def test_a_document_gets_the_same_table():
    comparison = two([-20.0, -22.0], [-20.0, -22.0])
    header, rule, *body = table.markdown(table.rows(comparison)).splitlines()
    assert (header, rule) == ("|  | vanilla | marless |", "| --- | ---: | ---: |")
    assert len(body) == len(table.rows(comparison)) - 1


def test_programs_get_everything():
    comparison = two([-20.0, -22.0], [-21.0, -22.0], paper=1.0)
    found = json.loads(json.dumps(table.to_json(comparison, ["said"])))
    marless = found["variants"]["marless"]
    assert (found["seeds"], found["statements"]) == ([0, 1], ["said"])
    assert marless["cost_ratio"]["vanilla"]["mean"] == 0.25
    assert marless["greedy_above_vanilla"]["mean"] == -0.5
    assert marless["greedy_above_random"]["mean"] == 8.5
    assert marless["greedy_interquartile_mean"]["mean"] == -21.5
    assert [each["greedy"] for each in marless["runs"]] == [-21.0, -22.0]


def test_the_figures_of_a_run():
    records = [record(0, actors=4), record(1, actors=2, groups=PAIRED, greedy=-12.0)]
    found = figures(records, spec(), returns(-30.0), variant="marless", slots=64)
    assert (found.rounds, found.greedy, found.random, found.env_steps) == (2, -12.0, -30.0, 200)
    assert (found.wins, found.random_wins) == (None, None)
    assert (found.actors, found.learners) == (3.0, 3.0)  # 4 and 2; 2 · 2 and 2 · 1
    assert found.curves.learners == (4, 2)
    assert found.measured_s == 2 * ROUND_S
    assert found.modelled_s == pytest.approx(2 * (ACTOR_S + LEARNER_S))
    # 1 GB · (4 + 2) actors · 2 s and 2 GB · (4 + 2) learners · 1 s, at Lambda's price a GB-second
    assert found.cost_usd["paper"] == pytest.approx((12 + 12) * 1.66667e-5, rel=1e-6)
    assert found.curves.cost_usd["paper"][-1] == found.cost_usd["paper"]
    assert found.curves.cost_usd["paper"][0] == pytest.approx((8 + 8) * 1.66667e-5, rel=1e-6)


def test_a_curve_has_an_evaluation_where_its_policies_were_published():
    early = Evaluation(rounds=1, env_steps=100, returns=returns(-14.0))
    records = [record(0), dataclasses.replace(record(1, greedy=-12.0), earlier_evaluation=early)]
    assert curves(records, spec()).greedy == (-14.0, -12.0)


def test_the_wins_of_a_run():
    won = dataclasses.replace(returns(-12.0), wins=3)
    one = dataclasses.replace(record(0), evaluation=won)
    found = figures([one], spec(), dataclasses.replace(returns(-30.0), wins=1), variant="marless", slots=64)
    assert (found.wins, found.random_wins) == (0.75, 0.25)


def test_cold_starts_are_those_of_workers():
    cold = dataclasses.replace(record(0).invocations[0], cold=True, init_s=1.0)
    inside = dataclasses.replace(record(0).invocations[-1], cold=True)
    one = dataclasses.replace(record(0, greedy=-12.0), invocations=(cold, inside))
    assert figures([one], spec(), returns(-30.0), variant="marless", slots=64).cold_starts == 1


def test_a_function_that_was_tried_again_is_one_learner():
    one = record(0)
    assert learners_of(one) == learners_of(dataclasses.replace(one, invocations=one.invocations * 2)) == 4


@pytest.mark.parametrize(("records", "random"), [([], -30.0), ([record(0)], -30.0), ([record(0, greedy=-1.0)], None)])
def test_a_run_that_has_no_end_is_refused(records, random):
    chance = None if random is None else returns(random)
    with pytest.raises(CorruptError, match="no final evaluation"):
        figures(records, spec(), chance, variant="marless", slots=64)
