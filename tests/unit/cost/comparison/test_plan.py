"""Which runs a comparison takes."""

import pytest

from marless.core.errors import SpecError
from marless.cost.comparison.runs import Run, planned_runs, preset_variants
from marless.jobs.presets import Preset, presets
from tests.unit.cost.comparison.synthetic import spec

FIVE = presets("vanilla,marless-minus,no-scaling,no-sharing,marless")


def planned(job, chosen, seeds) -> tuple[Run, ...]:
    return planned_runs(job, preset_variants(job, chosen), seeds)


def test_presets_that_train_identically_share_their_runs():
    runs = planned(spec(), FIVE, seeds=2)
    assert len(runs) == 2 * 4
    by_id = {run.id: run for run in runs}
    assert by_id["tiny-vanilla-seed0"].variants == ("vanilla", "marless-minus")
    assert by_id["tiny-marless-seed1"].variants == ("marless",)
    assert by_id["tiny-marless-seed1"].spec.seed == by_id["tiny-marless-seed1"].seed == 1


def test_seeds_are_the_jobs_and_those_after_it_and_equal_for_all():
    runs = planned(spec(seed=7), FIVE, seeds=3)
    assert [run.seed for run in runs] == [7] * 4 + [8] * 4 + [9] * 4
    for seed in (7, 8, 9):
        assert {name for run in runs if run.seed == seed for name in run.variants} == {each.name for each in FIVE}


def test_every_seed_begins_with_another_preset():
    runs = planned(spec(), FIVE, seeds=5)
    assert [run.variants[0] for run in runs[::4]] == ["vanilla", "no-scaling", "no-sharing", "marless", "vanilla"]


@pytest.mark.parametrize("names", ["marless-minus", "marless-minus,vanilla", "no-sharing,marless-minus"])
def test_an_id_does_not_depend_on_what_else_is_compared(names):
    ids = {name: run.id for run in planned(spec(), presets(names), seeds=1) for name in run.variants}
    assert ids["marless-minus"] == "tiny-vanilla-seed0"


def test_a_preset_of_ones_own_has_runs_of_its_own():
    own = Preset(name="tight", about="", accounting="paper", sections={"scaling": {"name": "marless", "window": 3}})
    [run] = planned(spec(), [own], seeds=1)
    assert (run.id, run.spec.scaling.window) == ("tiny-tight-seed0", 3)


def test_an_id_that_no_job_can_have_is_refused():
    own = Preset(name="x" * 60, about="", accounting="paper", sections={"model": {"hidden": [9]}})
    with pytest.raises(SpecError, match="at most 100"):
        planned(spec(name="y" * 60), [own], seeds=1)
