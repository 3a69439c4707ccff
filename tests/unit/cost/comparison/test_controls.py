"""Which controls a variant has, and what they are."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from marless.core.errors import SpecError
from marless.cost.comparison.controls import (
    Control,
    control_runs,
    controls,
    expected_runs,
    kinds_of,
    log_normal,
    shuffled,
)
from marless.cost.comparison.runs import Variant, preset_variants
from marless.jobs.job import prepare
from marless.jobs.presets import presets
from tests.unit.cost.comparison.synthetic import record, spec

FOUR = {"name": "mpe/simple_spread", "options": {"agents": 4, "max_cycles": 5}}
PAIRS = (("agent_0", "agent_1"), ("agent_2", "agent_3"))
APART = (("agent_0",), ("agent_1",), ("agent_2",), ("agent_3",))


def job(**changes):
    return spec(**{"env": FOUR, "actors": {"count": 8, "envs": 4, "steps": 5}} | changes)


def variant(name: str = "marless", **changes) -> Variant:
    [found] = preset_variants(job(**changes), presets(name))
    return found


def run(*actors: int, groups=PAIRS, curvature: tuple[float, ...] = (1.0, 1.0), **fields):
    """The records of a run with these numbers of actors, whose policies had this curvature in every round."""
    metrics = {group[0]: {"curvature": value} for group, value in zip(groups, curvature, strict=False)}
    return [
        replace(record(number, actors=count, groups=groups, **fields), metrics=metrics)
        for number, count in enumerate(actors)
    ]


def planned(of: Variant, runs, label: str = "marless", check=prepare) -> dict[str, Control]:
    found = list(controls(of, runs, label=label, check=check))
    assert all(isinstance(each, Control) for each in found), found
    return {each.kind: each for each in found}


SECTIONS = [
    ({}, {}, ()),
    ({"name": "max"}, {}, ()),
    ({"name": "given", "actors": [1]}, {}, ()),
    ({"name": "marless"}, {}, ("mean", "shuffled", "placebo")),
    ({"name": "gns"}, {}, ("mean", "shuffled", "placebo")),
    ({"name": "adapt", "goal": 1.0}, {}, ("mean", "shuffled")),
    ({}, {"name": "marless"}, ("final",)),
    ({"name": "nitro"}, {"name": "marless"}, ("mean", "shuffled", "final", "placebo")),
    ({"name": "marless", "placebo": {"median": 1.0, "deviation": 1.0}}, {}, ("mean", "shuffled")),
]


@pytest.mark.parametrize(("scaling", "sharing", "kinds"), SECTIONS)
def test_a_job_has_the_controls_that_make_sense_for_it(scaling, sharing, kinds):
    assert kinds_of(job(scaling=scaling, sharing=sharing)) == kinds


def test_the_most_runs_are_known_before_the_first():
    variants = preset_variants(job(), presets("vanilla,no-scaling,no-sharing,marless"))
    assert expected_runs(variants, 5) == {"no-scaling": 5, "no-sharing": 15, "marless": 20}


def test_the_mean_is_over_rounds_and_then_over_seeds_and_rounded():
    # means of 8/3 and 4: 3.33; then of 2 and 3: 2.5, which is rounded up
    for runs, mean in (({0: run(2, 2, 4), 1: run(4, 4)}, 3), ({0: run(1, 3), 1: run(3)}, 3), ({0: run(8)}, 8)):
        made = planned(variant(), runs)["mean"]
        assert {(each.scaling.name, each.actors.count) for each in made.specs.values()} == {("fixed", mean)}
        assert made.about == f"{mean} actors in every round"
        assert made.spec.sharing == variant().spec.sharing
        assert set(made.labels.values()) == {f"marless-mean{mean}"}
        assert [each.seed for each in made.specs.values()] == list(runs)


def test_the_numbers_of_each_seed_are_shuffled():
    counts = {seed: [1 + (seed + number) % 8 for number in range(40)] for seed in (0, 1)}
    made = planned(variant(), {seed: run(*each) for seed, each in counts.items()})["shuffled"]
    for seed, each in made.specs.items():
        given = list(each.scaling.actors)
        assert each.scaling.name == "given"
        assert given != counts[seed]
        assert Counter(given) == Counter(counts[seed])
        assert given == list(shuffled(counts[seed], seed))
    assert made.labels[0] != made.labels[1]


def test_shuffling_depends_on_the_seed_alone():
    numbers = tuple(range(100))
    assert shuffled(numbers, 3) == shuffled(numbers, 3) != shuffled(numbers, 4)
    assert sorted(shuffled(numbers, 3)) == list(numbers)


def test_what_was_decided_counts_where_rounds_overlap():
    """There, a round has the actors that were decided with the round before it."""
    overlapping = [replace(each, actors=actors) for each, actors in zip(run(8, 2, 5), (8, 8, 2), strict=True)]
    assert sorted(planned(variant(), {0: overlapping})["shuffled"].spec.scaling.actors) == [2, 5, 8]


def test_the_final_groups_are_those_of_each_seed():
    runs = {0: [*run(4, groups=APART), *run(4)], 1: run(4, 4, groups=APART)}
    made = planned(variant(), runs)["final"]
    assert [each.sharing.name for each in made.specs.values()] == ["fixed", "fixed"]
    assert made.specs[0].sharing.groups == {"agent_0": PAIRS[0], "agent_2": PAIRS[1]}
    assert made.specs[1].sharing.groups == {agent: (agent,) for (agent,) in APART}
    assert made.spec.scaling == variant().spec.scaling


def test_the_final_groups_train_on_as_many_samples():
    made = planned(variant("marless-drawn"), {0: run(4, 4)})["final"]
    assert made.spec.sharing.samples == "drawn"


def test_a_placebo_has_the_distribution_of_all_that_was_measured():
    made = planned(variant(), {0: run(4, curvature=(1.0, 4.0)), 1: run(4, curvature=(4.0, 16.0))})["placebo"]
    # logarithms to base 2 of 0, 2, 2, 4: their median is 2, their deviation √2
    assert made.spec.scaling.placebo.median == 4.0
    assert made.spec.scaling.placebo.deviation == pytest.approx(math.sqrt(2) * math.log(2), abs=5e-5)
    assert (made.spec.scaling.name, made.spec.sharing) == ("marless", variant().spec.sharing)
    assert made.about == "random numbers for curvature (median 4, deviation of logarithms 0.9803)"


def test_what_no_policy_would_use_is_no_part_of_a_distribution():
    assert log_normal([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e101]) is None
    assert log_normal([math.nan, 3.0, -1.0, 3.0]) == {"median": 3.0, "deviation": 0.0}


def test_the_noise_scale_is_what_gns_reads():
    own = variant("marless-minus", scaling={"name": "gns"})
    own = replace(own, spec=job(scaling={"name": "gns"}))
    rounds = [replace(each, metrics={"agent_0": {"noise_scale": 50.0, "curvature": 1.0}}) for each in run(4, 4)]
    assert planned(own, {0: rounds})["placebo"].spec.scaling.placebo.median == 50.0


def test_a_budget_and_a_deadline_hold_for_controls_too():
    limits = {"within_budget": True, "deadline_s": 60.0}
    limited = {"scaling": {"name": "marless", **limits}, "stop": {"rounds": 3, "cost_usd": 1.0}}
    made = planned(variant(**limited), {0: run(4, 2)})
    assert len(made) == 4
    assert all(each.spec.scaling.within_budget for each in made.values())
    assert all(each.spec.scaling.deadline_s == 60.0 for each in made.values())
    assert all(each.spec.stop.cost_usd == 1.0 for each in made.values())


def test_a_control_is_billed_as_its_variant():
    of = replace(variant(), counts="billed")
    assert {each.spec.bill.accounting for each in planned(of, {0: run(4, 2)}).values()} == {"billed"}


def test_what_cannot_be_had_is_a_sentence():
    [*_, said] = controls(variant(), {0: run(4, curvature=())}, label="marless", check=prepare)
    assert said == "marless~placebo is left out: its runs measured no curvature"

    def refused(spec):
        if spec.scaling.name == "given":
            raise SpecError("no lists today")

    found = list(controls(variant(), {0: run(4)}, label="marless", check=refused))
    assert [each if isinstance(each, str) else each.kind for each in found] == [
        "mean",
        "marless~shuffled is left out: no lists today",
        "final",
        "placebo",
    ]


def test_an_id_that_no_job_can_have_is_a_sentence():
    long = replace(variant(), spec=variant().spec.model_copy(update={"name": "y" * 60}))
    found = list(controls(long, {0: run(4)}, label="x" * 33, check=prepare))
    assert [isinstance(each, str) for each in found] == [True, True, True, True]
    assert all("at most 100" in each for each in found)


def test_runs_go_seed_by_seed_and_every_seed_begins_with_another_control():
    made = planned(variant(), {7: run(4, 2), 8: run(2, 4), 9: run(4, 4)})
    runs = control_runs(job(), list(made.values()))
    assert [each.seed for each in runs] == [7] * 4 + [8] * 4 + [9] * 4
    assert [each.variants[0] for each in runs[::4]] == ["marless~mean", "marless~shuffled", "marless~final"]
    assert runs[0].id == "tiny-marless-mean3-seed7"
    assert all(each.spec.seed == each.seed for each in runs)
    assert len({each.id for each in runs}) == 12


def test_an_id_says_what_is_trained():
    """A control with another mean, order, partition or distribution is another run."""
    one, two = (planned(variant(), {0: run(*actors, **more)}) for actors, more in (((4, 2), {}), ((2, 4), {})))
    assert one["mean"].labels == two["mean"].labels
    three = planned(variant(), {0: run(4, 4, groups=APART, curvature=(1.0, 2.0))})
    assert all(one[kind].labels != three[kind].labels for kind in one)


def test_variants_that_train_identically_share_the_runs_of_controls():
    cheap = replace(variant(), name="cheap", counts="billed")
    both = [planned(of, {0: run(4, 2)})["mean"] for of in (variant(), cheap)]
    [found] = control_runs(job(), both)
    assert found.variants == ("marless~mean", "cheap~mean")


def test_nothing_to_control_makes_no_run():
    assert control_runs(job(), []) == ()
