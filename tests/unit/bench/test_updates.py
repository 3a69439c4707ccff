"""The jobs whose updates are timed."""

import pytest
import torch

from bench import updates


@pytest.fixture
def one_thread():
    """As the benchmark measures: threads that wait for each other use CPU time, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_groups_hold_all_agents_once():
    assert updates.together(3, 2, 1) == {
        "group_0": ["agent_0", "agent_1", "agent_2"],
        "group_1": ["agent_3", "agent_4"],
        "group_2": ["agent_5"],
    }


@pytest.mark.parametrize("case", updates.cases(), ids=" ".join)
def test_every_case_is_a_job_of_equally_many_env_steps(case):
    job = updates.job(updates.cases()[case], 3)
    assert job.seed == 3
    assert job.actors.count * job.actors.envs * job.actors.steps == 4_000


def test_a_group_that_draws_trains_on_less(one_thread, monkeypatch):
    monkeypatch.setattr(updates, "ROUNDS", 2)
    cases = updates.cases()
    assert 0 < updates.cpu_ms(cases["6", "drawn"], 0) < updates.cpu_ms(cases["6", "pooled"], 0)
