"""Which runs a frontier takes: static settings and presets with equal env steps, under ids that do not change."""

import pytest

from marless.core.errors import SpecError
from marless.cost.comparison.runs import planned_runs
from marless.cost.frontier.contenders import StaticSetting, equal_job, preset_variant, settings, usual_actors
from marless.jobs.presets import Preset, preset
from tests.unit.cost.comparison.synthetic import spec


def test_the_grid_is_every_combination_in_order_and_each_once():
    found = settings([16, 1, 16], ["shared"], ["synchronous", "pipelined", "synchronous"])
    names = ["1 shared synchronous", "1 shared pipelined", "16 shared synchronous", "16 shared pipelined"]
    assert [each.name for each in found] == names


@pytest.mark.parametrize(
    ("most", "counts"), [(1, (1,)), (2, (1, 2)), (16, (1, 4, 16)), (50, (1, 4, 16, 50)), (64, (1, 4, 16, 64))]
)
def test_actors_go_up_by_fours_to_the_jobs(most, counts):
    assert usual_actors(most) == counts


def test_a_setting_is_fixed_and_keeps_what_the_job_says_of_its_schedule():
    job = spec(
        scaling={"name": "marless", "window": 3},
        sharing={"name": "marless", "groups": "independent"},
        actors={"count": 4, "envs": 3, "steps": 5, "episodes": "fresh"},
        schedule={"name": "stellaris", "learners": 7},
    )
    found = StaticSetting(actors=9, groups="shared", schedule="stellaris").variant(job).spec
    assert (found.scaling.name, found.sharing.name, found.sharing.groups) == ("fixed", "fixed", "shared")
    assert (found.actors.count, found.actors.envs, found.schedule.learners) == (9, 3, 7)
    assert StaticSetting(actors=9, groups="shared", schedule="pipelined").variant(job).spec.schedule.name == "pipelined"


def test_a_setting_does_not_follow_a_budget_or_a_deadline():
    job = spec(scaling={"name": "fixed", "within_budget": True, "deadline_s": 5.0}, stop={"rounds": 3, "cost_usd": 1.0})
    found = StaticSetting(actors=4, groups="shared", schedule="synchronous").variant(equal_job(job)).spec
    assert (found.scaling.within_budget, found.scaling.deadline_s) == (False, None)


def test_rounds_become_the_env_steps_that_they_sample():
    # 3 rounds of 4 actors, 4 copies and 5 steps
    found = equal_job(spec(stop={"rounds": 3, "cost_usd": 1.0}, evaluation={"every": 2}))
    assert found.stop.model_dump(exclude_none=True) == {"env_steps": 240}
    assert found.evaluation.every == 0
    both = {"rounds": 3, "env_steps": 100, "return": -3.0}
    assert equal_job(spec(stop=both, evaluation={"every": 1})).stop.model_dump(exclude_none=True) == {"env_steps": 100}


def test_functions_are_charged_by_cpu_seconds_unless_the_job_says_otherwise():
    assert equal_job(spec(bill={"accounting": "paper"})).bill.time == "cpu"
    assert equal_job(spec(bill={"time": "duration"})).bill.time == "duration"
    found = preset_variant(equal_job(spec()), preset("no-sharing")).spec
    assert (found.bill.time, found.bill.accounting) == ("cpu", "paper")


def test_a_job_without_a_length_is_refused():
    with pytest.raises(SpecError, match=r"set stop\.env_steps or stop\.rounds"):
        equal_job(spec(stop={"wall_s": 5.0}))


def test_a_preset_that_trains_as_a_setting_does_has_its_runs():
    job = equal_job(spec())
    alone = preset_variant(job, preset("marless-minus"))
    assert (alone.name, alone.label) == ("marless-minus", "4-independent-synchronous")
    both = [StaticSetting(actors=4, groups="independent", schedule="synchronous").variant(job), alone]
    [run] = planned_runs(job, both, seeds=1)
    assert run.id == "tiny-4-independent-synchronous-seed0"
    assert run.variants == ("4 independent synchronous", "marless-minus")
    assert preset_variant(job, preset("no-sharing")).label == "no-sharing"
    own = Preset(name="small", about="", sections={"algorithm": {"epochs": 3}})
    assert preset_variant(job, own).label == "small"
