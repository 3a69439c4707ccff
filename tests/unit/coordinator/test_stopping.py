"""When a job that is found in its folder has a round left to run."""

import dataclasses

import pytest

from marless.jobs.record import Evaluation
from marless.jobs.sections import StopSpec
from marless.services.coordinator.execution.evaluations import outstanding
from marless.services.coordinator.execution.planning import ending, may_end
from marless.services.coordinator.state.journal import Costs, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from tests.unit.coordinator.test_run_folder import SPEC
from tests.unit.jobs.test_record import RETURNS, record


@pytest.fixture
def journal(tmp_path) -> Journal:
    """Three rounds of half a second and 100 env steps, a quarter of a second before each but the first and, for it was
    after an interruption, the third; that was evaluated, at -20.5.
    """
    folder = RunFolder(tmp_path / "j")
    folder.create(SPEC, JobStatus(job="j", state="RUNNING", reason="", accepted_s=1.0))
    folder.take_over()
    for number in range(3):
        folder.append(record(number, evaluation=RETURNS if number == 2 else None, idle_s=0.25 if number == 1 else None))
    journal = Journal(folder, Costs(SPEC, folder))
    journal.read()
    return journal


def test_policies_are_evaluated_once_every_so_many_rounds():
    """Not those that their own round has evaluated already, as the last one before a job is resumed."""
    due = [outstanding(2, record(number)) for number in range(4)]
    assert due == [False, True, False, True]
    assert not outstanding(2, record(1, evaluation=RETURNS))
    assert not outstanding(0, record(1))
    assert not outstanding(1, None)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"rounds": 3}, "3 rounds done"),
        ({"rounds": 4}, ""),
        ({"env_steps": 300}, "300 env steps sampled"),
        ({"env_steps": 301}, ""),
        ({"wall_s": 1.75}, "2 s of training passed"),
        ({"wall_s": 1.76}, ""),
        ({"return": -20.5}, "greedy return per agent -20.500 reached -20.5"),
        ({"return": -20.4}, ""),
    ],
)
def test_every_rule_goes_by_what_is_recorded(journal, rule, reason):
    assert ending(StopSpec.model_validate(rule), journal) == reason


def test_the_last_round_is_an_evaluated_one(journal):
    journal.append(record(3))
    assert ending(StopSpec.model_validate({"rounds": 3}), journal) == ""


EARLY = Evaluation(rounds=3, env_steps=300, returns=RETURNS)


@pytest.mark.parametrize(
    ("rule", "last"),
    [
        ({"rounds": 4}, True),
        ({"rounds": 5}, False),
        ({"env_steps": 400}, True),
        ({"env_steps": 401}, False),
        ({"wall_s": 2.25}, True),
        ({"wall_s": 2.26}, False),
        ({"return": -20.5}, True),
        ({"return": -20.4}, False),
    ],
)
def test_a_round_may_be_the_last_by_its_limits_or_by_the_return_of_the_round_before(journal, rule, last):
    stop = StopSpec.model_validate(rule)
    assert may_end(stop, journal, record(3, earlier_evaluation=EARLY)) == last
    journal.append(record(3, earlier_evaluation=EARLY))
    assert ending(stop, journal) == ""  # its own policies have not been evaluated


def test_a_return_counts_that_the_last_policies_reach(journal):
    stop = StopSpec.model_validate({"return": -21.0})
    worse = dataclasses.replace(RETURNS, mean=-22.0)
    journal.append(record(3, earlier_evaluation=EARLY, evaluation=worse))
    assert (ending(stop, journal), journal.greedy) == ("", worse)
    journal.append(record(4, evaluation=RETURNS))
    assert ending(stop, journal) == "greedy return per agent -20.500 reached -21"


def test_what_is_cut_is_not_counted(journal):
    journal.cut(1)
    assert (journal.rounds, journal.env_steps, journal.trained_s, journal.greedy) == (1, 100, 0.5, None)
    journal.cut(0)
    assert (journal.rounds, journal.env_steps, journal.last) == (0, 0, None)
