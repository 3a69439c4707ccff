"""Where and how precisely a job's learner computes: whether bfloat16 is enough, gradients of one minibatch tell.

Shapes: I inputs + 1, K outputs, M samples, D parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marless.core.errors import SpecError
from marless.learning.algos.training.devices import GradientLoad, choose_device, computed_by
from marless.learning.nets.kinds import Precision

LIMIT = 0.25
"""The largest error of a gradient, of its norm: its cosine with the right one is then 0.97 or more. Those of another
minibatch are farther away."""
_SAMPLES = 32
"""Most samples that are compared: their errors are alike, and a CPU without bfloat16 takes seconds for so many."""


def found_device(asked: str, load: GradientLoad) -> dict[str, str]:
    """The device for a job's learner, and what else a log says of it; raises SpecError if it cannot compute there.

    Its keys: `device`, of torch, `why`, `precision` and `computed_by`.
    """
    device, why = choose_device(asked, load)
    facts = {"device": device, "why": why, "precision": check_precision(load, device)}
    return facts | {"computed_by": computed_by(device, load.precision)}


def check_precision(load: GradientLoad, device: str) -> str:
    """What a log says of the precision of a job's gradients; raises SpecError if the device or the nets have none.

    A job that is computed in float32 is not checked.
    """
    if load.precision == "float32":
        return load.precision
    if device.startswith("cuda") and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise SpecError(f"learner.precision: {name} has no {load.precision}; set float32")
    error = gradient_error(load, device)
    if not error <= LIMIT:  # NaN, too
        raise SpecError(
            f"learner.precision: {load.precision} changes the gradient of a minibatch by {error:.2g} of its norm, and "
            f"{LIMIT:g} is the limit; set float32"
        )
    return f"{load.precision}: the gradient of a minibatch differs by {error:.2g} of its norm; the limit is {LIMIT:g}"


def gradient_error(load: GradientLoad, device: str) -> float:
    """How far the gradient of a minibatch is from that in float32, of the norm of that one.

    Of initial weights, at inputs from 0 to 1 and a random loss, all of them the same at each call.
    """
    draws = torch.Generator().manual_seed(1)
    flat_1D = load.weights(load.agents.agents[:1])
    samples = min(load.samples, _SAMPLES)
    x_1IM = torch.rand(1, load.inputs + 1, samples, generator=draws)
    x_1IM[:, -1] = 1
    d_output_1KM = torch.randn(1, load.agents.action.n, samples, generator=draws)
    found: list[Tensor] = []
    precisions: tuple[Precision, ...] = ("float32", load.precision)
    for precision in precisions:
        net = load.nets(flat_1D.to(device), precision)
        net.forward(x_1IM.to(device), *load.resets(x_1IM.to(device)))
        net.backward(d_output_1KM.to(device))
        found.append(net.gradient_PD.cpu())
    exact, lower = found
    return float((lower - exact).norm() / exact.norm())
