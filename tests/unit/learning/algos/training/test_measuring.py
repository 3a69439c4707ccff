"""What an update measures of its policies, against autograd and against a state measured again; and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.settings import CurvatureSpec, Measure
from marless.core.state import PolicyState
from marless.learning.algos.learner import RoundInput, UpdateOutput
from marless.learning.algos.ppo.functions import PolicyFunction
from marless.learning.algos.training import measuring
from marless.learning.algos.training.measuring import convexity_ratio, noise_scale
from marless.learning.algos.training.policy_batching import Samples
from marless.learning.curvature.lanczos import Product
from marless.learning.envs.base import Box, Discrete
from marless.learning.nets.acting_heads import free_parameters
from marless.learning.nets.layout import Layout, generator
from tests.unit.learning.algos import rounds

STACK, SAMPLES = 3, 60
ACTIONS = pytest.mark.parametrize("action", [Discrete(4), Box((-1.0, 0.0), (1.0, 2.0))])
ALL = Measure(curvature=CurvatureSpec.model_validate({"samples": 40, "steps": 60}), noise=True)
MEASURED = {"lambda_max", "lambda_min", "curvature", "noise_scale"}
ALGORITHMS = pytest.mark.parametrize(
    ("name", "settings"), [("ippo", {}), ("mappo", {}), ("mappo", {"critic": "per_agent"})]
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _asking(measure: Measure = ALL, number: int = 0) -> RoundInput:
    return RoundInput(number, 0, 11, rounds.INDEPENDENT, (), measure=measure)


def _policies(action: Discrete | Box, rows: slice = slice(None)) -> PolicyFunction:
    layout = Layout(5, (6, 4), action.n, free_parameters(action))
    flat = torch.from_numpy(np.stack([layout.initial(generator(i, "net"), 1.0) for i in range(STACK)]))[rows]
    return PolicyFunction({"flat": flat}, layout, "tanh", action)


def _parts(action: Discrete | Box) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(STACK, 6, SAMPLES, generator=rng)
    features[:, -1] = 1.0
    parts = {"features": features, "advantage": torch.randn(STACK, 1, SAMPLES, generator=rng)}
    parts["alive"] = (torch.rand(STACK, 1, SAMPLES, generator=rng) < 0.8).float()
    if isinstance(action, Box):
        return parts | {"action": torch.randn(STACK, action.n, SAMPLES, generator=rng)}
    taken = torch.randint(action.n, (STACK, 1, SAMPLES), generator=rng)
    legal = (torch.rand(STACK, action.n, SAMPLES, generator=rng) < 0.7).float().scatter_(1, taken, 1.0)
    return parts | {"action": taken.float(), "legal": legal}


def _samples(action: Discrete | Box, rows: slice = slice(None)) -> Samples:
    return Samples({name: part[rows].contiguous() for name, part in _parts(action).items()})


def _objective(policies: PolicyFunction, flat_D: Tensor, batch: Mapping[str, Tensor], action: Discrete | Box) -> Tensor:
    """E[log π·A] of one policy, as a formula."""
    layout, x = policies.net.layout, batch["features"][:-1].T
    for i, (span, shape) in enumerate(zip(layout.spans, layout.shapes, strict=True)):
        matrix = flat_D[span].view(shape)
        x = torch.nn.functional.linear(x, matrix[:, :-1], matrix[:, -1])
        x = torch.tanh(x) if i < len(layout.shapes) - 1 else x
    if isinstance(action, Discrete):
        law = torch.distributions.Categorical(logits=x.masked_fill(batch["legal"].T == 0, -1e9))
        log_prob = law.log_prob(batch["action"][0].long())
    else:
        log_prob = torch.distributions.Normal(x, flat_D[-action.n :].exp()).log_prob(batch["action"].T).sum(1)
    alive = batch["alive"][0]
    return (log_prob * batch["advantage"][0] * alive).sum() / alive.sum().clamp_min(1)


def _one(parts: Mapping[str, Tensor], policy: int, index: Tensor) -> dict[str, Tensor]:
    return {name: part[policy][:, index].double() for name, part in parts.items()}


def _order(number: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng([11, number, 1]).permutation(SAMPLES))


@ACTIONS
def test_curvature_is_that_of_the_dense_hessian_over_the_samples_drawn(action: Discrete | Box) -> None:
    policies, parts = _policies(action), _parts(action)
    found = measuring.measured(policies, _samples(action), _asking(), minibatches=4)
    for i in range(STACK):
        batch = _one(parts, i, _order()[:40])
        at = policies.tensors["flat"][i].double()
        hessian = torch.autograd.functional.hessian(lambda flat, b=batch: _objective(policies, flat, b, action), at)
        values = torch.linalg.eigvalsh(hessian)
        assert float(found["lambda_max"][i]) == pytest.approx(float(values[-1]), rel=1e-3)
        assert float(found["lambda_min"][i]) == pytest.approx(float(values[0]), rel=1e-3)
    ratio = convexity_ratio(found["lambda_max"].numpy(), found["lambda_min"].numpy())
    assert found["curvature"].tolist() == ratio.tolist()


@ACTIONS
def test_noise_compares_a_rounds_parts_with_the_whole(action: Discrete | Box) -> None:
    policies, parts = _policies(action), _parts(action)
    found = measuring.measured(policies, _samples(action), _asking(Measure(noise=True)), minibatches=4)
    assert found.keys() == {"noise_scale"}
    for i in range(STACK):
        alive = parts["alive"][i, 0].double()
        big, small_square = torch.zeros(1), 0.0
        for index in _order().split(15):
            flat = policies.tensors["flat"][i].double().requires_grad_()
            gradient = torch.autograd.grad(_objective(policies, flat, _one(parts, i, index), action), flat)[0]
            share = alive[index].sum() / alive.sum()
            big, small_square = big + share * gradient, small_square + float(share * gradient.square().sum())
        expected = noise_scale(np.array([small_square]), np.array([float(big.square().sum())]), 15, 60)
        assert float(found["noise_scale"][i]) == pytest.approx(float(expected[0]), rel=1e-3)


def test_one_minibatch_is_halved_for_the_noise_scale() -> None:
    asked = _asking(Measure(noise=True))
    one, two = (
        measuring.measured(_policies(Discrete(4)), _samples(Discrete(4)), asked, minibatches=count) for count in (1, 2)
    )
    assert one["noise_scale"].tolist() == two["noise_scale"].tolist()


def test_policies_with_memory_are_measured_over_whole_segments_if_there_are_several() -> None:
    model = rounds.MODEL.model_copy(update={"recurrent": "gru"})
    for batch, missing in ((5, set()), (1, {"noise_scale"})):
        learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT, model=model, minibatches=1)
        given = rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 1, batch=batch)])
        metrics = learner.update(replace(given, measure=ALL)).metrics["a"]
        assert metrics.keys() & MEASURED == MEASURED - missing
        assert np.isfinite([metrics[name] for name in MEASURED - missing]).all()


@ACTIONS
def test_a_stack_is_its_policies_one_by_one(action: Discrete | Box) -> None:
    together = measuring.measured(_policies(action), _samples(action), _asking(), minibatches=4)
    for i in range(STACK):
        rows = slice(i, i + 1)
        alone = measuring.measured(_policies(action, rows), _samples(action, rows), _asking(), minibatches=4)
        for name in MEASURED:
            assert float(alone[name]) == pytest.approx(float(together[name][i]), rel=1e-3)


def test_a_policy_of_dead_agents_has_neither_curvature_nor_noise() -> None:
    parts = _parts(Discrete(4))
    parts["alive"][1] = 0.0
    found = measuring.measured(_policies(Discrete(4)), Samples(parts), _asking(), minibatches=4)
    assert [float(found[name][1]) for name in ("lambda_max", "lambda_min", "curvature", "noise_scale")] == [0, 0, 1, 0]
    assert float(found["lambda_max"][0]) > 0


def test_weights_that_are_not_finite_favour_neither_direction() -> None:
    policies = _policies(Discrete(4))
    policies.tensors["flat"][2, 0] = torch.nan
    found = measuring.measured(policies, _samples(Discrete(4)), _asking(), minibatches=4)
    assert np.isnan(float(found["lambda_max"][2]))
    assert (float(found["curvature"][2]), float(found["noise_scale"][2])) == (1.0, 0.0)
    assert float(found["lambda_max"][0]) > 0


def test_samples_are_drawn_anew_each_round() -> None:
    first, again, later = (
        measuring.measured(_policies(Discrete(4)), _samples(Discrete(4)), _asking(number=n), minibatches=4)
        for n in (0, 0, 1)
    )
    assert first["lambda_max"].tolist() == again["lambda_max"].tolist()
    assert first["lambda_max"].tolist() != later["lambda_max"].tolist()


@dataclass(frozen=True)
class Bowl:
    """−xᵀAx/2 in three parameters, for each of two nets: its gradient is −Ax, its Hessian −A, whatever the samples."""

    matrix: Tensor
    tensors: Mapping[str, Tensor]
    asked: list[int]

    def score_gradient(self, batch: measuring.Batch) -> Tensor:
        return -(self.matrix @ self.tensors["flat"].unsqueeze(2)).squeeze(2)

    def hessian(self, batch: measuring.Batch) -> Product:
        self.asked.append(batch["features"].shape[2])
        return lambda direction_PD: -(self.matrix @ direction_PD.unsqueeze(2)).squeeze(2)


def test_whatever_offers_gradients_and_products_is_measured_and_segments_stay_whole() -> None:
    """Eigenvalues of ± those of A; 40 samples are six segments of seven steps. Parts without noise have none."""
    matrix = torch.diag_embed(torch.tensor([[1.0, -2.0, 0.5], [4.0, -1.0, 3.0]]))
    bowl = Bowl(matrix, {"flat": torch.ones(2, 3)}, [])
    parts = {"features": torch.ones(2, 1, 84), "first": torch.zeros(2, 1, 84)}
    found = measuring.measured(bowl, Samples(parts, 7), _asking(), minibatches=3)
    assert bowl.asked == [42]
    assert found["lambda_max"].tolist() == pytest.approx([2.0, 1.0], rel=1e-5)
    assert found["lambda_min"].tolist() == pytest.approx([-1.0, -4.0], rel=1e-5)
    assert found["curvature"].tolist() == pytest.approx([2.0, 0.25], rel=1e-5)
    assert found["noise_scale"].tolist() == pytest.approx([0.0, 0.0], abs=1e-4)


def _update(name: str, measure: Measure, state: PolicyState | None = None, **settings: object) -> UpdateOutput:
    learner = rounds.learner(name, rounds.DISCRETE, rounds.INDEPENDENT, **settings)
    if state:
        learner.load("a", state)
    given = rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 1, steps=10, batch=10)])
    return learner.update(replace(given, measure=measure))


def test_the_new_policy_is_measured() -> None:
    """Measured again without training, from the new weights and the critic that the advantages came from."""
    learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT)
    old = learner.state("a")
    given = rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 1, steps=10, batch=10)])
    trained = learner.update(replace(given, measure=ALL)).metrics["a"]
    new = PolicyState(learner.state("a").acting, old.learning, old.metadata)
    again = _update("ippo", ALL, new, lr=0.0).metrics["a"]
    assert {name: trained[name] for name in MEASURED} == {name: again[name] for name in MEASURED}
    before = _update("ippo", ALL, old, lr=0.0).metrics["a"]
    assert trained["lambda_max"] != before["lambda_max"]


@ALGORITHMS
def test_each_policy_is_measured_and_its_function_billed(name: str, settings: dict[str, object]) -> None:
    output = _update(name, ALL, **settings)
    for agent in rounds.AGENTS:
        assert output.metrics[agent].keys() >= MEASURED
        ran = {run.function: run for run in output.runs if run.name == agent}
        assert ran["policy"].end_s <= ran["curvature"].start_s < ran["curvature"].end_s
        assert ran["curvature"].vcpu_s == pytest.approx((ran["curvature"].end_s - ran["curvature"].start_s) / 4)
    others = output.metrics.keys() - set(rounds.AGENTS)
    assert not any(output.metrics[other].keys() & MEASURED for other in others)


def test_only_what_was_asked_for_is_measured() -> None:
    nothing = _update("ippo", Measure())
    assert not any(metrics.keys() & MEASURED for metrics in nothing.metrics.values())
    assert "curvature" not in {run.function for run in nothing.runs}
    assert _update("ippo", Measure(noise=True)).metrics["a"].keys() & MEASURED == {"noise_scale"}
    bend = Measure(curvature=ALL.curvature)
    assert _update("ippo", bend).metrics["a"].keys() & MEASURED == MEASURED - {"noise_scale"}


@ALGORITHMS
def test_measuring_changes_nothing_and_threads_change_no_measurement(
    name: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    states, metrics = [], []
    for threads, measure in ((1, Measure()), (1, ALL), (4, ALL)):
        monkeypatch.setattr(torch, "get_num_interop_threads", lambda threads=threads: threads)
        learner = rounds.learner(name, rounds.DISCRETE, rounds.INDEPENDENT, **settings)
        for number in range(2):
            given = rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 7 + number)], number)
            output = learner.update(replace(given, measure=measure))
        states.append({held: rounds.flat(learner.state(held)) for held in learner.names(rounds.INDEPENDENT)})
        metrics.append(output.metrics)
    assert states[0] == states[1] == states[2]
    assert metrics[1] == metrics[2]
