"""P nets with memory, trained together: a perceptron, gated recurrent units over T steps, and an output layer.

A step, with inputs x and memory h (torch.nn.GRU; Cho et al. 2014, §2.3, but for where r acts):
r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), n = tanh(W_n x + r ⊙ U_n h), h' = (1 − z) ⊙ n + z ⊙ h; W and U hold biases.
Why by hand: only what depends on the step before runs step by step, with one product forward and one backward; all
else, the products for the gradients of W and U too, is done for all steps at once, in buffers that are kept.
Shapes: P nets, I inputs, H units, K outputs, G = 3·H gates, T steps, B copies, M = T·B samples, time-major.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marless.nets import kernels
from marless.nets.layout import GATES, GRULayout
from marless.nets.stacked import WORKSPACES, Activation, StackedMLP, matrices


@dataclass(frozen=True)
class _Workspace:
    """Buffers for one number of steps and copies."""

    recurrent: Tensor
    """[P, G, M]: what memory adds to the gates; backward, the loss's gradient there."""
    before: Tensor
    """[P, H + 1, M]: what is remembered when a step begins; the last row stays 1."""
    hidden: Tensor
    """[P, H + 1, M]: what is remembered after it; the last row stays 1."""
    d_hidden: Tensor
    """[P, H, M]: the loss's gradient there."""
    new_slope: Tensor
    """[P, H, M]: ∂h'/∂(W_n x)."""
    carry: Tensor
    """[P, H, B]: the gradient that a step hands to the one before."""
    output: Tensor
    """[P, K, M]."""


class StackedGRU:
    """P nets with memory; see `marless.nets.stacked.Net`. They cannot do without `resets`: ValueError."""

    def __init__(self, layout: GRULayout, flat_PD: Tensor, activation: Activation) -> None:
        self.layout = layout
        self.gradient_PD = torch.zeros_like(flat_PD)
        self.activation: Activation = activation
        below = slice(layout.body.size)
        self._body = StackedMLP(layout.body, flat_PD[:, below], activation, self.gradient_PD[:, below])
        *_, self._memory_PGH, self._output_PKH = matrices(layout, flat_PD)
        *_, self._d_memory_PGH, self._d_output_PKH = matrices(layout, self.gradient_PD)
        self._workspaces: dict[tuple[int, int], _Workspace] = {}
        self._gates_PGM = flat_PD.new_empty(0)
        self._keep_TB = flat_PD.new_empty(0, 0)

    @property
    def output_layer(self) -> Tensor:
        """See `Net`."""
        return self._output_PKH

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None) -> Tensor:
        """See `Net`."""
        if resets is None or resets.dim() != 2 or resets.numel() != input_PIM.shape[2]:
            found = "none" if resets is None else list(resets.shape)
            raise ValueError(f"nets with memory need resets [T, B] for {input_PIM.shape[2]} samples T·B, got {found}")
        self._keep_TB = (~resets).to(input_PIM.dtype)
        self._gates_PGM = self._body.forward(input_PIM)
        work = self._workspace(*resets.shape)
        self._remember(work)
        kernels.matmul(self._output_PKH, work.hidden, out=work.output)
        return work.output

    def backward(self, d_output_PKM: Tensor) -> None:
        """See `Net`."""
        work, units = self._workspace(*self._keep_TB.shape), self.layout.units
        kernels.matmul(d_output_PKM, work.hidden.transpose(1, 2), out=self._d_output_PKH)
        kernels.matmul(self._output_PKH[:, :, :-1].transpose(1, 2), d_output_PKM, out=work.d_hidden)
        self._slopes(work)
        self._through_time(work)
        kernels.matmul(work.recurrent, work.before.transpose(1, 2), out=self._d_memory_PGH)
        d_gates_PGM = work.recurrent  # equal but for n: r stands between it and what memory adds
        torch.mul(work.d_hidden, work.new_slope, out=d_gates_PGM[:, 2 * units :])
        self._body.backward(d_gates_PGM)

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        """See `Net`."""
        return self.forward(input_PIS, resets).clone()

    def _remember(self, work: _Workspace) -> None:
        """Fill `before` and `hidden` step by step; gates become r, z and n."""
        units, steps = self.layout.units, self._keep_TB.shape[0]
        r_z, r, z, n = (
            _by_step(self._gates_PGM[:, a * units : b * units], steps) for a, b in ((0, 2), (0, 1), (1, 2), (2, 3))
        )
        at_gates = _by_step(work.recurrent, steps)
        at_r_z, at_n = (_by_step(work.recurrent[:, rows], steps) for rows in (slice(2 * units), slice(2 * units, None)))
        before, remembered = _by_step(work.before, steps), _by_step(work.before[:, :-1], steps)
        hidden = _by_step(work.hidden[:, :-1], steps)
        for t in range(steps):
            if t:
                torch.mul(hidden[t - 1], self._keep_TB[t], out=remembered[t])
            else:
                remembered[t].zero_()
            kernels.matmul(self._memory_PGH, before[t], out=at_gates[t])
            kernels.sigmoid_(r_z[t].add_(at_r_z[t]))
            kernels.tanh_(n[t].addcmul_(r[t], at_n[t]))
            torch.lerp(n[t], remembered[t], z[t], out=hidden[t])

    def _slopes(self, work: _Workspace) -> None:
        """∂h'/∂(U h), gate by gate, in place of `recurrent`, and `new_slope`, of all steps at once."""
        r, z, n = self._gates_PGM.chunk(GATES, dim=1)
        at_r, at_z, at_n = work.recurrent.chunk(GATES, dim=1)
        torch.mul(1 - z, 1 - n.square(), out=work.new_slope)
        torch.mul(work.new_slope * at_n, r * (1 - r), out=at_r)
        torch.mul(work.before[:, :-1] - n, z * (1 - z), out=at_z)
        torch.mul(work.new_slope, r, out=at_n)

    def _through_time(self, work: _Workspace) -> None:
        """Complete `d_hidden` from the last step to the first; the slopes in `recurrent` become gradients."""
        steps, units = self._keep_TB.shape[0], self.layout.units
        to_memory_PHG = self._memory_PGH[:, :, :-1].transpose(1, 2)
        d_hidden, d_gates = _by_step(work.d_hidden, steps), _by_step(work.recurrent, steps)
        by_gate = _by_step(work.recurrent.view(-1, GATES, units, work.recurrent.shape[2]), steps)
        z = _by_step(self._gates_PGM[:, units : 2 * units], steps)
        for t in range(steps - 1, -1, -1):
            by_gate[t].mul_(d_hidden[t].unsqueeze(1))
            if t:
                kernels.matmul(to_memory_PHG, d_gates[t], out=work.carry)
                work.carry.addcmul_(d_hidden[t], z[t])
                d_hidden[t - 1].addcmul_(work.carry, self._keep_TB[t])

    def _workspace(self, steps: int, copies: int) -> _Workspace:
        if (steps, copies) not in self._workspaces:
            if len(self._workspaces) == WORKSPACES:
                del self._workspaces[next(iter(self._workspaces))]
            self._workspaces[steps, copies] = self._buffers(steps * copies, copies)
        return self._workspaces[steps, copies]

    def _buffers(self, samples: int, copies: int) -> _Workspace:
        stack, gates, _ = self._memory_PGH.shape
        units, new = self.layout.units, self.gradient_PD.new_empty
        return _Workspace(
            recurrent=new(stack, gates, samples),
            before=new(stack, units + 1, samples).fill_(1),
            hidden=new(stack, units + 1, samples).fill_(1),
            d_hidden=new(stack, units, samples),
            new_slope=new(stack, units, samples),
            carry=new(stack, units, copies),
            output=new(stack, self.layout.outputs, samples),
        )


def _by_step(x: Tensor, steps: int) -> tuple[Tensor, ...]:
    """Views [..., B] of the columns of each step."""
    return x.view(*x.shape[:-1], steps, -1).unbind(-2)
