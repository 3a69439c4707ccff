"""What every scaling policy promises."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.jobs.record import RoundRecord
from marless.jobs.scaling import contract
from marless.jobs.scaling.base import SCALING_POLICIES, ScalingConfig, ScalingContext, ScalingDecision
from marless.jobs.scaling.placebo import made_scaling
from tests.unit.jobs.scaling.rounds import groups, record

POLICIES: dict[str, ScalingConfig] = {
    name: SCALING_POLICIES.find(name.split()[0]).config_type.model_validate({"name": name.split()[0]} | settings)
    for name, settings in {
        "fixed": {},
        "max": {},
        "given": {"actors": (1,)},
        "given for some rounds": {"actors": (3, 1, 7)},
        "adapt": {"goal": -21},
        "adapt towards a positive goal": {"goal": 10, "min_actors": 3},
        "nitro": {},
        "nitro with a placebo": {"placebo": {"median": 2.0, "deviation": 0.5}},
        "nitro as coded": {"variant": "coded"},
        "nitro as coded, few": {"variant": "coded", "min_actors": 2, "window": 2},
        "gns": {},
        "gns with a placebo": {"placebo": {"median": 200.0, "deviation": 1.0}},
        "gns proportional": {"rule": "proportional"},
        "gns samples": {"rule": "samples", "min_actors": 4},
        "marless": {},
        "marless with a placebo": {"placebo": {"median": 1.0, "deviation": 0.3}},
        "marless by logarithms": {"compare": "logarithm", "beta": 0.2},
        "echo": {},
        "echo with few": {"min_actors": 4, "window": 2, "staleness": 3},
        "variance": {},
        "variance by cost": {"time_weight": 0.1, "window": 3, "cut": 1.2, "min_actors": 2},
        "auto": {},
        "auto with a placebo": {"min_actors": 2, "placebo": {"median": 1.0, "deviation": 0.3}},
        "marless as in the figure": {"threshold": "figure", "window": 4, "min_actors": 1},
    }.items()
}
LOOKS_BACK = {
    "fixed": 0,
    "max": 0,
    "given": 0,
    "adapt": 5,
    "nitro": 6,
    "gns": 50,
    "marless": 10,
    "echo": 9,
    "variance": 10,
    "auto": 1,
}


def made(config: ScalingConfig, most: int = 50):
    context = ScalingContext(max_actors=most, agents=2, groups=groups("a", "b"), rounds=None)
    return made_scaling(SCALING_POLICIES.find(config.name), config, context)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("most", [50, 1, 7])
def test_keeps_the_contract(name, most):
    config = POLICIES[name]
    needed = max(getattr(config, "min_actors", None) or 1, *getattr(config, "actors", (1,)), 1)
    if needed <= most:
        contract.check_scaling(SCALING_POLICIES.find(config.name), config, max_actors=most)


VALUE = st.one_of(st.none(), st.floats(0.01, 100), st.floats())
ROUND = st.tuples(VALUE, VALUE, st.one_of(st.none(), st.floats(-50, 50)), st.booleans())


def told(policy, config, drawn) -> list[RoundRecord]:
    """The job as it would have been decided."""
    history: list[RoundRecord] = []
    for number, (first, second, mean, together) in enumerate(drawn):
        policies = ("a+b",) if together else ("a", "b")
        values = [{} if each is None else {"curvature": each, "noise_scale": each} for each in (first, second)]
        decision = policy.decide(history, groups(*policies))
        steps = history[-1].env_steps if history else 0
        history.append(
            record(
                number,
                *policies,
                metrics=dict(zip("ab", values, strict=True)),
                mean=mean,
                actors=decision.actors,
                env_steps=steps + 100 * decision.actors,
                decided=(config.name, decision),
            )
        )
    return history


@given(name=st.sampled_from(sorted(POLICIES)), drawn=st.lists(ROUND, min_size=1, max_size=14), cut=st.integers(0, 12))
def test_a_history_that_holds_the_window_decides_as_the_whole_does(name, drawn, cut):
    config = POLICIES[name]
    policy = made(config)
    history = told(policy, config, drawn)
    needed = getattr(config, "window", 0) + 1  # one more round, to tell how many env steps the oldest had
    if config.name == "adapt":  # its window is of returns, and rounds without one do not count
        returned = [number for number, each in enumerate(history) if each.returns]
        needed = len(history) - returned[-min(config.window, len(returned))] if returned else len(history)
    shorter = history[max(min(cut, len(history) - needed), 0) :]
    for now in (groups("a", "b"), groups("a+b")):
        assert made(config).decide(deque(shorter), now) == policy.decide(history, now)


class Counted(deque):
    """Counts the records that are looked at from its end."""

    looked = 0

    def __reversed__(self):
        for each in super().__reversed__():
            self.looked += 1
            yield each


@pytest.mark.parametrize("name", POLICIES)
def test_no_more_is_looked_at_than_the_window(name):
    config = POLICIES[name]
    history = Counted(told(made(config), config, [(2.0 + n % 7, 3.0 + n % 5, -30.0, False) for n in range(120)]))
    made(config).decide(history, groups("a", "b"))
    assert history.looked <= LOOKS_BACK[config.name] + 1


class Forgetful:
    """A policy with one flaw."""

    config_type = ScalingConfig

    def __init__(self, decide):
        self._decide, self.calls = decide, 0

    def signals(self, config):
        return frozenset()

    def make(self, config, context):
        return self

    def decide(self, history, groups):
        self.calls += 1
        return self._decide(self, history)


FLAWS = {
    "51 actors; this job's rounds get 1 to 50": lambda self, history: ScalingDecision(51, "r"),
    "0 actors; this job's rounds get 1 to 50": lambda self, history: ScalingDecision(0, "r"),
    "2.0 actors; give a whole number": lambda self, history: ScalingDecision(2.0, "r"),
    "the reason is no sentence on one line": lambda self, history: ScalingDecision(2, "two\nlines"),
    "the inputs are not JSON": lambda self, history: ScalingDecision(2, "r", {"x": float("nan")}),
    "asked again, it decides otherwise": lambda self, history: ScalingDecision(1 + self.calls % 9, "r"),
    "decides otherwise after a restart": lambda self, history: ScalingDecision(
        2, "r", {"x": len(history) if isinstance(history, list) else 0}
    ),
    "changed the history that it was given": lambda self, history: (
        history.clear() or ScalingDecision(2, "r")
        if isinstance(history, deque) and history
        else ScalingDecision(2, "r")
    ),
}


@pytest.mark.parametrize("promise", FLAWS)
def test_the_contract_names_a_broken_promise(promise):
    with pytest.raises(AssertionError, match=rf"round \d+: .*{promise}"):
        contract.check_scaling(Forgetful(FLAWS[promise]), ScalingConfig(name="flawed"))
