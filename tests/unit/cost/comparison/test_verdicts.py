"""What is left of a saving beside controls, by hand."""

import pytest

from marless.cost.comparison import table
from marless.cost.comparison.controls import Control, ControlKind
from marless.cost.comparison.report import block, statements
from marless.cost.comparison.verdicts import RULE, Outcome, control_rows, verdicts, verdicts_to_json
from tests.unit.cost.comparison.synthetic import spec
from tests.unit.cost.comparison.test_table import run, ways

KINDS: tuple[ControlKind, ...] = ("mean", "shuffled", "final", "placebo")
RETURNS = (-20.0, -21.0, -22.0)


def control(kind: ControlKind, about: str = "7 actors in every round") -> Control:
    return Control(
        name=f"marless~{kind}",
        kind=kind,
        of="marless",
        about=about,
        counts="paper",
        specs=dict.fromkeys(range(3), spec()),
        labels=dict.fromkeys(range(3), f"marless-{kind}"),
    )


def compared(costs=(1.0, 1.0, 1.0), greedy=RETURNS, *, minus=(2.0, 2.0, 2.0), seeds: int = 3, kind="mean"):
    """`marless`, which costs 1 in each seed and returns −20, −21 and −22, `marless-minus`, and a control."""
    runs = []
    for seed in range(seeds):
        runs += [
            run("marless-minus", seed, greedy=RETURNS[seed], paper=minus[seed]),
            run("marless", seed, greedy=RETURNS[seed], paper=1.0),
            run(f"marless~{kind}", seed, greedy=greedy[seed], paper=costs[seed]),
        ]
    return table.compared("tiny", 64, ways("marless-minus,marless"), runs, [control(kind)])


def outcome(*args, **kwargs) -> Outcome:
    [verdict] = verdicts(compared(*args, **kwargs))
    [found] = verdict.controls
    return found.outcome


BETTER, WORSE = tuple(each + 1 for each in RETURNS), tuple(each - 1 for each in RETURNS)


@pytest.mark.parametrize(
    ("costs", "greedy", "expected"),
    [
        ((1.0, 1.0, 1.0), RETURNS, "explained away"),  # as dear, and as good
        ((0.9, 0.9, 0.9), RETURNS, "explained away"),  # cheaper
        ((1.0, 1.0, 1.0), BETTER, "explained away"),
        # Ratios of 1/1.1, 1/0.95 and 1/1.25: the logarithms' mean is −0.0890 and s = 0.1374, so that the interval
        # ends at −0.0890 + 4.3027 · 0.1374/√3 = +0.2524 and holds 0
        ((1.1, 0.95, 1.25), RETURNS, "explained away"),
        ((1.1, 1.1, 1.1), RETURNS, "left"),  # dearer, and as good
        # Ratios of 1/1.1, 1/1.12 and 1/1.25: mean −0.1439, s = 0.0690, end −0.1439 + 0.1714 = +0.0275
        ((1.1, 1.12, 1.25), RETURNS, "explained away"),
        # 1/1.2, 1/1.22 and 1/1.25: mean −0.2011, s = 0.0206, end −0.2011 + 0.0511 = −0.1500
        ((1.2, 1.22, 1.25), RETURNS, "left"),
        ((1.1, 1.1, 1.1), WORSE, "left"),
        ((1.0, 1.0, 1.0), WORSE, "learns more"),
        ((0.9, 0.9, 0.9), WORSE, "learns more"),
        ((1.1, 1.1, 1.1), BETTER, "learns less"),
        # Differences of −1, −1 and +2: mean 0, the interval holds 0
        ((1.0, 1.0, 1.0), (-21.0, -22.0, -20.0), "explained away"),
    ],
)
def test_the_outcome_follows_from_cost_and_returns(costs, greedy, expected):
    assert outcome(costs, greedy) == expected


def test_one_seed_decides_nothing():
    assert outcome(seeds=1) == "unknown"
    [verdict] = verdicts(compared(seeds=1))
    assert list(verdict.sentences()) == [
        "marless costs 50 % less than marless-minus. Whether a control of marless explains that away, one seed does "
        "not tell.",
        "marless beside marless~mean (7 actors in every round): costs 0 % less, greedy return +0.00: one seed decides "
        "nothing.",
    ]


def sided(theirs: tuple[float, float]):
    runs = []
    for seed in range(3):
        for name, sides in (("marless", (3.0, 4.0)), ("marless~mean", theirs)):
            runs.append(run(name, seed, greedy=0.0, sides=dict(zip(("prey", "hunter"), sides, strict=True))))
    return table.compared("tiny", 64, ways("marless"), runs, [control("mean")])


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ((3.0, 4.0), "explained away"),
        ((3.0, 3.0), "learns more"),
        ((9.0, 3.0), "learns more"),
        ((9.0, 9.0), "explained away"),
    ],
)
def test_where_sides_compete_a_control_is_as_good_on_each(sides, expected):
    [verdict] = verdicts(sided(sides))
    assert verdict.controls[0].outcome == expected
    assert list(verdict.controls[0].returns) == ["prey against chance", "hunter against chance"]


def test_the_verdict_is_said_in_words_with_its_numbers():
    # 1/1.25 in each seed: 20 % less, without spread
    [verdict] = verdicts(compared((1.25, 1.25, 1.25)))
    assert list(verdict.sentences()) == [
        "marless costs 50 % less [50 to 50 %] than marless-minus. None of its 1 controls explains that away.",
        "marless beside marless~mean (7 actors in every round): costs 20 % less [20 to 20 %], greedy return +0.00 "
        "[+0.00, +0.00]: that is left of its saving, by deciding the number of actors.",
    ]
    [verdict] = verdicts(compared((0.8, 0.8, 0.8)))
    assert list(verdict.sentences()) == [
        "marless costs 50 % less [50 to 50 %] than marless-minus. Explained away by 1 of 1 controls: marless~mean.",
        "marless beside marless~mean (7 actors in every round): costs 25 % more [25 to 25 %], greedy return +0.00 "
        "[+0.00, +0.00]: deciding the number of actors is not shown to pay.",
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("shuffled", "choosing which round gets how many actors is not shown to pay."),
        ("final", "changing groups on the way is not shown to pay."),
        ("placebo", "what it measures is not shown to pay."),
    ],
)
def test_each_control_says_what_is_not_shown_to_pay(kind, said):
    [verdict] = verdicts(compared(kind=kind))
    assert list(verdict.sentences())[-1].endswith(said)


def test_a_saving_is_measured_against_what_counts_by_the_same_accounting():
    runs = []
    for seed in range(2):
        costs = {"vanilla": 9.0, "marless-minus": 2.0, "marless": 1.0, "marless~mean": 1.0}
        runs += [run(name, seed, greedy=-20.0, paper=cost) for name, cost in costs.items()]
    comparison = table.compared("tiny", 64, ways("vanilla,marless-minus,marless"), runs, [control("mean")])
    [verdict] = verdicts(comparison)
    assert (verdict.reference.variant, verdict.saved.mean) == ("marless-minus", 0.5)
    alone = table.compared("tiny", 64, ways("marless"), runs, [control("mean")])
    [verdict] = verdicts(alone)
    assert (verdict.reference, verdict.saved) == (None, None)
    assert next(verdict.sentences()) == "Explained away by 1 of 1 controls: marless~mean."


def test_statements_hold_the_rule_once_and_every_verdict():
    comparison = compared()
    said = statements(comparison)
    assert said.count(RULE) == 1
    [verdict] = verdicts(comparison)
    at = said.index(RULE)
    assert said[at + 1 : at + 3] == list(verdict.sentences())
    assert not any("marless~mean: greedy return" in each for each in said)  # controls are no variants
    without = table.compared("tiny", 64, ways("marless"), [run("marless", 0, greedy=-20.0)])
    assert RULE not in statements(without)


def test_controls_have_a_table_of_their_own():
    [verdict] = verdicts(compared((1.25, 1.25, 1.25), WORSE))
    cells = {name: values for name, *values in control_rows(verdict)}
    assert cells[""] == ["marless", "marless~mean"]
    assert cells["paper cost, $"] == ["1.000 ± 0.000", "1.250 ± 0.000"]
    assert cells["cost, marless / control"] == ["", "0.80 [0.80, 0.80]"]
    assert cells["greedy return, marless − control"] == ["", "1.00 [1.00, 1.00]"]
    assert cells["saving of marless"] == ["", "left"]
    shown = block(compared(), [], command="marless compare x", picture="a.png")
    assert "|  | marless | marless~mean |\n| --- | ---: | ---: |\n" in shown
    assert "9 runs of 2 rounds" in shown


def test_programs_get_figures_and_outcomes():
    found = verdicts_to_json(compared((1.25, 1.25, 1.25)))
    assert list(found) == ["marless"]
    beside = found["marless"]["controls"]["mean"]
    assert (beside["outcome"], beside["about"], beside["variant"]) == (
        "left",
        "7 actors in every round",
        "marless~mean",
    )
    assert beside["cost_ratio"]["mean"] == pytest.approx(0.8)
    assert beside["returns"]["greedy return"]["mean"] == 0.0
    assert [each["seed"] for each in beside["runs"]] == [0, 1, 2]


def test_a_control_needs_the_seeds_of_its_variant():
    runs = [run(name, seed, greedy=-20.0) for name in ("marless", "marless~mean") for seed in range(2)]
    with pytest.raises(ValueError, match="marless~mean was not run with the seeds of marless"):
        table.compared("tiny", 64, ways("marless"), runs[:-1], [control("mean")])
