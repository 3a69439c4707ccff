"""When gradients are aggregated, and with what weights: by hand, and in any order of events."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.learning.aggregation import config as configs
from marless.learning.aggregation.queue import (
    GradientQueue,
    Queue,
    QueuedGradient,
    authors_bound,
    printed_bound,
    weight,
)


def aggregator(rule: str, **settings: object) -> GradientQueue:
    return GradientQueue(configs.RULES[rule](**settings))


def gradient(number: int, clock: int, scope: str = "team") -> QueuedGradient:
    return QueuedGradient(id=f"g{number}", learner=f"learner/{number}", scope=scope, clock=clock, env_steps=256)


def fed(made: GradientQueue, queue: Queue, *arrivals: tuple[int, Sequence[int]]) -> tuple[Queue, list[object]]:
    """Let gradients of these clocks arrive, each with the clocks of those under way; what became of each."""
    found: list[object] = []
    for number, (clock, under_way) in enumerate(arrivals):
        outcome = made.arrive(queue, gradient(100 * queue.clock + number, clock), under_way)
        queue = outcome.queue
        found.append(outcome.aggregation and (len(outcome.aggregation.gradients), outcome.aggregation.because))
    return queue, found


def test_weights_by_hand():
    # 8^(−1/3) = 1/2; 27^(−1/3) = 1/3; 16^(−1/2) = 1/4
    assert weight(0, "root", 3) == weight(1, "root", 3) == 1
    assert weight(8, "root", 3) == pytest.approx(1 / 2)
    assert weight(27, "root", 3) == pytest.approx(1 / 3)
    assert weight(16, "root", 2) == pytest.approx(1 / 4)
    assert (weight(0, "reciprocal", 3), weight(4, "reciprocal", 3), weight(9, "equal", 3)) == (1, 0.25, 1)


def test_bounds_by_hand():
    # δ_max = 8, d = 1/2: 4, 2, 1, 1/2 as printed; the code: int(8) + 1 = 9 → 8, int(4) + 1 = 5, 3, 2, int(0.5) + 1 = 1
    assert [printed_bound(8, 0.5, k) for k in (1, 2, 3, 4)] == [4, 2, 1, 0.5]
    assert [authors_bound(8, 0.5, k) for k in (1, 2, 3, 4, 5)] == [8, 5, 3, 2, 1]
    assert authors_bound(1, 0.9, 7) == 1
    assert [printed_bound(8, 1, k) for k in (1, 50)] == [8, 8]
    assert printed_bound(8, 0, 1) == 0


def test_the_first_round_is_unlimited_and_records_the_greatest_staleness():
    made = aggregator("stellaris", first_round=2, decay=0.5)
    queue, found = fed(made, Queue(scope="team"), (0, [0, 0, 0]), (0, [0, 0]))
    assert found == [(1, "rule"), (1, "rule")]
    assert (queue.record, queue.first_round, queue.clock) == (1, 2, 2)
    # fresh gradients do not end it, however many
    queue, found = fed(aggregator("stellaris", first_round=1), Queue(scope="team"), *((i, [0] * 9) for i in range(5)))
    assert (queue.record, queue.first_round) == (0, None)


def after_first(made: GradientQueue, record: float, clock: int = 10) -> Queue:
    """A queue whose first round is over."""
    assert isinstance(made.config, configs.StellarisRule)
    return Queue(scope="team", clock=clock, record=record, first_round=1, aggregations=1)


def test_gradients_wait_until_their_mean_staleness_is_within_the_bound():
    made = aggregator("stellaris", decay=0.5)  # β_1 = 4 · 0.5 = 2
    busy = [10] * 9
    queue, found = fed(made, after_first(made, 4), (6, busy), (9, busy), (10, busy))  # means 4, 2.5, 5/3
    assert found == [None, None, (3, "rule")]
    assert made.bound(queue) == 1  # β_2
    assert queue.counts.applied == 3


def test_each_gradient_of_an_aggregation_has_its_weight():
    made = aggregator("stellaris", decay=1)
    queue = after_first(made, 5)
    queue = made.arrive(queue, gradient(0, 2), [0] * 9).queue  # δ = 8
    outcome = made.arrive(queue, gradient(1, 10), [0] * 9)
    assert outcome.aggregation is not None
    assert outcome.aggregation.weights == pytest.approx((0.5, 1.0))
    assert outcome.aggregation.mean_staleness == 4
    assert (outcome.aggregation.clock, outcome.queue.clock, outcome.aggregation.bound) == (10, 11, 5)


def test_the_escape_ends_a_wait_that_the_printed_rule_does_not():
    made = aggregator("stellaris", decay=0)  # β = 0: one stale gradient, and the mean is above it for ever
    _, found = fed(made, after_first(made, 4), (9, [10, 10, 10]), (10, [10, 10]))
    assert found == [None, (2, "escape")]
    printed = aggregator("stellaris", decay=1e-6, escape=False, capacity=5)
    _, found = fed(printed, after_first(printed, 4), *((9, []) for _ in range(5)))
    assert found == [None, None, None, None, (5, "full")]


def test_a_learner_that_ends_without_a_gradient_may_end_a_wait():
    made = aggregator("stellaris", decay=0)
    queue, _ = fed(made, after_first(made, 4), (9, [10, 10]))
    outcome = made.ended(queue, [10])
    assert outcome.aggregation is not None and outcome.aggregation.because == "escape"
    assert made.ended(outcome.queue, []).aggregation is None


def test_the_bound_of_the_authors_code():
    made = aggregator("stellaris", bound="authors", decay=0.5)
    queue = Queue(scope="team", clock=10)
    queue, found = fed(made, queue, (10, [0] * 9))
    assert (found, queue.record, queue.first_round) == ([(1, "rule")], 0, None)
    queue, found = fed(made, queue, (4, [0] * 9))  # staleness 7: δ_max = 8
    assert (found, queue.record, made.bound(queue)) == ([(1, "rule")], 8, 8)
    queue, _ = fed(made, queue, (12, [0] * 9))
    assert made.bound(queue) == 5


def test_decay_every_keeps_a_bound_for_several_aggregations():
    made = aggregator("stellaris", decay=0.5, decay_every=2)
    queue, bounds = after_first(made, 8), []
    for _ in range(4):
        bounds.append(made.bound(queue))
        queue = made.release(made.arrive(queue, gradient(queue.clock, queue.clock), [0] * 9).queue).queue
    assert bounds == [4, 4, 2, 2]


def test_softsync_takes_a_fixed_number():
    _, found = fed(aggregator("softsync", gradients=3), Queue(scope="team"), *((0, []) for _ in range(6)))
    assert found == [None, None, (3, "rule"), None, None, (3, "rule")]


def test_ssp_waits_for_the_learner_that_would_get_too_stale():
    made = aggregator("ssp", staleness=1)
    # the version after 10 is 11: a learner of 10 is then 1 stale, one of 9 would be 2
    queue, found = fed(made, Queue(scope="team", clock=10), (10, [10, 9]), (9, [10]))
    assert (found, queue.clock) == ([None, (2, "rule")], 11)
    _, found = fed(aggregator("ssp", staleness=0), Queue(scope="team"), (0, [0, 0]), (0, [0]), (0, []))
    assert found == [None, None, (3, "rule")]


def test_async_takes_each_and_sync_all():
    _, found = fed(aggregator("async"), Queue(scope="team"), (0, [0, 0]), (0, [0]))
    assert found == [(1, "rule"), (1, "rule")]
    _, found = fed(aggregator("sync"), Queue(scope="team"), (0, [0, 0]), (0, [0]), (0, []))
    assert found == [None, None, (3, "rule")]


@pytest.mark.parametrize(
    ("arrived", "why"),
    [
        (gradient(1, 10), "repeated"),
        (gradient(2, 11), "from_future"),
        (gradient(3, 7), "too_stale"),
        (gradient(4, 10, "other"), "other_scope"),
    ],
)
def test_refusals_are_counted_and_change_nothing_else(arrived, why):
    made = aggregator("sync", max_staleness=2)
    queue = made.arrive(Queue(scope="team", clock=10), gradient(1, 10), [10]).queue
    outcome = made.arrive(queue, arrived, [10])
    assert outcome.refused == why
    assert getattr(outcome.queue.counts, why) == 1
    assert (outcome.queue.waiting, outcome.queue.clock) == (queue.waiting, queue.clock)


def test_a_lost_gradient_is_counted_and_taken_if_it_comes_again():
    made = aggregator("sync")
    queue = made.arrive(Queue(scope="team"), gradient(1, 0), [0]).queue
    queue = made.discard(queue, {"g1", "unknown"})
    assert (queue.waiting, queue.counts.lost) == ((), 1)
    assert len(made.arrive(queue, gradient(1, 0), [0]).queue.waiting) == 1


RULES = st.sampled_from(
    [
        aggregator("stellaris", decay=0.5, first_round=2, capacity=6, max_staleness=4),
        aggregator("stellaris", decay=0, first_round=1, capacity=6, max_staleness=4),
        aggregator("stellaris", decay=0.9, bound="authors", capacity=3, max_staleness=9),
        aggregator("softsync", gradients=3, capacity=4, max_staleness=3),
        aggregator("ssp", staleness=2, capacity=8, max_staleness=4),
        aggregator("async", max_staleness=2),
        aggregator("sync", capacity=5, max_staleness=1),
    ]
)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "arrive", "again", "end", "lose"]), st.integers(0, 9)), max_size=60
)


class Learners:
    """Learners that start with the newest version, and answer once, again, or never."""

    def __init__(self, made: GradientQueue) -> None:
        self.made, self.queue = made, Queue(scope="team")
        self.under_way: list[QueuedGradient] = []
        self.sent: list[QueuedGradient] = []
        self.applied: list[str] = []
        self.started = 0

    @property
    def clocks(self) -> list[int]:
        return [each.clock for each in self.under_way]

    def event(self, what: str, which: int) -> None:
        if what == "start":
            self.under_way.append(gradient(self.started, self.queue.clock))
            self.started += 1
            return
        if what == "lose":
            waiting = self.queue.waiting
            self.queue = self.made.discard(self.queue, {waiting[which % len(waiting)].id} if waiting else set())
            return
        if what == "again" and self.sent:
            outcome = self.made.arrive(self.queue, self.sent[which % len(self.sent)], self.clocks)
        elif what in ("arrive", "end") and self.under_way:
            one = self.under_way.pop(which % len(self.under_way))
            if what == "arrive":
                self.sent.append(one)
                outcome = self.made.arrive(self.queue, one, self.clocks)
            else:
                outcome = self.made.ended(self.queue, self.clocks)
        else:
            return
        self.queue = outcome.queue
        if outcome.aggregation is not None:
            self.applied += [each.gradient.id for each in outcome.aggregation.gradients]


@given(RULES, EVENTS)
def test_whatever_happens_the_queue_is_bounded_and_nothing_is_applied_twice(made, events):
    learners, config = Learners(made), made.config
    for what, which in events:
        clock = learners.queue.clock
        learners.event(what, which)
        queue = learners.queue
        assert len(queue.waiting) < config.capacity
        assert len(queue.done) <= config.capacity * config.max_staleness
        assert clock <= queue.clock <= clock + 1
        assert len(set(learners.applied)) == len(learners.applied) == queue.counts.applied
        if isinstance(config, configs.StellarisRule) and what in ("arrive", "end"):
            # so something is still to come whenever something waits: it never stalls
            assert not queue.waiting or len(queue.waiting) < len(learners.under_way)


@given(RULES, EVENTS)
def test_equal_events_give_equal_queues(made, events):
    one, other = Learners(made), Learners(made)
    for what, which in events:
        one.event(what, which)
    for what, which in events:
        other.event(what, which)
    assert (one.queue, one.applied) == (other.queue, other.applied)


@given(st.permutations([10, 9, 9, 6, 3, 10, 2]), st.sampled_from(["root", "reciprocal", "equal"]))
def test_weights_do_not_depend_on_the_order_of_arrival(clocks, weights):
    made = aggregator("sync", weights=weights)
    queue = Queue(scope="team", clock=10)
    for number, clock in enumerate(clocks):
        outcome = made.arrive(queue, gradient(number, clock), [0] if number < 6 else [])
        queue = outcome.queue
    assert outcome.aggregation is not None
    for each in outcome.aggregation.gradients:
        assert each.weight == weight(10 - each.gradient.clock, weights, 3)
