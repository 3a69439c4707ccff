"""The number of actors at which progress costs least, against numbers worked out by hand."""

import json
from dataclasses import replace

import pytest

from marless.core.group import Group
from marless.core.settings import FunctionsSpec
from marless.jobs import prices as price_tables
from marless.jobs.record import GroupRecord, InvocationRecord
from marless.jobs.scaling.auto import SCALING, AutoConfig
from marless.jobs.scaling.round_costs import FunctionRates, RoundSums
from tests.unit.jobs.scaling.rounds import context, groups, record

WORK = FunctionRates(actor_work=1.0, actor_ready=0.0, learner_work=1.0, learner_ready=0.0)
FUNCTIONS = FunctionsSpec()


def make(*policies, most=64, rates=WORK, **settings):
    changes = {key: settings.pop(key) for key in ("drawn", "samples", "learned_at_once") if key in settings}
    return SCALING.make(AutoConfig(**settings), context(*policies, most=most, rates=rates, **changes))


def invocation(function, index, seconds, name=""):
    return InvocationRecord(
        id=f"{function}{index}{name}",
        function=function,
        name=name,
        index=index,
        attempt=0,
        worker="w",
        queued_s=0.0,
        start_s=0.0,
        end_s=seconds,
        vcpu_s=seconds,
        memory_bytes=0,
        cold=False,
    )


def played(policy, of, rounds, *, actor_s=1.0, fixed_s=0.0, each_s=0.0, trace=0.0, signal=1.0, steps=100):
    """A job whose actors work `actor_s` each, and whose learner fixed + each · n seconds."""
    history, env_steps, numbers = [], 0, []
    for number in range(rounds):
        decision = policy.decide(history, of)
        numbers.append(decision.actors)
        env_steps += steps * decision.actors
        named = tuple("+".join(group.agents) for group in of)
        learner_s = fixed_s + each_s * decision.actors
        made = record(
            number,
            *named,
            metrics={group.policy: {"gradient_trace": trace, "gradient_signal": signal} for group in of},
            actors=decision.actors,
            env_steps=env_steps,
            decided=("auto", decision),
        )
        work = [invocation("actor", index, actor_s) for index in range(decision.actors)]
        inside = [invocation("policy", 0, learner_s, of[0].policy)]
        invocations = (*work, invocation("learner", 0, learner_s), *inside)
        history.append(replace(made, invocations=invocations))
    return history, numbers


def test_the_square_root_of_noise_times_fixed_over_each():
    """B = 4,000 samples are K = 40 actors of 100; c(n) = 9 + 2.5 n seconds: n = √(40 · 9 / 2.5) = 12."""
    policy = make("a")
    history, _ = played(policy, groups("a"), 9, fixed_s=9, each_s=1.5, trace=4000)
    decision = policy.decide(history, groups("a"))
    assert decision.inputs["decided"] == decision.actors == 12
    assert decision.inputs["noise_actors"] == pytest.approx(40)
    assert decision.inputs["usd_fixed"] == pytest.approx(9)
    assert "noise is worth 40 actors" in decision.reason


def test_trials_first_and_every_eighth_round():
    policy = make("a")
    _, numbers = played(policy, groups("a"), 26, fixed_s=9, each_s=1.5, trace=4000)
    assert numbers[:3] == [8, 16, 4]  # 8 = √(1 · 64)
    assert [numbers[8], numbers[16], numbers[24]] == [17, 9, 17]  # 12 · √2 and 12 / √2, rounded up
    assert set(numbers[9:16] + numbers[17:24]) == {12}


def test_a_round_has_at_least_a_fifteenth_of_the_noise():
    """Nothing is fixed, so that few actors would cost least; K = 75 and 5 of them are a fifteenth."""
    _, numbers = played(make("a"), groups("a"), 16, each_s=1.5, trace=7500)
    assert numbers[-1] == 5


def test_a_shared_policy_has_the_samples_of_all_its_agents():
    """K = 4,000 / (100 · 4); with as many samples as one agent has it is 4,000 / 100 again."""
    for samples, expected in (("pooled", 10), ("drawn", 40)):
        policy = make("a+b+c+d", samples=samples)
        history, _ = played(policy, groups("a+b+c+d"), 9, fixed_s=9, each_s=1.5, trace=4000)
        decision = policy.decide(history, groups("a+b+c+d"))
        assert decision.inputs["noise_actors"] == pytest.approx(expected)


def test_what_is_kept_ready_is_paid_for_the_whole_round():
    """A round lasts 1 second of actors, and 9 + 1.5 n of its one learner: (n · 1 + 2) · (10 + 1.5 n) dollars."""
    rates = FunctionRates(actor_work=0.0, actor_ready=1.0, learner_work=0.0, learner_ready=2.0)
    history, _ = played(make("a", rates=rates), groups("a"), 9, fixed_s=9, each_s=1.5, trace=4000)
    inputs = make("a", rates=rates).decide(history, groups("a")).inputs
    n = inputs["decided"]
    assert inputs["usd_fixed"] == pytest.approx(20.0)
    assert inputs["usd"][str(n)] == pytest.approx((n + 2) * (10 + 1.5 * n))
    costs = {m: (1 + 40 / m) * (m + 2) * (10 + 1.5 * m) for m in range(3, 65)}
    assert costs[n] <= min(costs.values()) / 0.98


def test_no_jumps():
    """Noise that is suddenly a hundred times as large doubles the actors, round by round."""
    policy = make("a")
    history, _ = played(policy, groups("a"), 12, fixed_s=9, each_s=1.5, trace=4000)
    loud = [replace(history[-1], metrics={"a": {"gradient_trace": 4e7, "gradient_signal": 1.0}})]
    assert policy.decide([*history[:-1], *loud], groups("a")).inputs["decided"] == 24


def test_a_change_that_saves_hardly_anything_is_not_made():
    """From 12 to 13 and back costs the same within a thousandth."""
    policy = make("a")
    history, _ = played(policy, groups("a"), 12, fixed_s=9, each_s=1.5, trace=4000)
    louder = replace(history[-1], metrics={"a": {"gradient_trace": 8000.0, "gradient_signal": 1.0}})
    decision = policy.decide([*history[:-1], louder], groups("a"))
    assert decision.actors == 12
    assert decision.reason.endswith("but hardly less than with 12: 12 actors")


def test_other_groups_begin_anew_with_as_many_actors():
    policy = make("a+b")
    history, _ = played(policy, groups("a+b"), 12, fixed_s=9, each_s=1.5, trace=8000)
    decision = policy.decide(history, groups("a", "b"))
    assert (decision.actors, decision.inputs["decided"]) == (12, 12)
    assert decision.reason == "too little is known of gradients and costs: 12 actors"


def test_actors_stay_until_the_gradients_of_new_policies_are_measured():
    policy = make("a+b")
    history, _ = played(policy, groups("a+b"), 12, fixed_s=9, each_s=1.5, trace=8000)
    team = (Group("team", ("a", "b")),)
    named = (GroupRecord(policy="team", agents=("a", "b"), version=1),)
    history = [
        replace(
            each,
            groups=named,
            metrics={"team": each.metrics["a"]},
            decisions=tuple(_renamed(decision) for decision in each.decisions),
        )
        for each in history
    ]
    assert policy.decide(history, team).inputs["evidence"]["team"]["count"] == 12
    for number in range(12, 40):
        decision = policy.decide(history, groups("a", "b"))
        if number < 34:
            assert decision.inputs["decided"] == 12
            assert decision.reason.startswith("too little is known")
        # Gradients are measured from round 31 on. What a round costs is known from those with these groups.
        metrics = {name: {"gradient_trace": 8000.0, "gradient_signal": 1.0} for name in "ab"} if number > 30 else {}
        made = record(number, "a", "b", metrics=metrics, actors=12, env_steps=9000 + number, decided=("auto", decision))
        history.append(replace(made, invocations=history[5].invocations))
    assert decision.reason.startswith("noise is worth")
    assert history[13].decisions[0].inputs["sums"]["rounds"] == 1


def _renamed(decision):
    """A decision on the policy "team" instead of "a"."""
    return replace(decision, inputs=json.loads(json.dumps(decision.inputs).replace('"a":', '"team":')))


def test_all_actors_where_gradients_are_not_measured_or_batches_do_not_depend_on_actors():
    policy = make("a")
    history, _ = played(policy, groups("a"), 8)
    unmeasured = [replace(each, metrics={}) for each in history]
    for number, each in enumerate(unmeasured):
        decided = policy.decide(unmeasured[:number], groups("a"))
        unmeasured[number] = replace(each, decisions=record(0, "a", decided=("auto", decided)).decisions)
    decision = policy.decide(unmeasured, groups("a"))
    assert (decision.actors, decision.inputs["decided"]) == (64, 64)
    for fixed in ({"drawn": True}, {"learned_at_once": 4}):
        assert make("a", **fixed).decide([], groups("a")).actors == 64


def test_what_costs_nothing_is_all_taken():
    free = FunctionRates(actor_work=0.0, actor_ready=0.0, learner_work=0.0, learner_ready=0.0)
    _, numbers = played(make("a", rates=free), groups("a"), 17, fixed_s=9, each_s=1.5, trace=4000)
    assert set(numbers[3:]) == {64}  # without trials, from which there is nothing to learn


def test_a_line_is_found_and_read_back():
    sums = RoundSums()
    for number, actors in enumerate((4, 8, 16)):
        inside = (invocation("learner", 0, 3 + 0.5 * actors), invocation("policy", 0, 3 + 0.5 * actors, "a"))
        work = tuple(invocation("actor", index, 2.0) for index in range(actors))
        sums = sums.after(
            replace(record(number, "a", actors=actors), invocations=(*work, *inside)), FUNCTIONS, "duration"
        )
    cost = sums.cost(WORK)
    assert (cost.learner.fixed, cost.learner.each) == (pytest.approx(3.0), pytest.approx(0.5))
    assert cost.actor.each == pytest.approx(2.0)
    assert cost.usd(10) == pytest.approx(20 + 8)
    assert RoundSums.read(json.loads(json.dumps(sums.to_json()))) == sums


@pytest.mark.parametrize(
    ("seconds", "fixed", "each"),
    [
        ((4.0, 4.0), 0.0, None),  # equally many actors: in proportion
        ((8.0, 6.0), 7.0, 0.0),  # less with more actors: constant
        ((1.0, 4.0), 0.0, (1 * 4 + 4 * 8) / (16 + 64)),  # less than nothing without actors: through 0
    ],
)
def test_neither_part_of_a_line_is_negative(seconds, fixed, each):
    numbers = (8, 8) if each is None else (4, 8)
    sums = RoundSums(
        rounds=2,
        n=sum(numbers),
        nn=sum(n * n for n in numbers),
        learner_s=sum(seconds),
        learner_s_n=sum(n * s for n, s in zip(numbers, seconds, strict=True)),
    )
    line = sums.cost(WORK).learner
    assert (line.fixed, line.each) == (pytest.approx(fixed), pytest.approx(0.5 if each is None else each))


def test_rates_of_each_accounting():
    """Lambda's public prices a GB-second; an actor of one vCPU takes 1,769 MB of a Lambda."""
    prices = price_tables.load()
    paper = FunctionRates.of(FUNCTIONS, prices, "paper", "duration")
    assert (paper.actor_work, paper.actor_ready) == (
        pytest.approx(0.0000166667 * FUNCTIONS.actor.memory_mb / 1024),
        0.0,
    )
    billed = FunctionRates.of(FUNCTIONS, prices, "billed", "duration")
    assert billed.actor_work == pytest.approx(0.0000097222 * 1769 / 1024)
    assert billed.actor_ready == pytest.approx(0.0000041667 * 1769 / 1024)
    unready = FunctionRates.of(FUNCTIONS.model_copy(update={"prewarm": False}), prices, "billed", "duration")
    assert (unready.actor_work, unready.actor_ready) == (pytest.approx(0.0000166667 * 1769 / 1024), 0.0)
    fargate = FunctionRates.of(FUNCTIONS, price_tables.merged({"backend": "fargate"}), "billed", "duration")
    assert fargate.actor_ready == pytest.approx((0.04048 + 0.004445 * FUNCTIONS.actor.memory_mb / 1024) / 3600)
    assert (fargate.actor_work, fargate.learner_work) == (0.0, 0.0)
    machine = FunctionRates.of(FUNCTIONS, prices, "serverful", "duration")
    assert machine.actor_ready == pytest.approx(0.612 / 16 / 3600)
