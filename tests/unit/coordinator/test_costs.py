"""What a job costs by its records: exact where there is a budget, and no other figure where it was added up late."""

import pytest

from marless.core.errors import SpecError
from marless.cost.billing.ledger import Ledger
from marless.jobs import prices
from marless.services.coordinator.execution.planning import cost_reached, ending, spent_up
from marless.services.coordinator.state import journal
from marless.services.coordinator.state.journal import MOST_DUE, Costs, Journal, check_costs
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from tests.unit.cost.billing.rounds import invocation, job, round_of

BUDGET = {"stop": {"rounds": 100, "cost_usd": 1.0}, "bill": {"accounting": "paper"}}


def a_round(number: int, *, actor_s: float = 1.0, **changes):
    at = 1000.0 + 10 * number
    actor = invocation("actor", at, at + actor_s)
    return round_of(actor, round_=number, policies=("p",), started_s=at, ended_s=at + actor_s, **changes)


def usd(spec, records) -> float:
    ledger = Ledger(spec, prices.load(None))
    for record in records:
        ledger.add(record)
    return ledger.total_usd(spec.bill.accounting)


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "j")
    folder.create(job(), JobStatus(job="j", state="RUNNING", reason="", accepted_s=1.0))
    folder.take_over()
    return folder


def journal_of(spec, folder) -> Journal:
    journal = Journal(folder, Costs(spec, folder))
    journal.read()
    return journal


def test_a_budget_knows_what_was_spent_and_what_one_more_round_would_make_of_it(folder):
    """A second of one GB costs 16.67 µ$, by the millisecond."""
    spec = job(**BUDGET)
    journal = journal_of(spec, folder)
    journal.append(a_round(0))
    before = journal.costs.spent_usd()
    assert before == pytest.approx(16.67e-6, rel=1e-3)
    assert journal.costs.spent_usd(a_round(1, actor_s=2.0)) == pytest.approx(3 * before)
    assert journal.costs.spent_usd() == before  # it was only asked
    assert journal.costs.last_usd() == {"actor": before}
    journal.append(a_round(1, actor_s=2.0))
    assert journal.costs.spent_usd() == journal.costs.total_usd() == usd(spec, folder.records())
    assert journal.costs.last_usd() == {"actor": pytest.approx(2 * before)}


def test_after_a_restart_or_a_loss_of_rounds_a_budget_counts_what_is_recorded(folder):
    spec, records = job(**BUDGET), [a_round(number) for number in range(5)]
    for record in records:
        folder.append(record)
    journal = journal_of(spec, folder)
    assert journal.costs.spent_usd() == usd(spec, records)
    journal.cut(2)
    assert journal.costs.spent_usd() == usd(spec, records[:2])
    journal.cut(0)
    assert (journal.costs.spent_usd(), journal.costs.last_usd()) == (0.0, {})


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("rounds", [1, MOST_DUE, MOST_DUE + 1, 3 * MOST_DUE])
def test_without_a_budget_the_cost_is_known_in_the_end(folder, rounds, restarted):
    spec, records = job(), [a_round(number) for number in range(rounds)]
    journal = journal_of(spec, folder)
    for record in records:
        journal.append(record)
        if record.round % 2:
            journal.costs.catch_up()
    if restarted:
        journal = journal_of(spec, folder)
    assert journal.costs.total_usd() == journal.costs.total_usd() == usd(spec, records) > 0


def test_a_cost_that_nobody_asked_for_and_that_cannot_be_known_is_no_reason_to_fail(folder, monkeypatch):
    def refuse(*_args):
        raise SpecError("no price for c9.large")

    monkeypatch.setattr(journal, "Ledger", refuse)
    costs = Costs(job(), folder)
    costs.put(a_round(0))
    costs.catch_up()
    assert costs.problem == "no price for c9.large"
    assert costs.total_usd() is None
    check_costs(job())
    for asked in (BUDGET, {"bill": {"prices": "/nowhere.yaml"}}):
        with pytest.raises(SpecError):
            check_costs(job(**asked))


def test_a_budget_is_spent_when_it_is_reached(folder):
    spec = job(**BUDGET)
    assert cost_reached(spec.stop, 0.999999, "paper") == ""
    assert cost_reached(spec.stop, 1.0, "paper") == "1.000000 USD spent by paper accounting, of a budget of 1 USD"
    assert cost_reached(job().stop, 1e9, "paper") == ""
    journal = journal_of(spec, folder)
    journal.append(a_round(0))
    tight = spec.stop.model_copy(update={"cost_usd": journal.costs.spent_usd()})
    assert spent_up(tight, journal).startswith("0.000017 USD spent by paper accounting, of a budget of 1.6")
    assert ending(tight, journal) == spent_up(tight, journal)  # though its last round was not evaluated
    assert ending(spec.stop, journal) == spent_up(spec.stop, journal) == ""
