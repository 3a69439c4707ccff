"""P recurrent nets, trained together: a perceptron, gated recurrent units (GRU) over T steps, and an output layer.

A step, with inputs x and memory h (torch.nn.GRU; Cho et al. 2014, §2.3, except for the position of r):
r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), n = tanh(W_n x + r ⊙ U_n h), h' = (1 − z) ⊙ n + z ⊙ h; W and U include
biases. Written by hand, so that only the recurrence is computed step by step, with one product forward and one
backward, by compiled kernels if there are some. Everything else, including the gradients of W and U, is computed for
all steps at once, in reused buffers.
Shapes: P nets, I inputs, H units, K outputs, G = 3·H gates, T steps, B copies, M = T·B samples, time-major.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.nets import kernels
from marless.learning.nets.compiled import GRU, library
from marless.learning.nets.layout import GATES, GRULayout
from marless.learning.nets.recurrent import StackedMemory, by_step


@dataclass(frozen=True)
class _Workspace:
    """Buffers for one number of steps and copies; some have the steps first, so that each step is contiguous."""

    recurrent: Tensor
    """[T, P, G, B], U h for all gates."""
    gates: Tensor
    """[T, P, G, B], r, z and n."""
    before: Tensor
    """[P, H + 1, M], memory before each step; the last row stays 1."""
    hidden: Tensor
    """[P, H + 1, M], memory after each step; the last row stays 1."""
    d_hidden: Tensor
    """[P, H, M], gradient of the loss with respect to `hidden`."""
    d_recurrent: Tensor
    """[P, G, M], gradient with respect to `recurrent`."""
    d_new: Tensor
    """[P, H, M], gradient with respect to the argument of n's tanh."""
    scratch: Tensor
    """[P, H, B], temporary values."""
    carry: Tensor
    """[P, H, B], gradient that a step passes to the one before."""
    output: Tensor
    """[P, K, M]."""
    panels: Tensor
    """Room for compiled kernels."""


class StackedGRU(StackedMemory[_Workspace]):
    """P recurrent nets; see `marless.learning.nets.stacked.Net`. Without `resets`, `forward` raises ValueError."""

    def __init__(self, layout: GRULayout, flat_PD: Tensor, activation: str) -> None:
        super().__init__(layout, flat_PD, activation)
        self._kernels = library() if kernels.suits(flat_PD) else None
        self._described: tuple[GRU, tuple[Tensor, ...]] | None = None

    def backward(self, d_output_PKM: Tensor) -> None:
        work, units = self._workspace(len(self._keep), self._keep.shape[3]), self.layout.units
        kernels.matmul(d_output_PKM, work.hidden.transpose(1, 2), out=self._d_output_PKH)
        kernels.matmul(self._output_PKH[:, :, :-1].transpose(1, 2), d_output_PKM, out=work.d_hidden)
        self._through_time(work)
        kernels.matmul(work.d_recurrent, work.before.transpose(1, 2), out=self._d_memory_PGH)
        d_gates_PGM = work.d_recurrent  # equal except for n, where r multiplies U h
        d_gates_PGM[:, 2 * units :] = work.d_new
        self._body.backward(d_gates_PGM)

    def _remember(self, input_PGM: Tensor, work: _Workspace, memory_PHB: Tensor | None) -> None:
        """Compute `gates`, `before` and `hidden` step by step, from the perceptron's outputs W x."""
        if self._kernels:
            self._described = self._describe(input_PGM, work, memory_PHB)
            self._kernels.gru_forward(self._described[0])
            return
        units, steps = self.layout.units, len(self._keep)
        input_r_z, input_n = by_step(input_PGM[:, : 2 * units], steps), by_step(input_PGM[:, 2 * units :], steps)
        before, remembered = by_step(work.before, steps), by_step(work.before[:, :-1], steps)
        hidden = by_step(work.hidden[:, :-1], steps)
        for t in range(steps):
            recurrent, gates = work.recurrent[t], work.gates[t]
            r_z, n = gates[:, : 2 * units], gates[:, 2 * units :]
            if t:
                torch.mul(hidden[t - 1], self._keep[t], out=remembered[t])
            elif memory_PHB is None:
                remembered[t].zero_()
            else:
                remembered[t].copy_(memory_PHB)
            kernels.matmul(self._memory_PGH, before[t], out=recurrent)
            kernels.sigmoid_(torch.add(input_r_z[t], recurrent[:, : 2 * units], out=r_z))
            kernels.tanh_(torch.addcmul(input_n[t], r_z[:, :units], recurrent[:, 2 * units :], out=n))
            torch.lerp(n, remembered[t], r_z[:, units:], out=hidden[t])

    def _through_time(self, work: _Workspace) -> None:
        """Back-propagate through time: complete `d_hidden`, and compute `d_recurrent` and `d_new`."""
        if self._kernels and self._described:
            self._kernels.gru_backward(self._described[0])
            return
        # gradient · (1 − y²) of a tanh y, and gradient · y · (1 − y) of a sigmoid y.
        to_tanh, to_sigmoid = torch.ops.aten.tanh_backward.grad_input, torch.ops.aten.sigmoid_backward.grad_input
        steps, units = len(self._keep), self.layout.units
        to_memory_PHG = self._memory_PGH[:, :, :-1].transpose(1, 2)
        d_hidden, d_new, d_recurrent = (by_step(x, steps) for x in (work.d_hidden, work.d_new, work.d_recurrent))
        d_r, d_z, d_n = (by_step(x, steps) for x in work.d_recurrent.chunk(GATES, dim=1))
        remembered, scratch = by_step(work.before[:, :-1], steps), work.scratch
        for t in range(steps - 1, -1, -1):
            r, z, n = work.gates[t].chunk(GATES, dim=1)
            to_tanh(d_hidden[t], n, grad_input=d_new[t])
            d_new[t].addcmul_(d_new[t], z, value=-1)
            torch.mul(d_new[t], r, out=d_n[t])
            torch.mul(d_new[t], work.recurrent[t, :, 2 * units :], out=scratch)
            to_sigmoid(scratch, r, grad_input=d_r[t])
            torch.sub(remembered[t], n, out=scratch).mul_(d_hidden[t])
            to_sigmoid(scratch, z, grad_input=d_z[t])
            if t:
                kernels.matmul(to_memory_PHG, d_recurrent[t], out=work.carry)
                # Where memory is reset, `keep` is 0: no gradient flows from an episode to the one before it.
                work.carry.addcmul_(d_hidden[t], z)
                d_hidden[t - 1].addcmul_(work.carry, self._keep[t])

    def _describe(
        self, input_PGM: Tensor, work: _Workspace, memory_PHB: Tensor | None
    ) -> tuple[GRU, tuple[Tensor, ...]]:
        """The arrays of a round for kernels.c, and those among them that nobody else keeps."""
        weights, keep = self._memory_PGH, self._keep
        # kernels.c gets addresses, which keep nothing alive: what is made here is returned, and held until `backward`.
        memory = None if memory_PHB is None else memory_PHB.contiguous()
        arrays = work.recurrent, work.gates, work.before, work.hidden, work.d_hidden, work.d_recurrent, work.d_new
        described = GRU(
            len(weights),
            self.layout.units,
            len(keep),
            keep.shape[3],
            weights.data_ptr(),
            weights.stride(0),
            input_PGM.data_ptr(),
            *input_PGM.stride()[:2],
            keep.data_ptr(),
            keep.stride(0),
            keep.stride(1) if keep.shape[1] > 1 else 0,
            None if memory is None else memory.data_ptr(),
            *(x.data_ptr() for x in (*arrays, work.panels)),
        )
        return described, (keep,) if memory is None else (keep, memory)

    def _made(self, steps: int, copies: int) -> _Workspace:
        stack, gates, _ = self._memory_PGH.shape
        units, samples, new = self.layout.units, steps * copies, self.gradient_PD.new_empty
        return _Workspace(
            recurrent=new(steps, stack, gates, copies),
            gates=new(steps, stack, gates, copies),
            before=new(stack, units + 1, samples).fill_(1),
            hidden=new(stack, units + 1, samples).fill_(1),
            d_hidden=new(stack, units, samples),
            d_recurrent=new(stack, gates, samples),
            d_new=new(stack, units, samples),
            scratch=new(stack, units, copies),
            carry=new(stack, units, copies),
            output=new(stack, self.layout.outputs, samples),
            panels=new((4 * units + 1) * self._kernels.width if self._kernels else 0),
        )
