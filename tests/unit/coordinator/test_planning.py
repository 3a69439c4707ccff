"""Plans: what policies decide, kept as it will be read back, and refused if no round can start from it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from marless.core.errors import InternalError
from marless.core.group import Group
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.record import from_json
from marless.jobs.scaling.base import ScalingDecision
from marless.jobs.sharing.base import SharingDecision
from marless.jobs.spec import parse
from marless.services.coordinator.execution.planning import Planner
from marless.services.coordinator.state.journal import HISTORY_ROUNDS, Costs, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from tests.unit.jobs.test_record import record

DOCUMENT = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2}},
    "algorithm": "ippo",
    "actors": {"count": 40},
    "stop": {"rounds": 9},
}
OWN = (Group("agent_0", ("agent_0",)), Group("agent_1", ("agent_1",)))
VERSIONS = {"agent_0": 1, "agent_1": 1}


@dataclass
class Scripted:
    """Both policies: decides what it is told, and remembers what it was shown."""

    groups: tuple[Group, ...] = OWN
    inputs: object = None
    seen: object = None

    def decide(self, history, groups=None):
        self.seen = history
        inputs = self.inputs or {}
        if groups is None:
            return SharingDecision(self.groups, "why these", inputs)
        return ScalingDecision(40, "why so many", inputs)

    def asks(self, history, returns):
        self.seen = history
        return returns is not None


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "j")
    folder.create(parse(DOCUMENT, "spec"), JobStatus(job="j", state="RUNNING", reason="", accepted_s=1.0))
    folder.take_over()
    return folder


def planner(folder, scales=None, shares=None, **changes) -> Planner:
    spec = parse(DOCUMENT | changes, "spec")
    job: PreparedJob = replace(prepare(spec), scaling=scales or Scripted(), sharing=shares or Scripted())
    journal = Journal(folder, Costs(spec, folder))
    journal.read()
    return Planner(job, journal)


def test_a_plan_has_what_the_policies_decided_and_why(folder):
    for number in range(2):
        folder.append(record(number))
    plan = planner(folder, scales=Scripted(inputs={"window": (1, 2.5)})).plan(VERSIONS, "")
    assert (plan.round, plan.env_steps, plan.actors, plan.groups, plan.ending) == (2, 200, 40, OWN, "")
    scaling, sharing = plan.decisions
    assert (scaling.kind, scaling.rule, scaling.outcome, scaling.reason) == (
        *("scaling", "fixed", "40 actors", "why so many"),
    )
    assert (sharing.kind, sharing.outcome, sharing.reason) == ("sharing", "agent_0 agent_1", "why these")
    assert scaling.inputs == {"window": [1, 2.5]}  # a tuple would be a list after a restart, and so it is before


def test_a_policy_is_shown_in_memory_what_it_would_be_shown_after_a_restart(folder):
    scaling, sharing = Scripted(inputs={"seen": {3: (1, (2,))}}), Scripted(inputs={"at": 0.1})
    first = planner(folder, scaling, sharing)
    given = record(decisions=first.plan(VERSIONS, "").decisions)
    assert from_json(given.to_json()) == given
    folder.append(given)
    later = planner(folder, scaling, sharing, sharing={"name": "marless"}, env={"name": "mpe/simple_spread"})
    later.plan(VERSIONS, "")
    assert scaling.seen == (given,)
    assert scaling.seen[0:] == (given,)  # a sequence that can be cut
    assert later.measure(given.returns).similarity
    assert sharing.seen == (given,)


def test_policies_see_the_newest_rounds_however_long_the_job(folder):
    spec = parse(DOCUMENT, "spec")
    journal, scaling = Journal(folder, Costs(spec, folder)), Scripted()
    for number in range(HISTORY_ROUNDS + 5):
        folder._rounds.write(record(number).to_json().encode() + b"\n")
    journal.read()
    Planner(replace(prepare(spec), scaling=scaling), journal).plan(VERSIONS, "")
    assert [each.round for each in scaling.seen] == list(range(5, HISTORY_ROUNDS + 5))


@pytest.mark.parametrize("inputs", [{"x": np.float32(1)}, {"x": object()}])
def test_inputs_that_could_not_be_recorded_are_a_defect_with_a_name(folder, inputs):
    with pytest.raises(InternalError, match=r"^scaling policy 'fixed': JSON cannot hold the inputs of its decision: "):
        planner(folder, scales=Scripted(inputs=inputs)).plan(VERSIONS, "")


def test_a_group_that_starts_from_nothing_is_a_defect_with_a_name(folder):
    groups = (OWN[0], Group("agent_1", ("agent_1",), "agent_7"))
    with pytest.raises(InternalError, match="group agent_1 is to start from 'agent_7', which has no version; there is"):
        planner(folder, shares=Scripted(groups)).plan(VERSIONS, "")
    planner(folder, shares=Scripted((OWN[0], Group("new", ("agent_1",), "agent_0")))).plan(VERSIONS, "")


def test_a_policy_that_minds_the_budget_gets_no_more_actors_than_it_pays(folder):
    folder.append(record(0))
    spent = planner(folder, stop={"rounds": 9, "cost_usd": 1.0})._journal.costs.spent_usd()
    budget = {"rounds": 9, "cost_usd": 1.2 * spent}
    minds = {"scaling": {"name": "fixed", "within_budget": True}}
    plan = planner(folder, **minds, stop=budget).plan(VERSIONS, "")
    assert plan.actors == 1
    assert plan.decisions[0].outcome == "1 actors"
    assert "actors instead of 40" in plan.decisions[0].reason
    assert "budget" in plan.decisions[0].inputs
    assert planner(folder, stop=budget).plan(VERSIONS, "").actors == 40  # nobody told it to mind
    assert planner(folder, **minds, stop=budget).plan(VERSIONS, "the end").actors == 40  # no round to pay for
