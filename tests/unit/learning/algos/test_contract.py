"""Every algorithm that we have keeps the contract, and the contract notices what breaks it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.core.group import FunctionNode
from marless.core.state import PolicyState
from marless.learning.algos.contract import check_algorithm, fingerprint
from marless.learning.algos.ppo import losses
from marless.learning.algos.ppo.algorithms import IPPO, IPPOConfig
from marless.learning.algos.ppo.functions import PolicyFunction
from marless.learning.algos.ppo.learner import PPOLearner
from marless.learning.algos.registry import ALGORITHMS, algorithm
from marless.learning.algos.synthetic_job import CASES
from marless.learning.envs.base import Box
from marless.learning.envs.contract import check_env
from marless.learning.envs.synthetic import SyntheticEnv

EVERYTHING = tuple(CASES)
DISCRETE = ("discrete", "discrete with memory", "in turns")
WITHOUT_MEMORY = ("discrete", "in turns", "continuous")
PPO = {"epochs": 1, "minibatches": 2}
OFF_POLICY = {"updates": 2, "batch": 16, "warmup": 0, "replay": {"capacity": 100}}
"""Two rounds fill this replay: later ones drop what is older."""
PUBLISHED = OFF_POLICY | {"random_steps": 0}
PRIORITISED = {"capacity": 200, "draw": "prioritised", "priorities_every": 2}
OTHERWISE = {"n_step": 3, "target_every": 2, "optimizer": "rmsprop", "replay": PRIORITISED}
EPISODES = {"updates": 2, "batch": 8, "warmup": 0, "replay": {"capacity": 100, "unit": "episodes"}}
TRIALS = {
    "ippo": (PPO, {"minibatches": 1}, EVERYTHING),
    "ippo, corrected": (
        PPO | {"advantage": "vtrace", "truncation": "least", "truncation_rho": 2.0},
        {"minibatches": 1},
        EVERYTHING,
    ),
    "ippo, in the box": (
        PPO | {"distribution": "beta", "advantage_normalisation": "minibatch"},
        {"minibatches": 1},
        ("continuous", "continuous with memory"),
    ),
    "ippo, stopping early": (PPO | {"epochs": 3, "target_kl": 0.01, "lr": 0.01}, None, EVERYTHING),
    "ippo, one net": (PPO | {"torso": "shared", "popart": True}, {"minibatches": 1}, WITHOUT_MEMORY),
    "impact, in the box": (
        PPO | {"epochs": 3, "batches": 2, "distribution": "squashed_normal", "initial_std": 0.5},
        {"epochs": 1, "batches": 1, "minibatches": 1},
        ("continuous", "continuous with memory"),
    ),
    "impact": (PPO | {"epochs": 3, "batches": 2}, {"epochs": 1, "batches": 1, "minibatches": 1}, EVERYTHING),
    "mappo": (PPO, {"minibatches": 1}, EVERYTHING),
    "mappo, per agent": (PPO | {"critic": "per_agent"}, {"minibatches": 1}, EVERYTHING),
    "iddpg": (OFF_POLICY, {"updates": 1}, WITHOUT_MEMORY),
    "iddpg, twin": (
        OFF_POLICY | OTHERWISE | {"twin": True, "policy_every": 2},
        {"updates": 1, "policy_every": 1},
        WITHOUT_MEMORY,
    ),
    "maddpg": (OFF_POLICY, {"updates": 1}, WITHOUT_MEMORY),
    "maddpg, twin": (OFF_POLICY | OTHERWISE | {"twin": True}, {"updates": 1}, WITHOUT_MEMORY),
    "ddpg": (PUBLISHED, {"updates": 1}, WITHOUT_MEMORY),
    "td3": (PUBLISHED, {"updates": 1, "policy_every": 1}, WITHOUT_MEMORY),
    "matd3": (PUBLISHED, {"updates": 1, "policy_every": 1}, WITHOUT_MEMORY),
    "sac": (PUBLISHED, {"updates": 1}, WITHOUT_MEMORY),
    "sac, of a fixed weight": (PUBLISHED | {"entropy": 0.2, "twin": False}, {"updates": 1}, WITHOUT_MEMORY),
    "masac": (PUBLISHED | OTHERWISE, {"updates": 1}, WITHOUT_MEMORY),
    "iql": (OFF_POLICY, {"updates": 1}, ("discrete", "in turns")),
    "iql, remembering": (EPISODES | {"last_action": True}, {"updates": 1}, DISCRETE),
    "vdn": (OFF_POLICY | OTHERWISE | {"dueling": True, "double": False}, {"updates": 1}, ("discrete", "in turns")),
    "vdn, remembering": (EPISODES | {"huber": 1.0}, {"updates": 1}, DISCRETE),
    "qmix": (OFF_POLICY, {"updates": 1}, ("discrete", "in turns")),
    "qmix, remembering": (EPISODES | {"td_lambda": 0.8}, {"updates": 1}, DISCRETE),
    "pqn": (PPO, {"minibatches": 1}, DISCRETE),
    "pqn, of the team's reward": (
        PPO
        | {"team_reward": "sum", "credit_after_death": True, "optimizer": "adam", "huber": 1.0}
        | {"reward_normalisation": False},
        {"minibatches": 1},
        DISCRETE,
    ),
    "pqn_vdn": (PPO, {"minibatches": 1}, DISCRETE),
}
"""Settings, those with which an update is one gradient step, and the made-up jobs that the algorithm is meant for."""

QUICK = {
    "ippo": ("discrete", "in turns", "continuous with memory"),
    "ippo, corrected": ("continuous", "discrete with memory"),
    "ippo, in the box": ("continuous with memory",),
    "ippo, stopping early": ("discrete", "continuous with memory"),
    "ippo, one net": ("in turns", "continuous"),
    "impact, in the box": ("continuous",),
    "impact": ("continuous", "discrete with memory"),
    "mappo": ("discrete with memory", "continuous"),
    "mappo, per agent": ("discrete", "continuous with memory"),
    "iddpg": ("discrete", "in turns"),
    "iddpg, twin": ("continuous",),
    "maddpg": ("continuous",),
    "maddpg, twin": ("discrete",),
    "ddpg": ("continuous",),
    "td3": ("continuous",),
    "matd3": ("in turns",),
    "sac": ("continuous", "discrete"),
    "sac, of a fixed weight": ("continuous",),
    "masac": ("continuous", "in turns"),
    "iql, remembering": ("discrete with memory",),
    "vdn, remembering": ("discrete with memory",),
    "qmix, remembering": ("discrete with memory", "in turns"),
}
"""Of trials that are meant for several jobs: those that tell most of what the others would."""
JOBS = [
    pytest.param(trial, case, marks=() if case in QUICK.get(trial, cases) else pytest.mark.slow)
    for trial, (*_, cases) in TRIALS.items()
    for case in cases
]
ONE_A_FAMILY = (
    ("ippo", "discrete with memory"),
    ("maddpg, twin", "continuous"),
    ("qmix, remembering", "discrete with memory"),
)


def configured(trial):
    kind = algorithm(name := trial.partition(",")[0])
    return kind, kind.config_type.model_validate({"name": name, **TRIALS[trial][0]})


def only(case):
    """Tries algorithms on one of the made-up jobs."""
    return mock.patch("marless.learning.algos.contract.CASES", {case: CASES[case]})


@pytest.mark.parametrize(("trial", "case"), JOBS)
def test_algorithm_keeps_the_contract(trial, case):
    with only(case):
        assert check_algorithm(*configured(trial), one_step=TRIALS[trial][1]) == (case,)


@pytest.mark.parametrize("trial", TRIALS)
def test_algorithm_takes_the_jobs_that_it_is_meant_for(trial):
    kind, config = configured(trial)
    refused = set()
    for case, job in CASES.items():
        try:
            kind.check(config, job.setting)
        except SpecError:
            refused.add(case)
    assert refused == CASES.keys() - set(TRIALS[trial][2])


def test_no_algorithm_is_left_out():
    assert {trial.partition(",")[0] for trial in TRIALS} == ALGORITHMS.modules.keys()


def fingerprints():
    found = {}
    for trial, case in ONE_A_FAMILY:
        with only(case):
            found[f"{trial}: {case}"] = fingerprint(*configured(trial))
    return found


def test_another_process_with_other_threads_comes_to_the_same_bits():
    program = """
import json, sys, torch
torch.set_num_threads(1)
torch.set_num_interop_threads(3)
from tests.unit.learning.algos.test_contract import fingerprints
print(json.dumps(fingerprints()))
assert "sympy" not in sys.modules, "torch has imported sympy, which takes a second"
"""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=root, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == fingerprints()


@pytest.mark.parametrize("case", ["discrete", "continuous"])
def test_made_up_environment_keeps_the_contract_of_environments(case):
    check_env(lambda batch: SyntheticEnv(CASES[case].spaces, batch), steps=24)


def test_made_up_environment_refuses_illegal_actions():
    env = SyntheticEnv(CASES["discrete"].spaces, 2)
    illegal = tuple(mask.argmin(axis=2).astype(np.int32) for mask in env.reset(1).masks)
    with pytest.raises(ValueError, match="illegal"):
        env.step(illegal)


class Plain(IPPO):
    """IPPO with a learner that may break a promise, for one of the made-up jobs."""

    def __init__(self, learner=PPOLearner):
        self._learner = learner

    def check(self, config, setting):
        if setting.model.recurrent != "none" or isinstance(setting.spaces.classes[0].action, Box):
            raise SpecError("discrete actions and no memory")

    def learner(self, config, context):
        return self._learner(IPPO(), config, context, critic="own")


class Restless(PPOLearner):
    """Its initial weights depend on how many were made before."""

    made = 0

    def initial(self, name, seed):
        Restless.made += 1
        return super().initial(name, seed + Restless.made)


class Forgetful(PPOLearner):
    """Remembers rounds in itself, not in its states."""

    rounds = 0

    def update(self, inputs):
        self.rounds += 1
        return super().update(replace(inputs, env_steps=0, round=self.rounds))


class Stubborn(PPOLearner):
    """Splits from its own old state where it has one, not from the shared one."""

    known: frozenset[str] = frozenset()

    def update(self, inputs):
        groups = tuple(replace(group, source="") if group.policy in self.known else group for group in inputs.groups)
        self.known |= {group.policy for group in inputs.groups}
        return super().update(replace(inputs, groups=groups))


class Measuring(PPOLearner):
    """Trains otherwise where it is asked to measure."""

    def update(self, inputs):
        return super().update(replace(inputs, seed=inputs.seed + 1) if inputs.measure.noise else inputs)


class Blind(PPOLearner):
    """Measures nothing."""

    def update(self, inputs):
        return super().update(replace(inputs, measure=type(inputs.measure)()))


class Idle(PPOLearner):
    """Bills for a function that nobody declared."""

    def update(self, inputs):
        output = super().update(inputs)
        return replace(output, runs=(*output.runs, replace(output.runs[0], function="mixer")))


class Lossy(PPOLearner):
    """Loses the optimizer's moments on the way."""

    def state(self, name):
        state = super().state(name)
        learning = {key: np.zeros_like(each) if key == "policy.first" else each for key, each in state.learning.items()}
        return PolicyState(state.acting, learning, state.metadata)


class Broken(PPOLearner):
    """Reports what is no number."""

    def update(self, inputs):
        output = super().update(inputs)
        return replace(output, metrics={name: {"loss": float("nan")} for name in output.metrics})


class Interrupted(PPOLearner):
    """Remembers an update that was stopped."""

    stopped = False

    def update(self, inputs):
        inputs = replace(inputs, round=inputs.round + self.stopped)
        self.stopped = True
        output = super().update(inputs)
        self.stopped = False
        return output


class Frozen(PPOLearner):
    """Learns nothing."""

    def update(self, inputs):
        kept = {group.policy: super(Frozen, self).state(group.start) for group in inputs.groups}
        output = super().update(inputs)
        for name, state in kept.items():
            self.load(name, state)
        return output


class WrongSign(PolicyFunction):
    """Climbs its loss."""

    surrogate = replace(PolicyFunction.surrogate, gradient=lambda *arguments: -losses.surrogate_gradient(*arguments))


class Climbing(PPOLearner):
    policy_function = WrongSign


@pytest.mark.parametrize(
    ("learner", "broken"),
    [
        (Climbing, "the gradient of surrogate is not the one that autograd finds"),
        (Restless, "made twice, or loaded and read, scout_0 has another state"),
        (Forgetful, "round 1, scout: after an update that was stopped, scout_0 has another state"),
        (Stubborn, "round 4, walker: by a learner that was started again, walker_0 has another state"),
        (Measuring, "round 1, scout: without measurements, scout_0 has another state"),
        (Interrupted, "round 1, scout: after an update that was stopped, scout_0 has another state"),
        (Blind, "no curvature of scout_0, which was asked for"),
        (Idle, r"functions .*mixer/scout.* ran, \["),
        (Lossy, "round 2, scout: by a learner that was started again, scout_0 has another state"),
        (Broken, "metrics that are no finite numbers"),
        (Frozen, "no policy has moved"),
    ],
)
def test_contract_notices_a_learner_that(learner, broken):
    with pytest.raises(AssertionError, match=broken):
        check_algorithm(Plain(learner), IPPOConfig())


class Undeclared(Plain):
    def functions(self, config, scope, groups, spaces):
        return tuple(node for node in super().functions(config, scope, groups, spaces) if node.function != "critic")


class Doubled(Plain):
    def functions(self, config, scope, groups, spaces):
        return super().functions(config, scope, groups, spaces) * 2


class Early(Plain):
    def functions(self, config, scope, groups, spaces):
        return tuple(reversed(super().functions(config, scope, groups, spaces)))


class Nobody(Plain):
    def functions(self, config, scope, groups, spaces):
        return (*super().functions(config, scope, groups, spaces), FunctionNode("mixer", "nobody"))


class Light(Plain):
    def net_bytes(self, config, scope, groups, spaces, model):
        return {name: size // 3 for name, size in super().net_bytes(config, scope, groups, spaces, model).items()}


class Picky(Plain):
    def check(self, config, setting):
        raise SpecError("nothing will do")


class Wordy(Plain):
    def check(self, config, setting):
        raise SpecError("first\nsecond")


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Undeclared, "functions .* ran"),
        (Doubled, "post_process/scout is declared twice"),
        (Early, "declared later or never"),
        (Nobody, "mixer/nobody serves none of"),
        (Light, "net_bytes of scout_0 is 772, its state has 2356 bytes"),
        (Picky, "refuses everything"),
        (Wordy, "more than one line"),
    ],
)
def test_contract_notices_an_algorithm_that_is(kind, broken):
    with pytest.raises(AssertionError, match=broken):
        check_algorithm(kind(), IPPOConfig())


class Lax(IPPOConfig):
    def __init__(self, **given):
        super().__init__(**{name: value for name, value in given.items() if name != "no_such_setting"})


class Halving(IPPOConfig):
    def __init__(self, **given):
        super().__init__(**{"gamma": 0.9} | given)
        vars(self)["gamma"] /= 2


@pytest.mark.parametrize(
    ("config_type", "broken"), [(Lax, "misspelt"), (Halving, "does not survive"), (int, "the config is no int")]
)
def test_contract_notices_a_config_that_is(config_type, broken):
    kind = Plain()
    kind.config_type = config_type
    with pytest.raises(AssertionError, match=broken):
        check_algorithm(kind, IPPOConfig() if config_type is int else config_type())
