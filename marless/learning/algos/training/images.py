"""The images of a round, read by their positions: bytes stay where the trajectories lie until a net sees a minibatch.

As float32, the images of a round would take four times their bytes, and a shuffled copy of them once more. So tables,
pools and minibatches have in the place of observations one number for each image, its *position*, and nets that read
images put the pixels in its place, scaled as actors scale them. Nets that read the last F images have F positions for
each observation: images are stacked where they are read. Shapes: N agents of the class, T time, b copies of an actor,
K bootstrap rows, O bytes of an image, P nets, R rows with positions, I with pixels, M samples, S pixels, C channels of
all frames, c of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.errors import SpecError
from marless.learning.data.trajectory import Trajectory, returned
from marless.learning.envs.base import FloatArray
from marless.learning.nets.compiled_images import library
from marless.learning.nets.inputs import WHITE
from marless.learning.nets.kinds import CONVOLUTIONAL
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.net_kind import InputShape
from marless.learning.nets.stacked import Net
from marless.learning.nets.unrolled import Unrolled

_MOST = 2**24
"""Positions are float32, as all features, and exact below this number."""
_AT_ONCE = 256
"""Samples whose pixels a net that is only evaluated sees at once."""
_PIECE = 64
"""Images that are transposed at once, so few that a core's cache holds them."""
Positions = NDArray[np.float32]


@dataclass(frozen=True)
class RoundImages:
    """All images that the agents of a class have observed in a round, actor by actor, as views of the trajectories."""

    parts: tuple[NDArray[np.uint8], ...]
    """[rows, O] without gaps, the arrays of each actor in which images are."""
    names: tuple[str, ...]
    """Names of these arrays, the same of each actor."""
    frames: int
    """F."""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], agent_class: int, frames: int = 1) -> RoundImages | None:
        """The images of a class; None if it observes vectors. Raises SpecError for more than can be numbered."""
        every = trajectories[0].arrays
        names = tuple(f"{name}/{agent_class}" for name in ("obs", "boot_obs", "before"))
        names = tuple(name for name in names if name in every)
        if every[names[0]].dtype != np.uint8:
            return None
        arrays = [t[name].reshape(-1, t[name].shape[-1]) for t in trajectories for name in names]
        parts = tuple(np.ascontiguousarray(each).view(np.uint8) for each in arrays)
        if (count := sum(map(len, parts))) > _MOST:
            raise SpecError(
                f"a round has {count:,} images of class {agent_class}, and a learner takes {_MOST:,}; lower "
                "actors.steps, actors.envs or actors.count"
            )
        return cls(parts, names, frames)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The position of the first image of each part, and the number of all."""
        return np.cumsum([0, *map(len, self.parts)])

    def positions(self, trajectories: Sequence[Trajectory], agent_class: int) -> list[tuple[Positions, Positions]]:
        """What nets read at the observations and at the bootstrap rows of each trajectory: the positions of F images,
        the oldest first, [T, N, b, F] and [N, K, F].
        """
        starts = self.starts[:-1].reshape(len(trajectories), -1).tolist()
        return [
            self._stacked(
                each,
                agent_class,
                *(
                    start + np.arange(prod(shape)).reshape(shape)
                    for start, shape in zip(mine, (each[name].shape[:-1] for name in self.names), strict=True)
                ),
            )
            for each, mine in zip(trajectories, starts, strict=True)
        ]

    def _stacked(
        self,
        trajectory: Trajectory,
        agent_class: int,
        now_TNB: NDArray[np.int64],
        boot_NK: NDArray[np.int64],
        before_XNB: NDArray[np.int64] | None = None,
    ) -> tuple[Positions, Positions]:
        begins_TNB = returned(trajectory.there(agent_class))
        begins_TNB[1:] |= trajectory["cut"][:-1, None].astype(np.bool_)
        seen = [now_TNB]
        for age in range(1, self.frames):
            older_TNB = np.empty_like(now_TNB)
            # Where an agent begins, all are its first image; elsewhere, what was `age - 1` steps old is one step older.
            older_TNB[1:] = np.where(begins_TNB[1:], now_TNB[1:], seen[-1][:-1])
            older_TNB[0] = now_TNB[0] if before_XNB is None else before_XNB[-age]
            seen.append(older_TNB)
        time_K, copy_K = np.divmod(trajectory["boot_index"].astype(np.int64), trajectory.batch)
        boots = [boot_NK, *(each[time_K, :, copy_K].T for each in seen[:-1])]
        obs_TNBF, boot_obs_NKF = (np.stack(each[::-1], axis=-1).astype(np.float32) for each in (seen, boots))
        return obs_TNBF, boot_obs_NKF

    def take(self, position_M: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these positions, [M, O]."""
        part_M = np.searchsorted(self.starts, position_M, "right") - 1
        used = np.unique(part_M)
        if len(used) == 1:
            taken_MO: NDArray[np.uint8] = self.parts[used[0]].take(position_M - self.starts[used[0]], axis=0)
            return taken_MO
        found_MO = np.empty((len(position_M), self.parts[0].shape[1]), np.uint8)
        for part in used:
            mine = np.flatnonzero(part_M == part)
            found_MO[mine] = self.parts[part].take(position_M[mine] - self.starts[part], axis=0)
        return found_MO

    def addresses(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in memory the images at these positions begin."""
        part = np.searchsorted(self.starts, position, "right") - 1
        begins: NDArray[np.int64] = self._begins[part] + (position - self.starts[part]) * self.parts[0].shape[1]
        return begins

    @cached_property
    def _begins(self) -> NDArray[np.int64]:
        return np.array([part.ctypes.data for part in self.parts])

    def scaled(self, position: NDArray[np.int64]) -> FloatArray:
        """The images at positions [..., F], float32 [..., F · O], as nets read them."""
        pixels: FloatArray = np.divide(self.take(position.ravel()), WHITE)
        return pixels.reshape(*position.shape[:-1], -1)


class ImageReader:
    """Reads the images of the round that a learner trains on; see `ShownImages`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._images: RoundImages | None = None
        self._store: Tensor | None = None

    def show(self, images: RoundImages | None) -> None:
        """Read from these from now on; None: from none, so that their memory is released."""
        self._images, self._store = images, None
        if images is not None and self._device.type != "cpu":
            self._store = torch.empty(int(images.starts[-1]), images.parts[0].shape[1], dtype=torch.uint8)
            np.concatenate(images.parts, out=self._store.numpy())
            self._store = self._store.to(self._device)

    @property
    def frames(self) -> int:
        return self._shown.frames

    @property
    def _shown(self) -> RoundImages:
        if self._images is None:
            raise ValueError("there is no round whose images could be read")
        return self._images

    def images(self, inputs: InputShape, x_PIM: Tensor) -> Tensor:
        """See `ShownImages`; no gradient flows to positions."""
        # Each image is found, scaled and put in order by one pass over its bytes.
        position_PMF = x_PIM[:, : self.frames].detach().transpose(1, 2)
        (nets, samples, frames), (channels, height, width) = position_PMF.shape, inputs.image or (0, 0, 0)
        form = channels // frames, height * width
        found_PMSFc = x_PIM.new_empty(nets, samples, height * width, frames, channels // frames)
        if self._store is not None:
            shown_PMFcS = self._store[position_PMF.long()].view(nets, samples, frames, *form)
            torch.div(shown_PMFcS.permute(0, 1, 4, 2, 3), float(WHITE), out=found_PMSFc)
        else:
            for position_MF, out_MSFc in zip(position_PMF.numpy().astype(np.int64), found_PMSFc, strict=True):
                self._interleave(position_MF, out_MSFc.numpy())
        return found_PMSFc.view(nets, samples, height, width, channels)

    def _interleave(self, position_MF: NDArray[np.int64], out_MSFc: FloatArray) -> None:
        """Write the images at these positions, scaled."""
        samples, pixels, frames, each = out_MSFc.shape
        if kernels := library():
            planes_MFc = self._shown.addresses(position_MF)[..., None] + pixels * np.arange(each)
            begins_MFc = np.ascontiguousarray(planes_MFc)  # it has its address alone
            kernels.interleave(samples, frames * each, pixels, begins_MFc.ctypes.data, out_MSFc.ctypes.data)
            return
        for age, position_M in enumerate(position_MF.T):
            shown_McS = self._shown.take(position_M).reshape(samples, each, pixels)
            np.divide(shown_McS.swapaxes(1, 2), WHITE, out=out_MSFc[:, :, age])

    def read(self, x_PRM: Tensor, layout: NetLayout, room: Tensor | None = None) -> Tensor:
        """The features [P, I, M] of nets of this layout, of features with positions, whose first rows they are.

        Convolutions and modules read each sample's pixels in one piece: for their nets, features are views of
        [P, M, I]. They are written to `room`, of as many numbers, if there is one.
        """
        (nets, rows, samples), frames = x_PRM.shape, self.frames
        pixels = self._shown.parts[0].shape[1]
        features, whole = frames * pixels + rows - frames, layout.image is not None
        if room is None:
            room = x_PRM.new_empty(nets * features * samples)
        found_PIM = room.view(nets, features, samples)
        if whole:
            found_PIM = room.view(nets, samples, features).transpose(1, 2)
        found_PIM[:, frames * pixels :] = x_PRM[:, frames:]
        for age in range(frames):
            self._write(x_PRM[:, age], found_PIM[:, age * pixels : (age + 1) * pixels])
        return found_PIM

    def _write(self, position_PM: Tensor, out_POM: Tensor) -> None:
        """Write the images at these positions, scaled."""
        if self._store is not None:
            shown_PMO = self._store[position_PM.long()]
            torch.div(shown_PMO.transpose(1, 2), float(WHITE), out=out_POM)
            return
        for position_M, out_OM in zip(position_PM.numpy().astype(np.int64), out_POM.numpy(), strict=True):
            for begun in range(0, len(position_M), _PIECE):
                piece = slice(begun, begun + _PIECE)
                np.divide(self._shown.take(position_M[piece]).T, WHITE, out=out_OM[:, piece])


def reading(net: Net, reader: ImageReader | None) -> Net:
    """The nets with positions of the images of `reader`, if there is one, in the place of pixels."""
    if reader is None:
        return net
    # Convolutions ask for their images, so these are read where they are convolved, in the threads of that. All others,
    # such as perceptrons and modules, find pixels among their inputs.
    if isinstance(net, Unrolled) and net.layout.kind in CONVOLUTIONAL:
        net.shown = reader
        return net
    return ReadingNet(net, reader)


class ReadingNet:
    """Stacked nets that read images: a `Net` whose features have positions in the place of pixels."""

    def __init__(self, net: Net, reader: ImageReader) -> None:
        self._net, self._reader = net, reader
        self.gradient_PD = net.gradient_PD
        self._room = net.gradient_PD.new_empty(0)

    @property
    def layout(self) -> NetLayout:
        return self._net.layout

    @property
    def activation(self) -> str:
        return self._net.activation

    @property
    def output_layer(self) -> Tensor:
        return self._net.output_layer

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        # The same memory for every minibatch: `backward` reads it, too, and `evaluate` leaves it alone.
        features_PIM, self._room = self._read(input_PIM, self._room)
        return self._net.forward(features_PIM, resets, memory)

    def backward(self, d_output_PKM: Tensor) -> None:
        self._net.backward(d_output_PKM)

    def release(self) -> None:
        self._room = self.gradient_PD.new_empty(0)
        self._net.release()

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        """See `Net`; a part of the samples at a time, whole segments of nets with memory."""
        steps, copies = (1, input_PIS.shape[2]) if resets is None else resets.shape[-2:]
        width, room, found = max(_AT_ONCE // steps, 1), self._room[:0], []
        input_PITB = input_PIS.view(*input_PIS.shape[:2], steps, copies)
        for b in range(0, max(copies, 1), width):  # without bootstrap rows, too, there is a result
            features_PIM, room = self._read(input_PITB[..., b : b + width].flatten(2), room)
            of_part = None if resets is None else resets[..., b : b + width].contiguous()
            output_PKM = self._net.evaluate(features_PIM, of_part)
            found.append(output_PKM.view(*output_PKM.shape[:2], steps, -1))
        return torch.cat(found, dim=3).flatten(2)

    def _read(self, input_PIM: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        """The features, and the memory that they are in: `room`, or a larger one."""
        numbers = input_PIM.shape[0] * (self.layout.inputs + 1) * input_PIM.shape[2]
        if room.numel() < numbers:
            room = input_PIM.new_empty(numbers)
        return self._reader.read(input_PIM, self.layout, room[:numbers]), room
