"""A contract test for kinds of nets: actors and learners compute the same, and its gradients are right.

For tests of marless and of other packages; see docs/extending/net.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marless.core.errors import MarlessError, require
from marless.learning.nets import acting_nets, stacked, unrolled
from marless.learning.nets.layout import FloatArray, NetLayout, layout_of
from marless.learning.nets.net_kind import InputShape

_NETS, _STEPS, _COPIES = 3, 4, 5
_VECTORS = (InputShape(4), InputShape(1))
_CLOSE = 2e-5
"""The largest difference between two ways to compute numbers in float32, as a share of the largest, or of 1."""


def check_net(name: str, *, hidden: tuple[int, ...] = (6, 6), inputs: Sequence[InputShape] = _VECTORS) -> None:
    """Compare the nets of a kind in actors, in learners and by differences; raises AssertionError, naming what differs.

    `name` is one of `marless.learning.nets.kinds`, or of an entry point, or "module/…"; `hidden` is `model.hidden`;
    `inputs` are what the nets read, such as images.
    """
    for activation in acting_nets.ACTIVATE:
        for number, shape in enumerate(inputs):
            trial = _Trial.made(name, hidden, shape, (3, 1)[number % 2], activation)
            trial.check_arrays()
            trial.check_columns()
            trial.check_acting()
            trial.check_gradient()
            trial.check_no_samples()


@dataclass(frozen=True)
class _Trial:
    """Nets with random weights, and inputs over some steps with episodes that end in between."""

    layout: NetLayout
    activation: str
    flat: Tensor
    """[P, D]."""
    input: Tensor
    """[P, I + 1, T · B]."""
    resets: Tensor
    """bool [T, B]."""
    where: str

    @classmethod
    def made(cls, name: str, hidden: tuple[int, ...], inputs: InputShape, outputs: int, activation: str) -> _Trial:
        rng = np.random.default_rng(7)
        where = f"net {name} with {activation}, {inputs.size} inputs, {outputs} outputs"
        layout = layout_of(name, inputs, hidden, outputs)
        flats = [layout.initial(rng, 1.0) for _ in range(_NETS)]
        require(all(each.shape == (layout.size,) for each in flats), f"{where}: its parameters have another size")
        # Biases are 0 at first: unchanged, a kind that forgets or mixes them up would pass.
        flat_PD = torch.tensor(np.stack(flats) + 0.1 * rng.standard_normal((_NETS, layout.size), np.float32))
        input_PIM = torch.tensor(rng.standard_normal((_NETS, inputs.size + 1, _STEPS * _COPIES), np.float32))
        input_PIM[:, -1] = 1.0
        resets_TB = torch.tensor(rng.random((_STEPS, _COPIES)) < 0.3)
        resets_TB[0] = True
        return cls(layout, activation, flat_PD, input_PIM, resets_TB, where)

    def check_arrays(self) -> None:
        """Weights survive the named arrays in which they are stored."""
        flat_D = self.flat[0].numpy()
        read_D = self.layout.from_arrays("policy", self.layout.to_arrays("policy", flat_D))
        require(np.array_equal(read_D, flat_D), f"{self.where}: its weights do not survive being stored")

    def check_acting(self) -> None:
        """An actor that plays the steps gets what a learner gets, with weights of its own and with shared ones."""
        trained_PKM = self._trained()
        close = _CLOSE * max(1.0, trained_PKM.abs().max().item())
        for shared in (False, True):
            acted_PKM = self._acted(shared)
            expected_PKM = self._trained(self.flat[:1].expand_as(self.flat)) if shared else trained_PKM
            error = np.abs(acted_PKM - expected_PKM.numpy()).max()
            where = f"{self.where}{', shared by all agents' if shared else ''}"
            require(error <= close, f"{where}: actors (NumPy) and learners (torch) differ by {error:.2g}")
        other = stacked.net(self.layout, self.flat.clone(), self.activation)
        error = (other.evaluate(self.input, self.resets) - trained_PKM).abs().max().item()
        require(error <= close, f"{self.where}: `evaluate` and `forward` of a learner differ by {error:.2g}")
        defined_PKM = unrolled.outputs(self.layout, self.flat, self.activation, self.input, self.resets)
        error = (defined_PKM - trained_PKM).abs().max().item()
        require(error <= close, f"{self.where}: a learner's net and its definition differ by {error:.2g}")

    def check_columns(self) -> None:
        """A net depends on its own weights, and on the inputs of its own copy up to this step."""
        before_PKM = self._trained()
        inputs_PIM = self.input.clone()
        inputs_PIM[:, :-1, _COPIES] += 1.0  # the first copy's second step
        moved_PKM = (self._trained(input_PIM=inputs_PIM) - before_PKM).abs() > 0
        may_M = torch.arange(_STEPS * _COPIES) >= _COPIES
        may_M &= torch.arange(_STEPS * _COPIES) % _COPIES == 0
        require(not moved_PKM[:, :, ~may_M].any(), f"{self.where}: copies, or steps, depend on later or other ones")
        flat_PD = self.flat.clone()
        flat_PD[0] += 1.0
        same = torch.equal(self._trained(flat_PD)[1:], before_PKM[1:])
        require(same, f"{self.where}: nets depend on one another's weights")

    def check_gradient(self) -> None:
        """The gradient that trains is that of the definition, by differences in float64 and by autograd."""
        net = stacked.net(self.layout, self.flat.clone(), self.activation)
        at_output_PKM = torch.cos(torch.arange(net.forward(self.input, self.resets).numel())).view(
            _NETS, self.layout.outputs, -1
        )
        net.backward(at_output_PKM)
        # The definition is differentiated in float64, because central differences of step
        # 1e-6 drown in float32's rounding.
        direction_PD = torch.tensor(np.random.default_rng(8).standard_normal(tuple(self.flat.shape)))
        step = 1e-6
        moved = (self.flat.double() + sign * step * direction_PD for sign in (1, -1))
        defined = (
            unrolled.outputs(self.layout, flat_PD, self.activation, self.input.double(), self.resets)
            for flat_PD in moved
        )
        one, other = ((output_PKM * at_output_PKM.double()).sum().item() for output_PKM in defined)
        expected, found = (one - other) / (2 * step), (net.gradient_PD.double() * direction_PD).sum().item()
        # Errors are compared with the sum of magnitudes: the terms of a directional
        # derivative may cancel to almost nothing.
        size = (net.gradient_PD.double().abs() * direction_PD.abs()).sum().item()
        require(abs(found - expected) <= 1e-3 * size, f"{self.where}: its gradient is {found:.6g}, not {expected:.6g}")

    def check_no_samples(self) -> None:
        """A minibatch without samples has no outputs, and a gradient of zeros."""
        net = stacked.net(self.layout, self.flat.clone(), self.activation)
        none_PI0, resets_T0 = self.input[:, :, :0], self.resets[:, :0]
        shape = (_NETS, self.layout.outputs, 0)
        require(net.evaluate(none_PI0, resets_T0).shape == shape, f"{self.where}: no samples have outputs")
        none_PK0 = net.forward(none_PI0, resets_T0)
        require(none_PK0.shape == shape, f"{self.where}: no samples have outputs")
        net.backward(none_PK0)
        require(not net.gradient_PD.any(), f"{self.where}: no samples have a gradient")

    def _trained(self, flat_PD: Tensor | None = None, input_PIM: Tensor | None = None) -> Tensor:
        net = stacked.net(self.layout, (self.flat if flat_PD is None else flat_PD).clone(), self.activation)
        try:
            return net.forward(self.input if input_PIM is None else input_PIM, self.resets).clone()
        except MarlessError:
            raise
        except (AssertionError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            raise AssertionError(f"{self.where}: it fails in torch: {error}") from error

    def _acted(self, shared: bool) -> FloatArray:
        flat_ND = self.flat[: 1 if shared else None].numpy()
        more = self.layout.acting_arrays("policy")
        owners = [{**self.layout.to_arrays("policy", flat_D), **more} for flat_D in flat_ND]
        net, _ = acting_nets.stacked(
            owners,
            kind=self.layout.kind,
            activation=self.activation,
            inputs=self.layout.input_shape,
            outputs=self.layout.outputs,
            free=0,
            hidden=self.layout.hidden,
        )
        buffer, found = net.allocate(_NETS, _COPIES), []
        for t in range(_STEPS):
            net.reset_memory(np.broadcast_to(self.resets[t].numpy(), (_NETS, _COPIES)))
            buffer[:] = self.input[:, :, t * _COPIES : (t + 1) * _COPIES].numpy()
            found.append(net.output())
        require(all(each.dtype == np.float32 for each in found), f"{self.where}: actors do not compute in float32")
        return np.concatenate(found, axis=2)
