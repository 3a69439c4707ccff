"""A frontier as a table, as sentences and as JSON."""

import dataclasses
import json

import pytest

from marless.cost.frontier import words
from marless.cost.frontier.contenders import Goal
from marless.cost.frontier.table import NOT_REACHED, Frontier, markdown, rows, to_json
from tests.unit.cost.frontier.synthetic import preset, seed_run, static

MACHINES = {"own": (2.0, 3.0), "slow": (11.0, 0.5)}


def both(contender, *returns, **given):
    """A contender whose two seeds have these returns, and take as long."""
    return contender(*(seed_run(list(each), seed=seed, **given) for seed, each in enumerate(returns)))


@pytest.fixture
def found() -> Frontier:
    contenders = (
        both(lambda *runs: static(4, *runs), (-30.0, -20.0), (-20.0, -20.0), machines=MACHINES, paper=0.5),
        both(lambda *runs: static(1, *runs), (-30.0, -20.0), (-30.0, -29.0)),
        both(lambda *runs: static(9, *runs[:1], failed=("gone",)), (-20.0,), (-20.0,)),
        both(lambda *runs: preset("marless", *runs), (-20.0,), (-20.0,), s=5.0),
        both(lambda *runs: preset("quick", *runs), (-20.0,), (-20.0,), s=0.1),
        both(lambda *runs: preset("late", *runs), (-30.0,), (-20.0,)),
    )
    return Frontier(
        job="tiny", env_steps=2000, seeds=(0, 1), slots=64, time="cpu", goal=Goal(value=-20.0), contenders=contenders
    )


def test_each_contender_has_a_row_and_none_is_dropped(found):
    header, *body = rows(found)
    by_name = {name: dict(zip(header[1:], row, strict=True)) for name, *row in body}
    four = by_name["4 shared synchronous"]
    assert four["seeds there"] == "2 of 2"
    assert four["env steps to the goal"] == "150 ± 635"  # 200 and 100: t(0.975; 1) · 50
    assert four["seconds, modelled"] == "1.50 ± 6.35"
    assert (four["paper $"], four["billed $"]) == ("0.707", "14.1")  # √(1 · 0.5), √(20 · 10)
    assert four["cheapest machine of one's own, $"] == "0.707 (slow, 16.5 s)"
    assert four["return at the end"] == "-20.00 ± 0.00"
    one = by_name["1 shared synchronous"]
    assert (one["seeds there"], one["env steps to the goal"], one["paper $"]) == ("1 of 2", NOT_REACHED, "")
    assert one["return at the end"] == "-24.50 ± 57.18"
    assert by_name["9 shared synchronous"]["seeds there"] == "1 of 2"
    assert by_name["marless"]["cheapest machine of one's own, $"] == ""
    assert markdown(found).count("\n") == 7


def test_regrets_are_said_in_words(found):
    said = words.statements(found, in_process=True)
    paper = "Regret of marless, by paper accounting, against settings with functions"
    # 1 $ with each seed against 1 $ and 0.5 $: √2
    assert f"{paper}: 41 % more [0 to 100 %] than 4 shared synchronous, the cheapest that is as fast." in said
    both_kinds = f"{paper} or machines of one's own: 41 % more [0 to 100 %] than 4 shared synchronous, the cheapest"
    assert any(each.startswith(both_kinds) for each in said)
    assert (
        "Regret of quick, by billed accounting, against settings with functions: faster than every static setting."
        in said
    )
    assert any(each.startswith("Regret of late") and "does not reach the goal with every seed" in each for each in said)
    assert (
        "Not reached with every seed, so without a cost: 1 shared synchronous (1 of 2 seeds), late (1 of 2 seeds)."
        in said
    )
    assert "9 shared synchronous is left out of the goal and of regrets: gone did not finish." in said
    assert "last 5 % of the job's env steps (100)" in " ".join(said)
    assert any("no starts" in each for each in said)
    one = dataclasses.replace(found, seeds=(0,))
    assert any(each.startswith("One seed: no intervals. Modelled") for each in words.statements(one, in_process=True))
    assert not any("no starts" in each for each in words.statements(found, in_process=False))


def test_durations_that_contain_waiting_are_marked(found):
    crowded = preset("crowded", *(dataclasses.replace(run, waiting=0.5) for run in found.presets[0].runs))
    by_duration = dataclasses.replace(found, contenders=(*found.contenders, crowded), time="duration")
    said = [each for each in words.statements(by_duration, in_process=True) if "contain waiting" in each]
    assert len(said) == 1 and "with crowded (1.5 times). If they waited for a core, leave bill.time" in said[0]
    by_cpu = words.statements(dataclasses.replace(by_duration, time="cpu"), in_process=True)
    assert not any("waiting" in each for each in by_cpu) and any("by their CPU seconds" in each for each in by_cpu)


def test_less_is_said_with_its_ends_in_order():
    cheaper = both(lambda *runs: preset("frugal", *runs), (-20.0,), (-20.0,), s=5.0, paper=0.25)
    static_ = both(lambda *runs: static(4, *runs), (-30.0, -20.0), (-20.0, -20.0), paper=0.5)
    small = Frontier(
        job="tiny",
        env_steps=2000,
        seeds=(0, 1),
        slots=64,
        time="cpu",
        goal=Goal(value=-20.0),
        contenders=(static_, cheaper),
    )
    # a quarter and a half of what the setting costs: 1/√8 in the mean
    assert any(
        "by paper" in each and ": 65 % less [50 to 75 %] than" in each
        for each in words.statements(small, in_process=True)
    )


def test_json_has_every_run_and_says_what_was_not_reached(found):
    fields = json.loads(json.dumps(to_json(found, ["said"]), allow_nan=False))
    four, one = (fields["settings"][f"{count} shared synchronous"] for count in (4, 1))
    assert (four["actors"], four["groups"], four["schedule"]) == (4, "shared", "synchronous")
    assert four["to_the_goal"]["paper"]["usd"] == [1.0, 0.5]
    assert [each["machine"] for each in four["own_machines"]] == ["slow", "own"]
    assert four["runs"][0]["to_the_goal"]["own_machines"]["own"] == {"seconds": 4.0, "usd": 6.0}
    assert four["runs"][0]["curve"]["return"] == [-30.0, -20.0]
    assert (one["to_the_goal"]["paper"], one["seeds_reached"]) == (NOT_REACHED, 1)
    assert one["runs"][1]["to_the_goal"] == NOT_REACHED
    assert one["runs"][1]["to_the_end"]["usd"]["billed"] == 20.0
    assert fields["settings"]["9 shared synchronous"]["failed"] == ["gone"]
    assert fields["frontier"]["paper"]["functions"] == ["4 shared synchronous"]
    assert [each["regret"] for each in fields["regrets"] if each["preset"] == "quick"] == [None] * 4


def test_a_long_curve_is_thinned_and_keeps_its_end():
    long = static(4, seed_run([float(number) for number in range(999)]))
    small = Frontier(
        job="tiny", env_steps=99_900, seeds=(0,), slots=64, time="cpu", goal=Goal(value=5.0), contenders=(long,)
    )
    curve = to_json(small, [])["settings"]["4 shared synchronous"]["runs"][0]["curve"]["return"]
    assert (len(curve), curve[-1], curve[-2]) == (200, 998.0, 993.0)
