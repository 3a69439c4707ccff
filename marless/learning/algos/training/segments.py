"""Arranges a round's segments for recurrent nets, with resets of the memory where an episode ended.

Shapes: N rows (agents, or one for the state), T time steps, B copies of all actors, S = T · B samples, K bootstrap
rows, I features + 1, J = T' · B frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.training.policy_batching import Stack
from marless.learning.nets import kernels


@dataclass(frozen=True)
class Segments:
    """The segments of a round, and its *frames*: samples in time-major order, with each bootstrap row right after the
    sample at which its episode was cut, so that a recurrent critic reaches it by one more step.

    Copies with fewer bootstrap rows than others have empty frames at the end.
    """

    steps: int
    """T."""
    copies: int
    """B."""
    first: Tensor
    """float32 [1, 1, S], 1 where memory is empty before a step: at the start of a segment, and after an episode."""
    first_frames: Tensor
    """The same for frames, [1, 1, J]."""
    own_first: Tensor
    """`first` of each agent, [N or 1, 1, S]: it is empty, too, where the agent comes back."""
    own_first_frames: Tensor
    """The same for frames, [N or 1, 1, J]."""
    source: Tensor
    """int64 [J], the sample of each frame, or S + k for bootstrap row k, or S + K for an empty frame."""
    at_sample: Tensor
    """int64 [S], the frame of each sample."""
    at_boot: Tensor
    """int64 [K], the frame of each bootstrap row."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Segments:
        """The segments of a round; see `marless.learning.algos.training.table` for the tensors."""
        cut_TB, boot_index_K = tensors["cut"], tensors["boot_index"]
        steps, copies = cut_TB.shape
        # Also where a segment continues an episode: policies start from `memory` whatever this says,
        # and critics from an empty one.
        first_TB = torch.ones_like(cut_TB)
        first_TB[1:] = cut_TB[:-1]
        boots_TB = torch.zeros_like(cut_TB, dtype=torch.int64)
        boots_TB.view(-1)[boot_index_K] = 1
        until_TB = boots_TB.cumsum(dim=0)
        number_S = torch.arange(steps * copies, device=cut_TB.device)
        # Each bootstrap row of a copy moves its later samples down by one time step; `until` counts the row of the
        # sample itself, too, which comes only after it.
        at_sample_S = number_S + copies * (until_TB - boots_TB).flatten()
        at_boot_K = at_sample_S[boot_index_K] + copies
        frames = copies * (steps + int(until_TB[-1].max()))
        samples, boots = len(at_sample_S), len(at_boot_K)
        source_J = torch.full((frames,), samples + boots, device=cut_TB.device)
        source_J[at_sample_S] = number_S
        source_J[at_boot_K] = samples + torch.arange(boots, device=cut_TB.device)
        first = first_TB.float().view(1, 1, -1)
        own_first = first
        if "returned" in tensors:
            own_first = (first_TB | tensors["returned"]).float().view(-1, 1, samples)
        return cls(
            steps=steps,
            copies=copies,
            first=first,
            first_frames=_at_frames(first, at_sample_S, frames),
            own_first=own_first,
            own_first_frames=_at_frames(own_first, at_sample_S, frames),
            source=source_J,
            at_sample=at_sample_S,
            at_boot=at_boot_K,
        )

    def frames(self, features_NIS: Tensor, boot_NIK: Tensor) -> Tensor:
        """Arrange samples and bootstrap rows as frames, [N, I, J]."""
        nothing_NI1 = features_NIS.new_zeros(*features_NIS.shape[:2], 1)
        all_NIF = torch.cat([features_NIS, boot_NIK, nothing_NI1], dim=2)
        frames_NIJ = features_NIS.new_empty(*features_NIS.shape[:2], len(self.source))
        kernels.take_columns(all_NIF, self.source, out=frames_NIJ)
        return frames_NIJ

    def resets(self, stack: Stack | None, agents: int) -> Tensor:
        """bool [rows, T', copies], resets of critics on the frames of a stack's members, see `Stack.seen`."""
        first = stack.seen(self.own_first_frames.expand(agents, -1, -1)) if stack else self.first_frames
        return first.reshape(len(first), len(self.source) // self.copies, -1) > 0


def _at_frames(first_x1S: Tensor, at_sample_S: Tensor, frames: int) -> Tensor:
    """The same for frames, [x, 1, J]; memory is never reset before bootstrap rows."""
    first_x1J = first_x1S.new_zeros(len(first_x1S), 1, frames)
    first_x1J[:, :, at_sample_S] = first_x1S
    return first_x1J
