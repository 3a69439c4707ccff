"""The ledger: every rule of the three accountings against numbers worked out by hand, and the papers' own figures."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.cost.billing.bill import bill, to_dict
from marless.cost.billing.ledger import Ledger
from marless.jobs.prices import ACCOUNTINGS, Prices, load
from marless.jobs.record import PhaseSeconds
from tests.unit.cost.billing.rounds import invocation, job, paper_round, round_of

GB_S = Decimal("0.0000166667")
ROUND = PhaseSeconds(rollout=1.0, update=2.0, evaluation=0.0)


def picos(usd: Decimal) -> int:
    return round(usd * 10**12)


def prices(**changes) -> Prices:
    """Ours, with fields of sections replaced: prices(fargate={"minimum_s": 0}, backend="fargate")."""
    ours = load().model_dump(by_alias=True)
    sections = {name: ours[name] | value if isinstance(value, dict) else value for name, value in changes.items()}
    return Prices.model_validate(ours | sections)


PLAIN = prices(**{"lambda": {"warm": "free"}})


def lines(cost, accounting):
    return {(each.function, each.group, each.item): each.picos for each in cost.charges[accounting]}


def small_round(round_: int = 0, *, at: float = 100.0, policies=("p",), **changes):
    """One cold actor of 1 s with a start of 0.5 s; a learner of 2 s in which one policy used half a vCPU second."""
    return round_of(
        invocation("actor", at, at + 1.0, cold=True, init_s=0.5, queued_s=at),
        invocation("learner", at + 1.0, at + 3.0, queued_s=at + 1.0),
        *(invocation("policy", at + 1.0, at + 3.0, name=name, vcpu_s=0.5004, queued_s=0.0) for name in policies),
        round_=round_,
        policies=policies,
        **{"actors": 1, "started_s": at, "ended_s": at + 4.0, "phases": ROUND, "idle_s": 0.0 if round_ else None}
        | changes,
    )


def test_paper_counts_work_and_starts_by_the_millisecond_and_nothing_else():
    """An actor of 1 GB for 1.5 s; a policy of 2 GB for 500.4 ms, rounded up to 501."""
    cost = Ledger(job(), PLAIN).add(small_round())
    assert lines(cost, "paper") == {
        ("actor", "", "work"): picos(GB_S * Decimal("1.5")),
        ("policy", "p", "work"): picos(GB_S * 2 * Decimal("0.501")),
    }
    assert cost.usd("paper") == pytest.approx(float(GB_S) * 2.502)


def test_a_job_says_whether_functions_or_processes_start():
    """The small round with two policies: a start of 2 s of their learner each, or of 1 s."""
    one = small_round(policies=("p", "q"))
    cold = replace(
        one,
        invocations=tuple(
            replace(each, cold=True, init_s=2.0) if each.function == "learner" else each for each in one.invocations
        ),
    )
    found = {
        starts: Ledger(job(bill={"starts": starts}), PLAIN).add(cold).picos("paper")
        for starts in ("function", "process")
    }
    assert found["function"] - found["process"] == pytest.approx(picos(GB_S * 2 * 2), abs=2)


def test_lambda_charges_the_memory_that_a_vcpu_comes_with_and_each_request():
    cost = Ledger(job(), PLAIN).add(small_round())
    assert lines(cost, "billed") == {
        ("actor", "", "work"): picos(GB_S * Decimal("1.5") * 1769 / 1024),
        ("actor", "", "request"): 200_000,
        ("policy", "p", "work"): picos(GB_S * 2 * Decimal("0.501")),
        ("policy", "p", "request"): 200_000,
        ("redis", "", "node"): picos(Decimal("0.032") * 4 / 3600),
    }


def test_actors_that_are_pre_warmed_are_ready_all_the_time_and_work_at_the_lower_rate():
    """One actor is provisioned for the round's 4 s."""
    cost = Ledger(job(), load()).add(small_round())
    found = lines(cost, "billed")
    assert found["actor", "", "ready"] == picos(Decimal("0.0000041667") * 4 * 1769 / 1024)
    assert found["actor", "", "work"] == picos(Decimal("0.0000097222") * Decimal("1.5") * 1769 / 1024)
    assert found["policy", "p", "work"] == picos(GB_S * 2 * Decimal("0.501"))
    without = Ledger(job(functions={"prewarm": False}), load()).add(small_round())
    assert lines(without, "billed") == lines(Ledger(job(), PLAIN).add(small_round()), "billed")


def test_every_actor_of_the_round_is_provisioned():
    cost = Ledger(job(), load()).add(small_round(actors=3))
    assert lines(cost, "billed")["actor", "", "ready"] == picos(3 * Decimal("0.0000041667") * 4 * 1769 / 1024)


def test_time_between_rounds_is_charged_up_to_the_keep_alive():
    """Rounds of 4 s: one after an idle time of 6 s, one after an hour in which the coordinator did not get to it."""
    ledger = Ledger(job(), load())
    costs = [ledger.add(small_round(i, idle_s=idle_s)) for i, idle_s in enumerate((None, 6.0, 3600.0))]
    seconds = [4, 6 + 4, 600 + 4]
    assert [lines(cost, "billed")["redis", "", "node"] for cost in costs] == [
        picos(Decimal("0.032") * s / 3600) for s in seconds
    ]
    assert [lines(cost, "billed")["actor", "", "ready"] for cost in costs] == [
        picos(Decimal("0.0000041667") * s * 1769 / 1024) for s in seconds
    ]


@pytest.mark.parametrize("at", [50.0, 104.0, 204.0, 1e6])
def test_nothing_is_charged_between_two_coordinators_whatever_the_clock_shows(at):
    """Rounds of 4 s; the second begins at once, later, or by a clock that was set back meanwhile."""
    ledger = Ledger(job(), load())
    ledger.add(small_round(0, at=100.0))
    for number in (1, 2):
        each = ledger.add(small_round(number, at=at + 4 * (number - 1), idle_s=None if number == 1 else 0.0))
        assert lines(each, "billed")["redis", "", "node"] == picos(Decimal("0.032") * 4 / 3600)
        assert lines(each, "billed")["actor", "", "ready"] == picos(Decimal("0.0000041667") * 4 * 1769 / 1024)


@pytest.mark.parametrize(("idle_s", "charged_s"), [(2.0, 6), (1000.0, 604)])
def test_idle_time_is_what_the_coordinator_counted_whatever_the_clock_shows(idle_s, charged_s):
    """Between two rounds of 4 s, while the clock is set ahead by an hour; up to the keep-alive of 600 s."""
    ledger = Ledger(job(), load())
    ledger.add(small_round(0, at=100.0))
    cost = lines(ledger.add(small_round(1, at=3706.0, idle_s=idle_s)), "billed")
    assert cost["redis", "", "node"] == picos(Decimal("0.032") * charged_s / 3600)


def test_idle_time_keeps_no_container_for_longer_than_the_keep_alive():
    ledger = Ledger(job(), prices(backend="fargate", fargate={"minimum_s": 0}, keep_alive_s=10.0))
    per_s = (Decimal("0.04048") + Decimal("0.004445")) / 3600
    ledger.add(small_round(0, at=100.0))
    cost = lines(ledger.add(small_round(1, at=3704.0, idle_s=3600.0)), "billed")
    assert cost["actor", "", "work"] == pytest.approx(picos(per_s * 14), abs=3)


@pytest.mark.parametrize("backend", ["fargate", "ec2"])
def test_what_an_interruption_ended_is_started_and_paid_anew_and_what_it_left_is_not(backend):
    """A minute is paid at once; the next round of 4 s lies within it, unless its functions had to be started."""
    minute, learner = {"fargate": (0.04048 + 0.004445, 0.04048 + 2 * 0.004445), "ec2": (0.612, 0.0)}[backend]
    for cold, idle_s, minutes in ((False, None, 0), (True, None, 1), (True, 0.0, 0)):
        ledger = Ledger(job(), prices(backend=backend, redis={"granularity_s": 3600}))
        ledger.add(small_round(0))
        found = small_round(1, idle_s=idle_s)
        found = replace(found, invocations=tuple(replace(each, cold=cold) for each in found.invocations))
        cost = ledger.add(found).usd("billed")
        assert cost == pytest.approx(minutes * (minute + learner) / 60, abs=1e-9), (cold, idle_s)


def test_a_redis_node_of_the_jobs_own_is_charged_by_started_hours():
    ledger = Ledger(job(), prices(redis={"granularity_s": 3600}))
    nodes = [
        lines(ledger.add(small_round(i, at=100.0 + 1799 * i, ended_s=100.0 + 1799 * (i + 1))), "billed").get(
            ("redis", "", "node"), 0
        )
        for i in range(4)
    ]
    assert nodes == [picos(Decimal("0.032")), 0, picos(Decimal("0.032")), 0]


def test_fargate_charges_at_least_a_minute_per_container():
    """4 s rounds: the first minute is paid at once; the container is paid on from the minute's end."""
    ledger = Ledger(job(), prices(backend="fargate"))
    actor = Decimal("0.04048") + Decimal("0.004445")
    learner = Decimal("0.04048") + 2 * Decimal("0.004445")
    first = lines(ledger.add(small_round(0, at=100.0)), "billed")
    assert first["actor", "", "work"] == picos(actor * 60 / 3600)
    assert first["policy", "p", "work"] == picos(learner * 60 / 3600)
    within = lines(ledger.add(small_round(1, at=104.0)), "billed")
    assert set(within) == {("redis", "", "node")}
    beyond = lines(ledger.add(small_round(2, at=163.0, idle_s=55.0)), "billed")
    assert beyond["actor", "", "work"] == picos(actor * 7 / 3600)


def test_fargate_charges_containers_that_idle_until_their_keep_alive_is_over():
    """Three actors in round 0, one from then on; two containers idle for 10 s of keep-alive after it."""
    ledger = Ledger(job(), prices(backend="fargate", fargate={"minimum_s": 0}, keep_alive_s=10.0))
    per_s = (Decimal("0.04048") + Decimal("0.004445")) / 3600
    found = [lines(ledger.add(small_round(i, at=100.0 + 4 * i, actors=3 if i == 0 else 1)), "billed") for i in range(5)]
    work = [each["actor", "", "work"] for each in found]
    ready = [each.get(("actor", "", "ready"), 0) for each in found]
    assert work == [pytest.approx(picos(per_s * 12), abs=3), *[picos(per_s * 4)] * 4]
    assert ready == [0, 2 * picos(per_s * 4), 2 * picos(per_s * 4), 2 * picos(per_s * 2), 0]


def test_a_container_that_was_released_is_started_anew():
    """Three actors, then one for four rounds, in which two containers go after 10 s, then three again: 4 s of each."""
    ledger = Ledger(job(), prices(backend="fargate", fargate={"minimum_s": 0}, keep_alive_s=10.0))
    per_s = (Decimal("0.04048") + Decimal("0.004445")) / 3600
    counts = (3, 1, 1, 1, 1, 3)
    costs = [ledger.add(small_round(i, at=100.0 + 4 * i, actors=n)) for i, n in enumerate(counts)]
    assert lines(costs[-1], "billed")["actor", "", "work"] == pytest.approx(picos(per_s * 12), abs=3)


def test_the_cheapest_machine_that_fits_is_taken_wherever_it_stands_in_the_table():
    cheap = {"usd_h": 1.5, "vcpus": 70, "memory_gb": 140}
    table = prices(ec2={"instances": load().model_dump()["ec2"]["instances"] | {"c6a.odd": cheap}})
    assert str(bill([paper_round(0)], job(), table).machine) == "c6a.odd"


def test_ec2_rents_as_many_machines_as_the_larger_phase_takes():
    """Twenty actors of 1 vCPU on machines of 16: two of them, a minute at least."""
    ledger = Ledger(job(), prices(backend="ec2"))
    found = lines(ledger.add(small_round(actors=20)), "billed")
    assert found == {
        ("machine", "", "machine"): 2 * picos(Decimal("0.612") * 60 / 3600),
        ("redis", "", "node"): picos(Decimal("0.032") * 4 / 3600),
    }


def evaluated(*, concurrent: int, own: int, **changes):
    """The small round, with evaluations of 2 s during its update, and others of 1 s after it."""
    one = small_round(**changes)
    early = [invocation("evaluation", 101.0, 103.0, during_update=True) for _ in range(concurrent)]
    late = [invocation("evaluation", 103.0, 104.0) for _ in range(own)]
    return replace(one, invocations=(*one.invocations, *early, *late))


def test_an_evaluation_during_the_update_is_paid_by_its_own_time_and_not_twice():
    """One actor, and twelve evaluations of 2 s and twelve of 1 s, of 1 GB each, one twelve after the other."""
    one = evaluated(concurrent=12, own=12)
    assert lines(Ledger(job(), PLAIN).add(one), "paper")["evaluation", "", "work"] == picos(GB_S * (12 * 2 + 12 * 1))
    found = lines(Ledger(job(), prices(backend="fargate", fargate={"minimum_s": 0})).add(one), "billed")
    per_s = (Decimal("0.04048") + Decimal("0.004445")) / 3600
    assert found["actor", "", "work"] == pytest.approx(12 * picos(per_s * 4), abs=12)  # twelve containers for 4 s


def test_an_evaluation_works_on_provisioned_actors_at_their_lower_rate():
    """Two of 2 s during the update, and one of 1 s after it; without provisioned concurrency, at the full rate."""
    for table, rate in ((load(), Decimal("0.0000097222")), (PLAIN, GB_S)):
        found = lines(Ledger(job(), table).add(evaluated(concurrent=2, own=1)), "billed")
        assert found["evaluation", "", "work"] == pytest.approx(picos(rate * 5 * 1769 / 1024), abs=3)
        assert found["evaluation", "", "request"] == 3 * 200_000


@pytest.mark.parametrize(
    ("concurrent", "own", "ahead", "machine"),
    [
        (0, 0, 0, "c6a.large"),
        (0, 12, 0, "c6a.4xlarge"),  # twelve at once, after the update
        (12, 0, 0, "c6a.4xlarge"),  # twelve at once, during it
        (2, 0, 4, "c6a.2xlarge"),  # six at once: of the next round, and an evaluation of two
        (3, 4, 0, "c6a.xlarge"),  # one evaluation after the other
    ],
)
def test_a_serverful_machine_holds_all_evaluations_that_run_at_once(concurrent, own, ahead, machine):
    ledger = Ledger(job(), PLAIN)
    ledger.add(evaluated(concurrent=concurrent, own=own, ahead=ahead))
    assert str(ledger.machine) == machine


@pytest.mark.parametrize(("concurrent", "own", "count"), [(0, 16, 1), (15, 0, 1), (16, 0, 2), (16, 16, 2), (8, 8, 1)])
def test_ec2_has_room_for_learners_and_an_evaluation_at_once(concurrent, own, count):
    """Machines of 16 vCPUs for a learner of 1 vCPU."""
    ledger = Ledger(job(), prices(backend="ec2"))
    found = lines(ledger.add(evaluated(concurrent=concurrent, own=own)), "billed")
    assert found["machine", "", "machine"] == count * picos(Decimal("0.612") * 60 / 3600)


def test_a_serverful_machine_evaluates_with_what_learners_leave():
    """Two vCPUs: a policy of 0.5004 s on one, and an evaluation of 2 s on the other; then another one after the policy,
    which ends 2 s after the update.
    """
    one = evaluated(concurrent=2, own=0)
    ledger = Ledger(job(), PLAIN)
    cost = ledger.add(one)
    assert str(ledger.machine) == "c6a.large"
    rate = Decimal("0.0765") / 3600
    assert lines(cost, "serverful")["evaluation", "", "machine"] == picos(rate * 2)


def test_serverful_reserves_the_smallest_machine_and_splits_by_phase():
    """The actor's second, and the policy's 500.4 ms, rounded up: 2 vCPUs hold either."""
    cost = Ledger(job(), PLAIN).add(small_round())
    rate = Decimal("0.0765") / 3600
    assert lines(cost, "serverful") == {
        ("actor", "", "machine"): picos(rate),
        ("learner", "", "machine"): picos(rate * Decimal("0.501")),
    }


def test_serverful_charges_all_rounds_on_the_machine_that_the_largest_needs():
    """A round of one actor, then one of 50: both on 64 vCPUs. Before the second, the ledger knows a small machine."""
    records = [small_round(0), paper_round(1)]
    ledger = Ledger(job(), PLAIN)
    first = ledger.add(records[0])
    assert (str(ledger.machine), first.picos("serverful")) == (
        "c6a.large",
        picos(Decimal("0.0765") * Decimal("1.501") / 3600),
    )
    ledger.add(records[1])
    found = bill(records, job(), PLAIN)
    assert str(found.machine) == str(ledger.machine) == "c6a.16xlarge"
    assert found.rounds[0].picos("serverful") == picos(Decimal("2.448") * Decimal("1.501") / 3600)
    assert found.picos("serverful") == ledger.picos("serverful") == picos(Decimal("2.448") * Decimal("6.401") / 3600)


def test_more_than_the_largest_machine_is_several_of_them():
    found = bill([paper_round(0, actors=200)], job(), PLAIN)
    assert (str(found.machine), found.machine.vcpus) == ("2 × c6a.48xlarge", 384)
    assert found.picos("serverful") == 2 * picos(Decimal("7.344") * Decimal("4.9") / 3600)


def test_memory_may_decide_the_machine():
    large = job(functions={"actor": {"memory_mb": 3072}})
    assert str(bill([paper_round(0)], large, PLAIN).machine) == "c6a.24xlarge"


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_the_papers_serverful_and_serverless_bars(accounting):
    """Wei et al. 2025, fig. 12, IPPO on spread, 100 rounds of 50 actors: $0.097 of serverless actors; serverful, $0.075
    of actors and $0.283 of learners on a c6a.16xlarge, which are 110 s and 416 s of it. Its figure of latencies gives
    MARLess 1.15 s of actors and 3.75 s of learners a round; its serverful rounds took longer, 4.16 s of learners.
    """
    spec = job(functions={"learner": {"memory_mb": 2355}})  # 2.3 GB
    found = bill([paper_round(i) for i in range(100)], spec, PLAIN)
    kinds = {name: value / 1e12 for name, value in found.by("kind", accounting).items()}
    if accounting == "paper":
        assert kinds["actor"] == pytest.approx(0.097, rel=0.05)
        assert kinds["critic"] + kinds["policy"] == pytest.approx(12 * 3.75 * 100 * 2.3 * float(GB_S), rel=0.001)
    elif accounting == "serverful":
        assert str(found.machine) == "c6a.16xlarge"
        assert kinds == {"actor": pytest.approx(0.075, rel=0.05), "learner": pytest.approx(0.255, rel=0.01)}
        slow = bill([paper_round(i, actor_s=1.10, learner_s=4.16) for i in range(100)], spec, PLAIN)
        bars = {name: value / 1e12 for name, value in slow.by("kind", accounting).items()}
        assert bars == {"actor": pytest.approx(0.075, rel=0.01), "learner": pytest.approx(0.283, rel=0.01)}
    else:
        assert found.picos("billed") > found.picos("paper")


def test_serverless_without_sharing_or_scaling_costs_a_quarter_less_than_serverful_as_printed():
    """The papers print -57 % (against serverful) and -43 % (against serverless alone): 1 - 0.43 / 0.57 = 25 %."""
    spec = job(functions={"learner": {"memory_mb": 2355}})
    serverless = bill([paper_round(i) for i in range(100)], spec, PLAIN).total_usd("paper")
    serverful = bill([paper_round(i, actor_s=1.10, learner_s=4.16) for i in range(100)], spec, PLAIN)
    assert 1 - serverless / serverful.total_usd("serverful") == pytest.approx(0.25, abs=0.02)


def test_groups_and_kinds_as_they_are_shown():
    found = bill([small_round(policies=("p", "q"))], job(), PLAIN)
    assert list(found.by("group", "paper")) == ["(shared)", "p", "q"]
    assert list(found.by("kind", "billed")) == ["actor", "actor: request", "policy", "policy: request", "redis: node"]
    assert list(found.by("round", "paper")) == ["0"]


def test_a_job_without_rounds_has_a_bill_of_nothing():
    found = bill([], job(), PLAIN)
    assert to_dict(found, PLAIN)["usd"] == {"paper": 0.0, "billed": 0.0, "serverful": 0.0}
    assert found.machine is None


def test_what_cannot_be_priced_is_refused_before_the_first_round():
    with pytest.raises(SpecError, match=r"cache\.huge"):
        Ledger(job(), prices(redis={"node": "cache.huge"}))
    with pytest.raises(SpecError, match=r"zz\.large"):
        Ledger(job(), prices(backend="ec2", ec2={"instance": "zz.large"}))
    with pytest.raises(SpecError, match="at most 64 are modelled"):
        Ledger(job(actors={"count": 4096}, functions={"actor": {"vcpus": 5}}), PLAIN)


times = st.floats(0.0, 5.0)


@st.composite
def lifecycles(draw):
    """Rounds with cold and warm starts, retries, zero-length and overlapping passes, idle gaps and interruptions."""
    at, records = draw(st.floats(1.5e9, 2e9)), []
    names = ("p", "q", "r")
    for round_ in range(draw(st.integers(0, 4))):
        at += draw(st.sampled_from([0.0, 0.1, 30.0, 5000.0]))
        functions = draw(
            st.lists(
                st.sampled_from(["actor", "evaluation", "learner", "post_process", "critic", "policy", "curvature"])
            )
        )
        made = [
            invocation(
                function,
                start := at + draw(times),
                start + draw(times),
                name=draw(st.sampled_from([*names, "critic.all"])) if function in ("critic", "policy") else "",
                index=draw(st.integers(0, 1)),
                attempt=draw(st.integers(1, 3)),
                cold=draw(st.booleans()),
                during_update=function == "evaluation" and draw(st.booleans()),
                init_s=draw(times),
                vcpu_s=draw(times),
            )
            for function in functions
        ]
        phases = PhaseSeconds(rollout=draw(times), update=draw(times), evaluation=draw(times))
        records.append(
            round_of(
                *made, round_=round_, policies=names, actors=draw(st.integers(1, 70)), started_s=at,
                ended_s=(at := at + draw(times)), phases=phases,
            )
        )  # fmt: skip
    return records


@settings(max_examples=60)
@given(
    records=lifecycles(),
    backend=st.sampled_from(["lambda", "fargate", "ec2"]),
    warm=st.sampled_from(["provisioned", "free"]),
)
def test_sums_over_rounds_kinds_and_groups_equal_the_ledgers_total_exactly(records, backend, warm):
    table, spec = prices(backend=backend, **{"lambda": {"warm": warm}}), job()
    ledger = Ledger(spec, table)
    for record in records:
        ledger.add(record)
    found = bill(records, spec, table)
    for accounting in ACCOUNTINGS:
        total = ledger.picos(accounting) if records else 0
        assert found.picos(accounting) == total
        for what in ("kind", "round", "group"):
            parts = found.by(what, accounting)
            assert sum(parts.values()) == total
            assert all(part >= 0 for part in parts.values())
            shown = to_dict(found, table)
            assert sum(shown[f"by_{what}"][accounting].values()) == pytest.approx(shown["usd"][accounting], abs=1e-9)
    assert bill(records, spec, table) == found


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_a_ledger_of_one_accounting_has_the_same_costs(accounting):
    every, one = Ledger(job(), PLAIN), Ledger(job(), PLAIN, [accounting])
    for number in range(3):
        record = small_round(number)
        assert one.add(record).charges == {accounting: every.add(record).charges[accounting]}
    assert one.picos(accounting) == every.picos(accounting)
