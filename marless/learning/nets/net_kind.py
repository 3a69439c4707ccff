"""What a kind of net is: a definition, written once, that actors compute with NumPy and learners with torch.

See docs/extending/net.md. The kinds of marless are in `nets.kinds`. Imports no NumPy.
Shapes: P nets, I inputs, H numbers of memory (0 without), K outputs, M columns (samples, or copies of the environment).
Images are [P, M, height, width, channels].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:  # at run time it would import NumPy into those who only read what a job says
    from marless.learning.envs.base import Entities

Array: TypeAlias = Any
"""A NumPy array or a torch tensor, float32; both know +, −, ·, /, slices, `reshape` and `swapaxes`."""


@dataclass(frozen=True)
class InputShape:
    """What a net reads: how many numbers, and what is known of their form."""

    size: int
    """I, of all inputs: the observation, then others (the last action, the agent's id)."""
    image: tuple[int, int, int] | None = None
    """(channels, height, width) where the first inputs are the numbers of an image, in this order."""
    entities: tuple[Entities, ...] = ()
    """Where the inputs describe other agents, units or marks, one block of numbers for each."""
    positions: int = 0
    """How many inputs say where the image is, in the place of its numbers; 0 where these are among the inputs."""

    @property
    def pixels(self) -> int:
        """How many inputs are those of the image, or say where it is; 0 without."""
        return self.positions or (0 if self.image is None else prod(self.image))

    def images(self, x: Array) -> Array:
        """A view of the images that inputs [P, I, M] begin with."""
        channels_first = x[:, : self.pixels].swapaxes(1, 2).reshape(x.shape[0], x.shape[2], *(self.image or (0, 0, 0)))
        return channels_first.swapaxes(2, 3).swapaxes(3, 4)


@dataclass(frozen=True)
class Window:
    """A square that slides over an image, of `size` pixels on a side, `stride` pixels at a step."""

    size: int
    stride: int = 1
    padding: int = 0
    """Pixels that are added to the image on each side: zeros, or what no maximum takes."""

    @property
    def area(self) -> int:
        """Pixels of the square."""
        return self.size * self.size

    def steps(self, length: int) -> int:
        """How many places it has along a side of this many pixels; below 1 if it does not fit."""
        return (length + 2 * self.padding - self.size) // self.stride + 1


@dataclass(frozen=True)
class Layer:
    """W x + b with the weights and the bias of each net, [P, inputs, M] → [P, outputs, M]."""

    matrix: Array
    """[P, outputs, inputs + 1]; its last column is the bias. A convolution's inputs are (row, column, channel)."""

    def __call__(self, x: Array) -> Array:
        found = self.matrix[:, :, :-1] @ x
        found += self.matrix[:, :, -1:]
        return found


@dataclass(frozen=True)
class Ops:
    """What layers do not do, in NumPy or in torch."""

    inputs: InputShape
    """What this net reads."""
    activate: Callable[[Array], Array]
    """The job's `model.activation`."""
    tanh: Callable[[Array], Array]
    sigmoid: Callable[[Array], Array]
    exp: Callable[[Array], Array]
    join: Callable[[Sequence[Array]], Array]
    """Concatenate [P, Aᵢ, M] along their second axis."""
    largest: Callable[[Array, int], Array]
    """The maximum along an axis, which disappears."""
    choose: Callable[[Array, Array, float], Array]
    """An array where a mask is true, and a number elsewhere."""
    images: Callable[[Array], Array]
    """The images that the inputs [P, I, M] begin with. No gradient flows to them."""
    convolve: Callable[[Layer, Array, Window], Array]
    """The layer at each place of the window in images: its inputs are the square's pixels, its outputs channels."""
    pool: Callable[[Array, Window], Array]
    """The maximum of each channel at each place of the window in images."""


def flattened(images: Array) -> Array:
    """The numbers of images as [P, height · width · channels, M], in this order."""
    # Not −1, which is ambiguous where there are no samples.
    return images.reshape(*images.shape[:2], prod(images.shape[2:])).swapaxes(1, 2)


class NetKind(Protocol):
    """A kind of net: its matrices, its memory, and one step of it."""

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        """(outputs, inputs) of each layer, in the order in which `step` gets them; the last one is the output layer.

        `hidden` is the job's `model.hidden`. Initial weights are orthogonal, with gain √2 (the output layer has one of
        its own). Biases are 0; those of hidden layers are random in most off-policy algorithms. Raises SpecError for
        inputs that this kind cannot read.
        """

    def memory(self, hidden: tuple[int, ...]) -> int:
        """H, numbers that a net remembers of each episode; 0 for nets without memory."""

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        """Outputs [P, K, M] and the next memory [P, H, M], for inputs [P, I, M] and the memory, zeros at first.

        Without memory, `memory` is [P, 0, M], and is returned as it came. No array that was given may be changed.
        """
