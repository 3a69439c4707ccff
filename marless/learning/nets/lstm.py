"""P nets with long short-term memory, trained together: a perceptron, the memory over T steps, and an output layer.

The formulas are in `kinds.LongShortTermMemory`. Written by hand as `nets.gru`, so that only the recurrence is computed
step by step: with autograd's graph of single steps, a pass takes three to five times as long.
Shapes: P nets, I inputs, H units, K outputs, G = 4·H gates (i, f, g, o), T steps, B copies, M = T·B samples, time
major.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.nets import kernels
from marless.learning.nets.recurrent import StackedMemory, by_step


@dataclass(frozen=True)
class _Workspace:
    """Buffers for one number of steps and copies."""

    gates: Tensor
    """[P, G, M], after their non-linearities; `backward` replaces them by the gradients before these."""
    before: Tensor
    """[P, H + 1, M], outputs h before each step; the last row stays 1."""
    hidden: Tensor
    """[P, H + 1, M], outputs h after each step; the last row stays 1."""
    cells_before: Tensor
    """[P, H, M], c before each step."""
    bent: Tensor
    """[P, H, M], tanh c after each step."""
    d_hidden: Tensor
    """[P, H, M], gradient of the loss with respect to `hidden`."""
    output: Tensor
    """[P, K, M]."""


class StackedLSTM(StackedMemory[_Workspace]):
    """P recurrent nets; see `marless.learning.nets.stacked.Net`. Without `resets`, `forward` raises ValueError."""

    def backward(self, d_output_PKM: Tensor) -> None:
        """See `Net`. It can be called once after each `forward`, whose gates it replaces."""
        work = self._workspace(len(self._keep), self._keep.shape[3])
        kernels.matmul(d_output_PKM, work.hidden.transpose(1, 2), out=self._d_output_PKH)
        kernels.matmul(self._output_PKH[:, :, :-1].transpose(1, 2), d_output_PKM, out=work.d_hidden)
        self._through_time(work)
        kernels.matmul(work.gates, work.before.transpose(1, 2), out=self._d_memory_PGH)
        self._body.backward(work.gates)

    def _remember(self, input_PGM: Tensor, work: _Workspace, memory_PHB: Tensor | None) -> None:
        """Compute all of `work` but the gradient step by step, from the perceptron's outputs W x."""
        units, steps = self.layout.units, len(self._keep)
        inputs, gates = by_step(input_PGM, steps), by_step(work.gates, steps)
        before, hidden = by_step(work.before, steps), by_step(work.hidden[:, :-1], steps)
        cells_before, bent = by_step(work.cells_before, steps), by_step(work.bent, steps)
        recurrent = torch.empty_like(inputs[0], memory_format=torch.contiguous_format)
        cells = recurrent.new_zeros(len(recurrent), units, recurrent.shape[2])
        for t in range(steps):
            if t:
                torch.mul(hidden[t - 1], self._keep[t], out=before[t][:, :-1])
                torch.mul(cells, self._keep[t], out=cells_before[t])
            elif memory_PHB is None:
                before[t][:, :-1].zero_()
                cells_before[t].zero_()
            else:
                before[t][:, :-1].copy_(memory_PHB[:, :units])
                cells_before[t].copy_(memory_PHB[:, units:])
            kernels.matmul(self._memory_PGH, before[t], out=recurrent)
            torch.add(inputs[t], recurrent, out=gates[t])
            kernels.sigmoid_(gates[t][:, : 2 * units])
            kernels.tanh_(gates[t][:, 2 * units : 3 * units])
            kernels.sigmoid_(gates[t][:, 3 * units :])
            add, keep, new, show = gates[t].chunk(4, dim=1)
            torch.mul(keep, cells_before[t], out=cells).addcmul_(add, new)
            bent[t].copy_(cells)
            kernels.tanh_(bent[t])
            torch.mul(show, bent[t], out=hidden[t])

    def _through_time(self, work: _Workspace) -> None:
        """Back-propagate through time: complete `d_hidden`, and replace `gates` by the gradients before them."""
        # gradient · (1 − y²) of a tanh y, and gradient · y · (1 − y) of a sigmoid y.
        to_tanh, to_sigmoid = torch.ops.aten.tanh_backward.grad_input, torch.ops.aten.sigmoid_backward.grad_input
        steps, to_hidden_PHG = len(self._keep), self._memory_PGH[:, :, :-1].transpose(1, 2)
        gates, d_hidden = by_step(work.gates, steps), by_step(work.d_hidden, steps)
        cells_before, bent = by_step(work.cells_before, steps), by_step(work.bent, steps)
        d_cells = torch.zeros_like(d_hidden[0], memory_format=torch.contiguous_format)
        at_cells, carry, d_keep, d_new = (torch.empty_like(d_cells) for _ in range(4))
        for t in range(steps - 1, -1, -1):
            add, keep, new, show = gates[t].chunk(4, dim=1)
            torch.mul(d_hidden[t], show, out=carry)
            d_cells += to_tanh(carry, bent[t], grad_input=at_cells)
            torch.mul(d_cells, cells_before[t], out=d_keep)
            torch.mul(d_cells, add, out=d_new)
            torch.mul(d_hidden[t], bent[t], out=carry)
            to_sigmoid(carry, show, grad_input=show)
            torch.mul(d_cells, new, out=carry)
            to_sigmoid(carry, add, grad_input=add)
            to_tanh(d_new, new, grad_input=new)
            d_cells *= keep
            to_sigmoid(d_keep, keep, grad_input=keep)
            if t:
                # Where memory is reset, `keep` is 0: no gradient flows from an episode to the one before it.
                d_cells *= self._keep[t]
                kernels.matmul(to_hidden_PHG, gates[t], out=carry)
                d_hidden[t - 1].addcmul_(carry, self._keep[t])

    def _made(self, steps: int, copies: int) -> _Workspace:
        stack, gates, _ = self._memory_PGH.shape
        units, samples, new = self.layout.units, steps * copies, self.gradient_PD.new_empty
        return _Workspace(
            gates=new(stack, gates, samples),
            before=new(stack, units + 1, samples).fill_(1),
            hidden=new(stack, units + 1, samples).fill_(1),
            cells_before=new(stack, units, samples),
            bent=new(stack, units, samples),
            d_hidden=new(stack, units, samples),
            output=new(stack, self.layout.outputs, samples),
        )
