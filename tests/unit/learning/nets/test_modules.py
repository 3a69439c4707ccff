"""Modules of torch as nets: they keep the contract, train as torch alone trains them, and wrong ones are named."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from marless.core.errors import CorruptError, SpecError
from marless.core.state import PolicyState
from marless.learning.aggregation.applying import Matrices
from marless.learning.algos import registry
from marless.learning.algos.contract import check_algorithm
from marless.learning.algos.synthetic_job import CASES
from marless.learning.curvature.hessian import hessian_product
from marless.learning.envs.base import AgentClass, Discrete
from marless.learning.nets import acting_module, module_kind, serial, stacked
from marless.learning.nets.acting import ActingPolicies, ActingState, description
from marless.learning.nets.adam import Adam
from marless.learning.nets.contract import check_net
from marless.learning.nets.layout import generator, layout, layout_of
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.net_kind import InputShape
from tests.docs.blocks import blocks
from tests.unit.learning.algos import rounds
from tests.unit.learning.nets.brought_modules import THEIRS, Brought, perceptron
from tests.unit.learning.policies import test_onnx as exports

IMAGES = InputShape(2 * 9 * 7, (2, 9, 7)), InputShape(2 * 9 * 7 + 3, (2, 9, 7))
AGENTS = AgentClass("scout", ("a", "b"), 4, Discrete(3))


@pytest.fixture(autouse=True)
def theirs(monkeypatch) -> None:
    """Modules that another package has brought."""
    monkeypatch.setattr(module_kind, "MODULES", Brought())


def model() -> ModelSpec:
    return ModelSpec(net="module/perceptron", hidden=(8,))


@pytest.mark.parametrize(("name", "hidden"), [("perceptron", (6, 4)), ("attentive", (6, 4)), ("gated", (6,))])
def test_modules_keep_the_contract(name, hidden):
    check_net(f"module/{name}", hidden=hidden)


def test_the_page_shows_a_module_that_remembers(monkeypatch):
    [shown] = [block.text for block in blocks("docs/extending/module.md", "python") if "class Gated" in block.text]
    page: dict[str, Any] = {}
    exec(shown, page)  # our own page
    monkeypatch.setitem(THEIRS, "page", lambda inputs, hidden, outputs: page["Gated"](inputs.size, *hidden, outputs))
    check_net("module/page", hidden=(6,))


@pytest.mark.parametrize("name", ["pictures", "films"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's cells, stacked
def test_modules_of_images_keep_the_contract(name):
    check_net(f"module/{name}", hidden=(5,), inputs=IMAGES)


def test_two_stacked_modules_train_as_two_of_torch_alone():
    """By Adam, on the same samples."""
    made = [perceptron(InputShape(4), (8,), 2) for _ in range(2)]
    flat_PD = torch.stack([nn.utils.parameters_to_vector(each.parameters()).detach() for each in made])
    shape = layout_of("module/perceptron", 4, (8,), 2)
    net = stacked.net(shape, flat_PD, "tanh")
    optimizer = Adam(
        flat_PD,
        torch.zeros_like(flat_PD),
        torch.zeros_like(flat_PD),
        torch.zeros(2).double(),
        steps=20,
        lr=0.01,
        eps=1e-5,
    )
    theirs = [torch.optim.Adam(each.parameters(), lr=0.01, eps=1e-5) for each in made]
    generator = torch.Generator().manual_seed(5)
    for _ in range(20):
        x_PMI, wanted_PMK = (torch.randn(2, 6, size, generator=generator) for size in (4, 2))
        input_PIM = torch.cat([x_PMI, torch.ones(2, 6, 1)], dim=2).transpose(1, 2)
        output_PKM = net.forward(input_PIM)
        net.backward(2 * (output_PKM - wanted_PMK.transpose(1, 2)))
        optimizer.step(net.gradient_PD)
        for module, their, x_MI, wanted_MK in zip(made, theirs, x_PMI, wanted_PMK, strict=True):
            their.zero_grad()
            (module(x_MI) - wanted_MK).square().sum().backward()
            their.step()
    for module, flat_D in zip(made, flat_PD, strict=True):
        torch.testing.assert_close(flat_D, nn.utils.parameters_to_vector(module.parameters()).detach())


def flat_of(arrays, prefix: str) -> np.ndarray:
    """The parameters of a net of marless in the order of torch's module."""
    names = [name for name in ("0", "0.memory", "1") if f"{prefix}.{name}.weight" in arrays]
    parts = [arrays[f"{prefix}.{name}.{part}"].ravel() for name in names for part in ("weight", "bias")]
    return np.concatenate(parts)


def as_module(state: PolicyState, module: PolicyState) -> PolicyState:
    """The state of a module with the weights of a perceptron."""
    acting, learning = dict(module.acting), dict(module.learning)
    for part in (acting, learning):
        for name in [name for name in part if name.endswith(".parameters")]:
            prefix = name.removesuffix(".parameters")
            part[name] = flat_of({**state.acting, **state.learning}, prefix)
            if f"{prefix}.target" in learning:
                learning[f"{prefix}.target"] = part[name].copy()
    return PolicyState(acting=acting, learning=learning, metadata=module.metadata)


@pytest.mark.parametrize(
    ("name", "settings", "recurrent"),
    [
        ("ippo", {"epochs": 2, "minibatches": 2}, False),
        ("ippo", {"epochs": 2, "minibatches": 2}, True),
        ("ippo", {"epochs": 2, "minibatches": 2, "torso": "shared"}, False),
        ("iql", {"batch": 8, "warmup": 0, "updates": 3}, False),
        ("iql", {"batch": 3, "warmup": 0, "updates": 3, "replay": {"unit": "episodes"}}, True),
        ("pqn", {"epochs": 2, "minibatches": 2}, False),
        ("pqn", {"epochs": 2, "minibatches": 2}, True),
        ("iddpg", {"batch": 8, "warmup": 0, "updates": 3}, False),
    ],
)
def test_an_update_is_that_of_the_same_net_of_marless(name, settings, recurrent):
    """Policies and critics, of samples with masks, deaths and cuts, and of memory that is cut with them."""
    ours = ModelSpec(hidden=(8,), recurrent="gru" if recurrent else "none")
    theirs = ModelSpec(hidden=(8,), net=f"module/{'gated' if recurrent else 'perceptron'}", module_memory=8 * recurrent)
    learners = [
        rounds.learner(name, rounds.DISCRETE, rounds.INDEPENDENT, model=model, **settings) for model in (ours, theirs)
    ]
    plain, module = learners
    for group in rounds.INDEPENDENT:
        module.load(group.policy, as_module(plain.state(group.policy), module.state(group.policy)))
    given = rounds.inputs(
        rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 7), rounds.trajectory(rounds.DISCRETE, 8)]
    )
    for each in learners:
        each.update(given)
    for group in rounds.INDEPENDENT:
        expected, found = (each.state(group.policy) for each in learners)
        before = plain.initial(group.policy, 0)
        for prefix, part in (("policy", "acting"), ("critic", "learning")):
            if f"{prefix}.parameters" in getattr(found, part):
                wanted, started = (flat_of(getattr(state, part), prefix) for state in (expected, before))
                assert np.abs(wanted - started).max() > 1e-4
                np.testing.assert_allclose(getattr(found, part)[f"{prefix}.parameters"], wanted, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("name", ["ippo", "maddpg"])
def test_algorithms_train_them(monkeypatch, name):
    algorithm = registry.algorithm(name)
    cases = [each for each in CASES.items() if each[1].model.recurrent == "none" and not each[1].model.frames > 1]
    changed = {"net": "module/perceptron", "hidden": (6,)}
    with_modules = {case: replace(job, model=job.model.model_copy(update=changed)) for case, job in cases}
    monkeypatch.setattr("marless.learning.algos.contract.CASES", with_modules)
    more = {} if name == "ippo" else {"batch": 8, "warmup": 0}
    assert check_algorithm(algorithm, algorithm.config_type.model_validate({"name": name, **more}))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("impact", {}),
        ("mappo", {}),
        ("pqn_vdn", {"minibatches": 2}),
        ("qmix", {"batch": 3, "warmup": 0, "replay": {"unit": "episodes"}}),
    ],
)
def test_algorithms_train_those_that_remember(monkeypatch, name, settings):
    algorithm = registry.algorithm(name)
    changed = {"net": "module/gated", "recurrent": "none", "hidden": (6,), "module_memory": 6}
    with_modules = {
        case: replace(job, model=job.model.model_copy(update=changed))
        for case, job in CASES.items()
        if job.model.recurrent != "none"
    }
    monkeypatch.setattr("marless.learning.algos.contract.CASES", with_modules)
    assert check_algorithm(algorithm, algorithm.config_type.model_validate({"name": name, **settings}))


def test_equal_seeds_draw_equal_weights_and_leave_torchs_generator_alone():
    shape, before = layout(4, model(), 2, 3), torch.get_rng_state()
    one, same, other = (shape.initial(generator(seed, "a"), 1.0) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(one, same)
    assert (one[-3:] == 0).all()
    assert (one[:-3] != other[:-3]).all()
    assert np.abs(one[:32]).max() <= 0.5  # torch's own for 4 inputs: uniform in ± 1/√4


def test_states_are_as_aggregated_gradients_find_them():
    shape = layout(4, model(), 2, 3)
    flat_D = np.arange(shape.size, dtype=np.float32)
    arrays = {**shape.to_arrays("policy", flat_D), **shape.acting_arrays("policy")}
    found = Matrices.of("policy", arrays)
    assert found.size == shape.size
    np.testing.assert_array_equal(found.flat(arrays), flat_D)
    for name, array in found.named(flat_D).items():
        np.testing.assert_array_equal(arrays[name], array)
    with pytest.raises(CorruptError, match="or those of two nets"):
        Matrices.of("policy", {**arrays, "policy.0.weight": np.zeros((2, 2), np.float32)})


@pytest.mark.parametrize("name", ["perceptron", "attentive"])
def test_curvature_is_that_of_finite_differences(name):
    shape = layout_of(f"module/{name}", 4, (6,), 2)
    flat_PD = torch.tensor(np.stack([shape.initial(np.random.default_rng(i), 1.0) for i in range(2)])).double()
    draw = torch.Generator().manual_seed(2)
    input_PIM = torch.cat([torch.randn(2, 4, 7, generator=draw), torch.ones(2, 1, 7)], dim=1).double()
    batch = {"features": input_PIM}

    class Squares:
        """Σ output² / 2."""

        def __init__(self, output_PKM):
            self.output_PKM = output_PKM

        def gradient(self):
            return self.output_PKM, None

        def product(self, flow_PKM, free_flow_PF):
            return flow_PKM, None

    def gradient(flat_PD):
        net = stacked.net(shape, flat_PD, "tanh")
        net.backward(net.forward(input_PIM))
        return net.gradient_PD.clone()

    direction_PD = torch.randn(*flat_PD.shape, generator=draw).double()
    product = hessian_product(stacked.net(shape, flat_PD, "tanh"), flat_PD, batch, Squares)
    step = 1e-6
    expected = (gradient(flat_PD + step * direction_PD) - gradient(flat_PD - step * direction_PD)) / (2 * step)
    torch.testing.assert_close(product(direction_PD), expected, rtol=1e-4, atol=1e-5)


WRONG = {
    "wide": r"it maps float32\[3, 4\] to float32\[3, 3\], expected float32\[3, 2\]",
    "batch-norm": r"computing changes its buffer 1.running_mean, .* use LayerNorm or GroupNorm in place of BatchNorm",
    "dropout": "in training its outputs are random, or others than in use; leave dropout out",
    "ticking": r"computing changes its attribute last\.calls, but actors run a graph in which it is constant; ",
    "collecting": "computing changes its attribute seen, ",
    "clocked": "computing changes its attribute clock, ",
    "tallying": r"computing changes its attribute Tallying\.calls, ",
    "drawing": "in training its outputs are random, or others than in use; leave dropout out",
    "empty": "it has no parameters to train",
    "function": "its factory returns builtin_function_or_method, expected a torch.nn.Module",
    "doubles": "its parameter weight is of torch.float64, expected float32",
    "double": r"it maps float32\[3, 4\] to float64\[3, 2\], expected float32\[3, 2\]",
    "failing": r"its factory fails for 4 inputs, hidden \[8\] and 2 outputs: KeyError: 2",
    "wrong-size": r"it fails for float32\[3, 4\]: RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    "branching": "torch.func.vmap cannot compute several of it at once: .*; write it without branches",
    "recurrent": "torch.func.vmap cannot compute several of it at once: .* aten::gru",
    "mixing": "its outputs for one sample depend on the other samples",
    "remembering": "it returns tuple, expected a tensor; one with memory has an attribute `memory`",
    "forgetting": r"it returns Tensor, expected \(outputs, next memory\), as its attribute memory is 3",
    "shrinking": r"it maps float32\[3, 4\] and float32\[3, 3\] to float32\[3, 2\] and float32\[3, 2\], expected "
    r"float32\[3, 2\] and float32\[3, 3\]",
    "owing": "its attribute memory is -1; it may remember up to 32,768 numbers",
    "still": "its outputs depend on no parameter that is trained",
    "growing": "its factory makes other parameters at each call",
    "counting": "its ONNX graph, which actors run, computes other numbers than it does",
    "inverting": "it has no ONNX graph, which actors need to run it: .*'aten::i0'",
    "idle": "its outputs do not depend on its parameter idle",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_module_is_refused_before_it_trains(name):
    with pytest.raises(SpecError, match=f"^net module/{name}: {WRONG[name]}") as caught:
        shape = layout_of(f"module/{name}", 4, (8,), 2)
        shape.initial(np.random.default_rng(0), 1.0)
        shape.acting_arrays("policy")
    assert "\n" not in str(caught.value)


def test_a_module_that_remembers_other_numbers_than_the_job_says_is_refused():
    with pytest.raises(SpecError, match=r"remembers 8 numbers of each episode, .* set model\.module_memory: 8"):
        layout(4, ModelSpec(net="module/gated", hidden=(8,)), 2)
    with pytest.raises(SpecError, match=r"module_memory is 5; set model\.module_memory: 0"):
        layout(4, ModelSpec(net="module/undeclared", hidden=(8,), module_memory=5), 2)
    with pytest.raises(ValueError, match="module_memory is for net: module/…; leave it out"):
        ModelSpec.model_validate({"recurrent": "gru", "module_memory": 64})


def test_attributes_that_keep_their_values_are_allowed():
    assert layout_of("module/plain", 4, (8,), 2).size == 4 * 2 + 2


def test_a_module_that_no_package_brings_is_refused():
    with pytest.raises(ValueError, match=r"unknown module 'perceptrom'; did you mean 'perceptron'\?"):
        ModelSpec.model_validate({"net": "module/perceptrom"})


def remembering() -> ModelSpec:
    return ModelSpec(net="module/gated", hidden=(8,), module_memory=8)


def state(nets: ModelSpec | None = None, **graph: bytes) -> ActingState:
    nets = nets or model()
    shape = layout(4, nets, 3)
    arrays = {
        **shape.to_arrays("policy", shape.initial(np.random.default_rng(0), 1.0)),
        **shape.acting_arrays("policy"),
    }
    if graph:
        arrays["policy.graph"] = np.frombuffer(graph["graph"], np.uint8)
    return ActingState(arrays, description(AGENTS, nets))


def spoilt(change, nets: ModelSpec | None = None) -> bytes:
    model = onnx.load_model_from_string(state(nets).acting["policy.graph"].tobytes())
    change(model)
    return model.SerializeToString()


def _outside(model):
    held = helper.make_tensor("secret", TensorProto.FLOAT, [1], [0.0])
    held.data_location = TensorProto.EXTERNAL
    held.external_data.add(key="location", value="/etc/passwd")
    model.graph.initializer.append(held)


def _outside_constant(model):
    _outside(model)
    held = model.graph.initializer.pop()
    model.graph.node.append(helper.make_node("Constant", [], ["secret"], value=held))


def _huge(model):
    for each in model.graph.input[:2]:
        each.type.tensor_type.shape.dim[1].dim_value = 2**40


def _foreign(model):
    model.graph.node[0].domain = "com.microsoft"


def _nested(model):
    branch = helper.make_graph([], "then", [], [])
    model.graph.node.append(helper.make_node("If", ["inputs"], ["more"], then_branch=branch, else_branch=branch))


def _renamed(model):
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            node.output[i] = "found" if name == "outputs" else name
    model.graph.output[0].name = "found"


def _wider(model):
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_outside, "has something that modules are not made of: 'secret'"),
        (_outside_constant, "has something that modules are not made of: 'secret'"),
        (_huge, "has inputs of more than 134,217,728 numbers"),
        (_foreign, "has something that modules are not made of"),
        (_nested, "has something that modules are not made of: 'If'"),
        (_renamed, "has other inputs or outputs than those of a module"),
        (_wider, "its graph maps 5 to 3 numbers, expected 4 and 3"),
    ],
)
def test_a_graph_that_is_not_of_a_module_is_refused(change, sentence):
    with pytest.raises(CorruptError, match=sentence):
        ActingPolicies.from_states(AGENTS, [state(graph=spoilt(change))] * 2)


def _forgets(model):
    del model.graph.output[1]


def _remembers_something_else(model):
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["more" if name == "next_memory" else name for name in names]
    model.graph.node.append(helper.make_node("Identity", ["outputs"], ["next_memory"]))
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_forgets, "has other inputs or outputs than those of a module"),
        (_remembers_something_else, "has outputs of shape 2 × 3 and 2 × 3 for two samples"),
    ],
)
def test_a_graph_whose_memory_is_none_is_refused(change, sentence):
    with pytest.raises(CorruptError, match=sentence):
        ActingPolicies.from_states(AGENTS, [state(remembering(), graph=spoilt(change, remembering()))] * 2)


@pytest.mark.parametrize("graph", [b"", b"not a graph", b"\x08\x08"])
def test_what_is_no_graph_is_refused(graph):
    with pytest.raises(CorruptError, match="its ONNX graph"):
        ActingPolicies.from_states(AGENTS, [state(graph=graph)] * 2)


def test_weights_of_another_size_and_missing_graphs_are_refused():
    whole = state()
    without = {name: array for name, array in whole.acting.items() if name != "policy.graph"}
    with pytest.raises(CorruptError, match=r"policy\.graph is missing, or no ONNX graph"):
        ActingPolicies.from_states(AGENTS, [ActingState(without, whole.metadata)] * 2)
    short = {**whole.acting, "policy.parameters": whole.acting["policy.parameters"][1:]}
    with pytest.raises(CorruptError, match=r"policy\.parameters is float32\[66\], expected float32\[67\]"):
        ActingPolicies.from_states(AGENTS, [ActingState(short, whole.metadata)] * 2)


def test_one_graph_serves_all_versions_and_agents():
    acting_module.program.cache_clear()
    for _ in range(3):
        ActingPolicies.from_states(AGENTS, [state(), state()])
    assert acting_module.program.cache_info().misses == 1


def test_without_onnxruntime_one_sentence_says_what_to_install(monkeypatch):
    whole = state()
    acting_module.program.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SpecError, match=r"onnxruntime is not installed; pip install 'marless\[onnx\]'"):
        ActingPolicies.from_states(AGENTS, [whole] * 2)


@pytest.mark.parametrize("action", [exports.MOVES, exports.ARM], ids=["discrete", "box"])
@pytest.mark.parametrize(("name", "memory"), [("attentive", 0), ("pictures", 0), ("gated", 8), ("films", 16)])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's cells, stacked
def test_exported_policies_act_as_the_team(name, memory, action, tmp_path):
    """With last actions and ids beside observations, which pictures get as a second argument."""
    image = (2, 9, 7) if name in {"pictures", "films"} else None
    agents = AgentClass("p0", ("a", "b"), 126, action, image=image)
    nets = ModelSpec(net=f"module/{name}", hidden=(8,), module_memory=memory)
    team = exports.team_of(exports.state(agents, nets, inputs=exports.BOTH))
    exports.check(team, exports.saved(team, tmp_path))


ACTS = """
import sys
sys.modules["torch"] = None
import numpy as np
from pathlib import Path
from marless.learning.envs.base import AgentClass, Discrete
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.serial import decode_acting
agents = AgentClass("scout", ("a", "b"), 4, Discrete(3))
players = ActingPolicies.from_states(agents, [decode_acting(Path(sys.argv[1]).read_bytes())] * 2)
print(players.greedy(np.ones((2, 5, 4), np.float32), None).tolist())
print(*sys.modules)
"""


def test_actors_need_neither_torch_nor_the_package(tmp_path):
    """As in a process of its own, which knows nothing of the modules of this test."""
    (tmp_path / "state").write_bytes(serial.encode_acting(state()))
    done = subprocess.run([sys.executable, "-c", ACTS, tmp_path / "state"], capture_output=True, text=True, check=True)
    actions, modules = done.stdout.splitlines()
    here = ActingPolicies.from_states(AGENTS, [state()] * 2).greedy(np.ones((2, 5, 4), np.float32), None)
    assert actions == str(here.tolist())
    assert not set(modules.split()) & {"pydantic", "grpc", "marless.learning.nets.modules"}
