"""Kinds of nets: ours and a reader's keep the contract, which notices what breaks it; other kinds train and act."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from marless.core.errors import CorruptError, SpecError
from marless.core.group import Group
from marless.core.registry import Registry
from marless.learning.algos import registry
from marless.learning.algos.contract import check_algorithm
from marless.learning.algos.ppo.algorithms import IPPOConfig, ippo
from marless.learning.algos.synthetic_job import CASES
from marless.learning.nets import kinds, stacked
from marless.learning.nets.acting import ActingPolicies, ActingState
from marless.learning.nets.contract import check_net
from marless.learning.nets.kinds import GRU, LAYER_NORM, LSTM, MLP
from marless.learning.nets.layout import layout
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds


class Residual:
    """Dense layers of one width, each added to what it got."""

    def matrices(self, inputs, hidden, outputs):
        return [(hidden[0], inputs.size), *((h, h) for h in hidden[1:]), (outputs, hidden[-1])]

    def memory(self, hidden):
        return 0

    def step(self, ops, layers, x, memory):
        first, *blocks, last = layers
        x = ops.activate(first(x))
        for block in blocks:
            x = x + ops.activate(block(x))
        return last(x), memory


class Cells:
    """One layer of long short-term memory with one matrix for its gates, as another package has it."""

    def matrices(self, inputs, hidden, outputs):
        units = hidden[-1]
        return [(4 * units, inputs.size + units), (outputs, units)]

    def memory(self, hidden):
        return 2 * hidden[-1]

    def step(self, ops, layers, x, memory):
        units = memory.shape[1] // 2
        output, cell = memory[:, :units], memory[:, units:]
        gates = layers[0](ops.join([x, output]))
        switches = ops.sigmoid(gates[:, : 3 * units])
        new = ops.tanh(gates[:, 3 * units :])
        cell = switches[:, units : 2 * units] * cell + switches[:, :units] * new
        output = switches[:, 2 * units :] * ops.tanh(cell)
        return layers[1](output), ops.join([output, cell])


@dataclass
class Brought:
    """A registry with kinds of other packages beside what is installed."""

    installed: Registry[kinds.NetKind]
    others: dict[str, kinds.NetKind]

    def find(self, name: str) -> kinds.NetKind:
        return self.others[name] if name in self.others else self.installed.find(name)


@pytest.fixture(autouse=True)
def theirs(monkeypatch) -> dict[str, kinds.NetKind]:
    """Kinds that other packages have brought."""
    found: dict[str, kinds.NetKind] = {"residual": Residual(), "cells": Cells()}
    monkeypatch.setattr(kinds, "KINDS", Brought(kinds.KINDS, found))
    return found


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        (MLP, (6, 6)),
        (MLP, (5,)),
        (GRU, (6, 4)),
        (GRU, (5,)),
        (LAYER_NORM, (6, 5)),
        (LAYER_NORM, (4,)),
        ("residual", (6, 6, 6)),
        (LSTM, (6, 4)),
        (LSTM, (5,)),
        ("cells", (5,)),
    ],
)
def test_kinds_keep_the_contract(name, hidden):
    check_net(name, hidden=hidden)


class OtherInTorch(Residual):
    """Adds a little in torch only."""

    def step(self, ops, layers, x, memory):
        output, memory = super().step(ops, layers, x, memory)
        return (output + 0.01 if isinstance(output, torch.Tensor) else output), memory


class Mixing(Residual):
    """Copies see one another."""

    def step(self, ops, layers, x, memory):
        return super().step(ops, layers, x - x.mean(2)[:, :, None], memory)


class Detached(Residual):
    """Its first layer learns nothing."""

    def step(self, ops, layers, x, memory):
        first, *blocks, last = layers
        hidden = ops.activate(first(x))
        hidden = hidden.detach() if isinstance(hidden, torch.Tensor) else hidden
        for block in blocks:
            hidden = hidden + ops.activate(block(hidden))
        return last(hidden), memory


class Doubles(Residual):
    """Computes in float64."""

    def step(self, ops, layers, x, memory):
        output, memory = super().step(ops, layers, x, memory)
        return (output.astype(np.float64) if isinstance(output, np.ndarray) else output), memory


class Narrow(Residual):
    """Forgets the outputs."""

    def matrices(self, inputs, hidden, outputs):
        return super().matrices(inputs, hidden, outputs)[:-1]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OtherInTorch(), r"actors \(NumPy\) and learners \(torch\) differ by 0.01"),
        (Mixing(), "copies, or steps, depend on later or other ones"),
        (Detached(), "its gradient is"),
        (Doubles(), "do not compute in float32"),
    ],
)
def test_the_contract_notices(theirs, kind, said):
    theirs["residual"] = kind
    with pytest.raises(AssertionError, match=said):
        check_net("residual")


def test_an_output_layer_of_another_size_is_refused(theirs):
    theirs["residual"] = Narrow()
    with pytest.raises(SpecError, match="the last of its matrices must have 3 outputs"):
        check_net("residual")


def test_a_gradient_by_hand_that_is_wrong_is_noticed(monkeypatch):
    monkeypatch.setattr(stacked.StackedMLP, "backward", lambda self, d: self.gradient_PD.fill_(0.1))
    with pytest.raises(AssertionError, match="its gradient is"):
        check_net(MLP)


def test_what_nobody_brought_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match="unknown net 'mpl'; did you mean 'mlp'"):
        ModelSpec(net="mpl")
    with pytest.raises(ValueError, match="recurrent: gru is for net: mlp; cells brings a memory of its own"):
        ModelSpec(net="cells", recurrent="gru")


@pytest.mark.parametrize("net", [pytest.param("residual", marks=pytest.mark.slow), "cells", LAYER_NORM])
def test_the_family_of_ppo_trains_and_acts_with_them(monkeypatch, net):
    """In every made-up team: states, splits, memory, sampling; measured with the curvature of their definition."""
    cases = {
        case: replace(job, model=job.model.model_copy(update={"net": net, "hidden": (6, 6)}))
        for case, job in CASES.items()
        if job.model.recurrent == "none"
    }
    monkeypatch.setattr("marless.learning.algos.contract.CASES", cases)
    config = IPPOConfig(epochs=1, minibatches=2)
    assert check_algorithm(ippo, config, one_step={"minibatches": 1}) == tuple(cases)


def test_layer_normalisation_by_hand():
    """Of the layer's 3 and 1, the mean is 2 and the deviation 1, with ε √(1 + 1e-5); the output is their sum."""
    shape = layout(1, ModelSpec(layer_norm=True, hidden=(2,), activation="relu"), 1)
    flat_D = torch.tensor([[3.0, 0.0, 0.0, 1.0, 1.0, 10.0, 0.5]])  # W = (3, 0), b = (0, 1); then 1, 10 and 0.5
    found_PKM = stacked.net(shape, flat_D, "relu").evaluate(torch.ones(1, 2, 1))
    assert found_PKM.item() == pytest.approx(1 / (1 + 1e-5) ** 0.5 + 0.5, rel=1e-6)
    assert stacked.net(shape, flat_D, "tanh").evaluate(torch.ones(1, 2, 1)).item() == pytest.approx(
        -9 * np.tanh((1 + 1e-5) ** -0.5) + 0.5, rel=1e-6
    )


def test_layer_normalisation_is_of_perceptrons():
    for more in ({"recurrent": "gru"}, {"net": "cells"}, {"recurrent": "lstm"}):
        with pytest.raises(ValueError, match="layer_norm is for net: mlp with recurrent: none; leave it out"):
            ModelSpec(layer_norm=True, **more)


@pytest.mark.parametrize("name", ["ippo", "mappo", "impact", "iql", "qmix", "iddpg", "maddpg"])
def test_every_family_trains_with_layer_normalisation(name):
    spaces = rounds.CONTINUOUS if "ddpg" in name else rounds.DISCRETE
    model = ModelSpec(layer_norm=True, hidden=(6, 6))
    small = {} if name in ("ippo", "mappo", "impact") else {"batch": 8, "warmup": 0, "updates": 2}
    team = rounds.INDEPENDENT if name != "qmix" else (Group("s", ("s",)), *rounds.INDEPENDENT)
    made = rounds.learner(name, spaces, team, model=model, **small)
    before = made.state("a")
    metrics = made.update(rounds.inputs(team, [rounds.trajectory(spaces, 7)])).metrics["a"]
    after = made.state("a")
    assert all(np.isfinite(each) for each in metrics.values())
    assert not np.array_equal(before.acting["policy.0.weight"], after.acting["policy.0.weight"])
    assert after.metadata["kind"] == LAYER_NORM
    (agents,) = (each for each in spaces.classes if each.name == "walker")
    acting = ActingPolicies.from_states(agents, [made.state(agent) for agent in rounds.AGENTS])
    assert acting.greedy(np.ones((4, 3, 5), np.float32), None).shape[:2] == (4, 3)


def test_q_learning_trains_them():
    model = ModelSpec(net="residual", hidden=(6, 6))
    made = rounds.learner("iql", rounds.DISCRETE, rounds.INDEPENDENT, model=model)
    assert made.state("a").metadata["kind"] == "residual"
    assert made.state("a").metadata["hidden"] == "6,6"


def test_q_learning_with_memory_needs_whole_episodes():
    algorithm = registry.algorithm("iql")
    case = next(iter(CASES.values()))
    setting = replace(case.setting, model=ModelSpec(net="cells"))
    with pytest.raises(SpecError, match="a cells net, which has a memory, learns from whole episodes"):
        algorithm.check(algorithm.config_type(name="iql"), setting)


@pytest.mark.parametrize("name", [pytest.param("iddpg", marks=pytest.mark.slow), "maddpg"])
def test_deterministic_policies_train_and_act_with_those_without_memory(monkeypatch, name):
    algorithm = registry.algorithm(name)
    cases = {
        case: replace(job, model=job.model.model_copy(update={"net": "residual", "hidden": (6, 6)}))
        for case, job in CASES.items()
        if job.model.recurrent == "none"
    }
    monkeypatch.setattr("marless.learning.algos.contract.CASES", cases)
    config = algorithm.config_type.model_validate({"name": name, "batch": 8, "warmup": 0, "twin": True})
    assert check_algorithm(algorithm, config, one_step={"updates": 1})


def test_deterministic_policies_refuse_memory():
    algorithm = registry.algorithm("maddpg")
    case = next(iter(CASES.values()))
    with pytest.raises(SpecError, match=r"maddpg trains no nets with memory, .* and model asks for cells nets"):
        algorithm.check(algorithm.config_type(name="maddpg"), replace(case.setting, model=ModelSpec(net="cells")))


@pytest.mark.parametrize("kind", ["residual", LAYER_NORM])
def test_gradients_with_respect_to_inputs_are_those_of_differences(theirs, kind):
    """Of one input for all nets, as joint critics have it, and of some of its rows, others for each net."""
    rng = np.random.default_rng(3)
    shape = layout(4, ModelSpec(net=kind, hidden=(5, 5)), 2)
    flat_PD = torch.tensor(np.stack([shape.initial(rng, 1.0) for _ in range(2)]))
    input_1IM = torch.tensor(np.concatenate([rng.standard_normal((1, 4, 3)), np.ones((1, 1, 3))], axis=1)).float()
    rows_PR = torch.tensor([[0, 2], [3, 1]])
    net = stacked.feed_forward(shape, flat_PD, "tanh")
    before_PKM = net.forward(input_1IM).clone()
    found_PRM = net.input_gradient(torch.ones_like(before_PKM), rows_PR)
    for p in range(2):
        for r, row in enumerate(rows_PR[p].tolist()):
            moved = [input_1IM.clone(), input_1IM.clone()]
            for each, step in zip(moved, (1e-2, -1e-2), strict=True):
                each[:, row] += step
            one, other = (net.evaluate(each)[p].sum(dim=0) for each in moved)
            torch.testing.assert_close(found_PRM[p, r], (one - other) / 2e-2, rtol=1e-2, atol=1e-3)
    with pytest.raises(SpecError, match="cells nets have a memory, and these must not"):
        stacked.feed_forward(layout(3, ModelSpec(net="cells", hidden=(5,)), 2), flat_PD, "tanh")


@pytest.mark.parametrize("hidden", ["", "6,", "6,x", "06,6", "6,0", "6,9000", "6," * 20 + "6", "6,6,6"])
def test_a_state_whose_sizes_were_tampered_with_is_refused(hidden):
    model = ModelSpec(net="residual", hidden=(6, 6))
    made = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT, model=model)
    state = made.state("a")
    spoilt = ActingState(state.acting, {**state.metadata, "hidden": hidden})
    agents = rounds.DISCRETE.class_of("a")
    with pytest.raises(CorruptError):
        ActingPolicies.from_states(agents, [spoilt] * len(agents.agents))


def test_layouts_of_other_kinds_know_what_they_weigh():
    model = ModelSpec(net="cells", hidden=(5,))
    found = layout(3, model, 2)
    assert (found.size, found.memory) == (20 * (3 + 5 + 1) + 2 * (5 + 1), 10)
