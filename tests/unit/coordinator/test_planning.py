"""Plans: what policies decide, kept as it will be read back, and refused if no round can start from it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from marless.core.errors import InternalError
from marless.core.group import Group
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.record import PhaseSeconds, RoundRecord, from_json
from marless.jobs.scaling.base import ScalingDecision
from marless.jobs.sharing.base import SharingDecision
from marless.jobs.spec import parse
from marless.services.coordinator.execution.planning import Planner
from marless.services.coordinator.state.journal import HISTORY_ROUNDS, Costs, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from tests.unit.jobs.scaling.timed import invocation
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


def timed(number: int, **changes) -> RoundRecord:
    """A round of 40 actors that took 2 s: 1 s each for rollout and update, the latter in proportion to samples."""
    start_s = 100.0 + 2 * number
    acting = [invocation("actor", start_s, start_s + 1) for _ in range(40)]
    learning = (invocation("learner", start_s + 1, start_s + 2), invocation("policy", start_s + 1, start_s + 2))
    phases = PhaseSeconds(rollout=1.0, update=1.0, evaluation=0.0)
    fields = {"actors": 40, "started_s": start_s, "ended_s": start_s + 2, "idle_s": 0.0, "phases": phases}
    return replace(record(number), **fields, invocations=(*acting, *learning), **changes)


def test_a_deadline_takes_the_actors_that_it_needs(folder):
    """After one round of 2 s, nine rounds of 1 + n/40 s in 14.15 s (15 s but for 5 % of 17) allow 22 actors."""
    folder.append(timed(0))
    due = {"scaling": {"name": "fixed", "deadline_s": 17.0}, "stop": {"rounds": 10}}
    plan = planner(folder, **due).plan(VERSIONS, "")
    assert plan.actors == 22
    assert plan.decisions[0].reason.startswith("22 actors instead of 40: 15.0 s are left until the deadline; 9 rounds")
    assert plan.decisions[0].inputs["deadline"]["left_s"] == 15.0
    assert planner(folder, **due).plan(VERSIONS, "the end").actors == 40  # no round to be in time
    assert planner(folder, stop={"rounds": 10}).plan(VERSIONS, "").actors == 40


def test_a_budget_goes_before_a_deadline(folder):
    """Nine rounds of all 40 actors take 18 s of 20; of the one that the budget pays it takes 360 rounds of 1.025 s."""
    folder.append(timed(0))
    settings = spec_of_actors(folder)
    stop = {"env_steps": 100 + 9 * 40 * settings.envs * settings.steps}
    due = {"name": "fixed", "deadline_s": 22.0, "within_budget": True}
    rich, poor = ({"stop": stop | {"cost_usd": usd}, "scaling": due} for usd in (1e6, 1e-9))
    assert planner(folder, **rich).plan(VERSIONS, "").actors == 40
    plan = planner(folder, **poor).plan(VERSIONS, "")
    assert plan.actors == 1
    decision = plan.decisions[0]
    assert {"deadline", "budget"} <= decision.inputs.keys()
    assert decision.reason.endswith("; the budget goes before the deadline, which the run will miss by about 349.0 s")


def spec_of_actors(folder):
    return planner(folder)._job.spec.actors
