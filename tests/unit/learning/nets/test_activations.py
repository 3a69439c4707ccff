"""The columns of the table of activations agree with each other, with autograd, and with what a job may name."""

from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.learning.nets.acting_nets import ACTIVATE
from marless.learning.nets.kernels import ACTIVATIONS, activation
from marless.learning.nets.layout import Layout
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.stacked import StackedMLP

POINTS = torch.linspace(-3, 3, 60)  # an even number: none is 0, where ReLU has no derivative


def test_jobs_actors_and_learners_know_the_same_names():
    assert set(get_args(get_type_hints(ModelSpec)["activation"])) == set(ACTIVATIONS) == set(ACTIVATE)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_actors_compute_what_learners_do(name):
    trained, acted = POINTS.clone(), np.empty(60, np.float32)
    ACTIVATIONS[name].apply_(trained)
    ACTIVATE[name](POINTS.numpy(), acted)
    np.testing.assert_array_equal(trained.numpy(), acted)
    torch.testing.assert_close(ACTIVATIONS[name].differentiable(POINTS), trained)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives_are_those_of_autograd(name):
    known, x = ACTIVATIONS[name], POINTS.clone().requires_grad_()
    y = known.differentiable(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(known.slope(y), first)
    gradient = torch.full_like(y, 3.0)
    known.through_(gradient, y.detach())
    torch.testing.assert_close(gradient, 3 * first.detach())
    if known.bend:
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(known.bend(y).detach() * first.detach(), second, atol=1e-6, rtol=1e-5)
        assert second.abs().max() > 0.1
    else:
        assert not first.requires_grad or not torch.autograd.grad(first.sum(), x)[0].any()


def test_an_unknown_one_is_refused():
    with pytest.raises(SpecError, match=r"model\.activation: 'gelu' is unknown; known: tanh, relu"):
        activation("gelu")
    layout = Layout(2, (3,), 1, 0)
    with pytest.raises(SpecError, match="gelu"):
        StackedMLP(layout, torch.zeros(1, layout.size), "gelu")
