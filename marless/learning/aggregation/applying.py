"""Applies aggregated gradients to a published state: NumPy, so that it needs no learner and no torch.

Adam divides a gradient by its running size. If every gradient is multiplied by one small weight, Adam divides that
weight out again, and the step is as long as before. So a weight must act on the *step*. For gradients g_i of weights
w_i, i = 1 … H:

    ĝ = Σ w_i g_i / Σ w_i    the direction: stale gradients count less than fresh ones
    s = (1/H) Σ w_i          the length: all of them stale, and the step is shorter
    θ ← θ − s · lr · A(ĝ)    A: the direction of Adam, whose moments see ĝ, at the usual scale

With plain gradient descent, A(g) = g, this is Yu et al. 2024 to the letter: θ ← θ − (lr/H) Σ w_i g_i. The other form,
(1/H) Σ w_i A(g_i), was left out: each g_i alone is noisier than their mean, Adam's division by its size makes a step of
full length of it, and the moments would have to be those before all of them, or depend on the order. With
`step: separate` each gradient is a step of Adam of its own, of length w_i · lr and in order of arrival, as in the
public code of that paper.

For stacks of nets in torch, `marless.learning.nets.adam` has the same Adam, `algos.training.advantages` the same units
of a critic's values, and `marless.learning.nets.layout` the same flat vector: a matrix [outputs, inputs + 1] for each
weight and bias, those of a memory after their layer, then free parameters.
Shapes: K outputs of the critic, D parameters; moments are (Σw, Σw·x, Σw·x²), float64 [K, 3].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.core.state import Arrays, NetStep, PolicyState
from marless.learning.nets.layout import MEMORY, FloatArray, checked
from marless.learning.nets.module_layout import PARAMETERS
from marless.learning.nets.normalising import SEEN
from marless.learning.nets.serial import not_finite

Moments = NDArray[np.float64]
BETA1, BETA2 = 0.9, 0.999
_LEAST_STD, _ROUNDING = 1e-4, 2.0**-22
"""Least deviation of returns, and as a share of their mean: returns are float32."""
_RETURNS = "returns"
_WEIGHT, _BIAS, _FREE, _MODULE = ".weight", ".bias", ".free", f".{PARAMETERS}"


@dataclass(frozen=True)
class Combined:
    """Several gradients as one."""

    gradient: Arrays
    """Σ w_i g_i / Σ w_i, array by array."""
    scale: float
    """(1/H) Σ w_i, the length of the step; 1 if all are fresh."""


def combine(gradients: Sequence[Arrays], weights: Sequence[float]) -> Combined:
    """Combine gradients of the same arrays; see the module's docstring. Sums are of float64, in the given order.

    Raises ValueError for no gradients, as many weights as not, and weights that are not above 0; CorruptError for
    gradients with other arrays than the first.
    """
    if not gradients or len(gradients) != len(weights) or not all(each > 0 for each in weights):
        raise ValueError(f"{len(gradients)} gradients need as many weights above 0, got {list(weights)}")
    total = sum(weights)
    if len(gradients) == 1:
        # One gradient is its own mean: not a bit of it changes on the way through float64.
        return Combined(gradients[0], weights[0])
    mean = {}
    for name, first in gradients[0].items():
        mixed = np.zeros(first.shape)
        for each, weight in zip(gradients, weights, strict=True):
            if each.keys() != gradients[0].keys() or each[name].shape != first.shape:
                raise CorruptError(f"gradients of {sorted(each)} and of {sorted(gradients[0])} cannot be averaged")
            mixed += np.multiply(each[name], weight / total, dtype=np.float64)
        mean[name] = mixed.astype(first.dtype)
    return Combined(mean, total / len(weights))


def applied(
    state: PolicyState,
    gradients: Sequence[Arrays],
    weights: Sequence[float],
    steps: Mapping[str, NetStep],
    *,
    separate: bool = False,
) -> PolicyState:
    """The state after one aggregation.

    Args:
        state: One version, as a learner publishes it; it does not change.
        gradients: Of this state's name, as `Learner.gradients` gives them (`GradientOutput.gradients`).
        weights: One each, in (0, 1].
        steps: The step of each prefix; see `AlgorithmConfig.net_steps`.
        separate: One step for each gradient, instead of one for their mean.

    A single gradient of weight 1 gives what `Learner.apply` gives, up to the rounding of float32. Raises CorruptError
    for gradients that do not fit the state.
    """
    check(state, gradients, steps)
    nets = {prefix: _Net.of(state, prefix) for prefix in _prefixes(state, steps)}
    parts = [(gradients, weights)]
    if separate:
        parts = [([gradient], [weight]) for gradient, weight in zip(gradients, weights, strict=True)]
    for part in starmap(combine, parts):
        for prefix, net in nets.items():
            net.step(part, steps[prefix])
    acting, learning = dict(state.acting), dict(state.learning)
    for net in nets.values():
        net.write(acting, learning)
    return PolicyState(acting, learning, state.metadata)


def check(state: PolicyState, gradients: Sequence[Arrays], steps: Mapping[str, NetStep]) -> None:
    """Raise CorruptError unless gradients have the arrays that a step of this state needs, all of them finite."""
    expected: dict[str, tuple[tuple[int, ...], str]] = {}
    for prefix in _prefixes(state, steps):
        expected[prefix] = (Matrices.of(prefix, _weights(state, prefix)).size,), "float32"
        if steps[prefix].returns is not None:
            if (moments := state.learning.get(f"{prefix}.moments")) is None:
                raise CorruptError(f"policy state: {prefix!r} has no moments of returns for its step to follow")
            expected[f"{prefix}.{_RETURNS}"] = moments.shape, "float64"
        if (seen := _weights(state, prefix).get(f"{prefix}.{SEEN}")) is not None:
            expected[f"{prefix}.{SEEN}"] = seen.shape, "float64"
    for gradient in gradients:
        found = {name: (array.shape, array.dtype.name) for name, array in gradient.items()}
        if found != expected:
            raise CorruptError(f"a gradient has {found}, and its policy needs {expected}")
        if odd := not_finite(gradient):
            raise CorruptError(f"a gradient's array {odd!r} holds NaN or infinite values")


@dataclass
class _Net:
    """The parameters and the optimizer's state of one net, changed in place."""

    matrices: Matrices
    acts: bool
    flat: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    count: int
    moments: NDArray[np.float64] | None
    target: NDArray[np.float32] | None
    seen: NDArray[np.float64] | None
    """Statistics of normalised inputs; None if inputs are as they are."""

    @classmethod
    def of(cls, state: PolicyState, prefix: str) -> _Net:
        weights, learning = _weights(state, prefix), state.learning
        matrices = Matrices.of(prefix, weights)
        size = (matrices.size,)
        moments = learning.get(f"{prefix}.moments")
        outputs = next((outputs for outputs, _ in reversed([*matrices.shapes.values()])), None)  # not known of a module
        if moments is not None and (moments.shape[1:] != (3,) or outputs not in {None, len(moments)}):
            raise CorruptError(
                f"policy state: {prefix}.moments is of shape {list(moments.shape)}, expected {[outputs or 'K', 3]}"
            )
        count, seen = learning[f"{prefix}.count"], weights.get(f"{prefix}.{SEEN}")
        if count.shape != () or count.dtype.kind not in "iu":
            what = f"{count.dtype}{list(count.shape)}"
            raise CorruptError(f"policy state: {prefix}.count is {what}, expected a whole number")
        return cls(
            matrices=matrices,
            acts=weights is state.acting,
            flat=matrices.flat(weights),
            # Moments are changed in place, and the state is a published version. A target is replaced instead.
            first=checked(learning, f"{prefix}.first", size).copy(),
            second=checked(learning, f"{prefix}.second", size).copy(),
            count=int(count),
            moments=None if moments is None else moments.astype(np.float64),
            target=checked(learning, f"{prefix}.target", size) if f"{prefix}.target" in learning else None,
            seen=None if seen is None else seen.astype(np.float64, copy=True),
        )

    def step(self, part: Combined, step: NetStep) -> None:
        """Take one step; the critic's units follow the returns first."""
        prefix = self.matrices.prefix
        if step.returns is not None and self.moments is not None:
            batch_K3 = part.gradient[f"{prefix}.{_RETURNS}"].astype(np.float64)
            before, self.moments = self.moments, updated_moments(self.moments, batch_K3, step.returns.decay)
            if step.returns.popart:
                rescale_(self.matrices.output_layer(self.flat), before, self.moments)
        # A copy, even of float32: its norm is limited in place, and the gradient is the caller's.
        gradient_D = part.gradient[prefix].astype(np.float32)
        clip_norm_(gradient_D, step.max_grad_norm)
        self.count += 1
        lr = part.scale * step.lr
        adam_(self.flat, self.first, self.second, self.count, gradient_D, lr=lr, eps=step.eps)
        if step.target_steps is not None and self.count % step.target_steps == 0:
            self.target = self.flat.copy()
        if self.seen is not None:
            self.seen += part.gradient[f"{prefix}.{SEEN}"].astype(np.float64)

    def write(self, acting: dict[str, NDArray[np.generic]], learning: dict[str, NDArray[np.generic]]) -> None:
        """Put the arrays into the parts of a state, in place of the present ones."""
        prefix = self.matrices.prefix
        (acting if self.acts else learning).update(self.matrices.named(self.flat))
        learning[f"{prefix}.first"], learning[f"{prefix}.second"] = self.first, self.second
        learning[f"{prefix}.count"] = np.array(self.count, np.int64)
        if self.moments is not None:
            learning[f"{prefix}.moments"] = self.moments
        if self.target is not None:
            learning[f"{prefix}.target"] = self.target
        if self.seen is not None:
            (acting if self.acts else learning)[f"{prefix}.{SEEN}"] = self.seen


def _prefixes(state: PolicyState, steps: Mapping[str, NetStep]) -> list[str]:
    """The nets of a state that take a step; raises CorruptError if there are none."""
    found = [prefix for prefix in steps if f"{prefix}.count" in state.learning]
    if not found:
        raise CorruptError(f"policy state: it has no optimizer of any of {sorted(steps)}")
    return found


def _weights(state: PolicyState, prefix: str) -> Arrays:
    """The part of a state that has the weights of a net: actors need those of policies only."""
    return state.acting if any(name.startswith(f"{prefix}.") for name in state.acting) else state.learning


def clip_norm_(gradient_D: NDArray[np.float32], limit: float) -> float:
    """Scale a gradient in place to an L2 norm of at most `limit`; returns the norm before."""
    norm = float(np.linalg.norm(gradient_D))
    if norm > limit:
        gradient_D *= np.float32(limit / norm)
    return norm


def adam_(
    flat_D: NDArray[np.float32],
    first_D: NDArray[np.float32],
    second_D: NDArray[np.float32],
    count: int,
    gradient_D: NDArray[np.float32],
    *,
    lr: float,
    eps: float,
) -> None:
    """One step in place; `count` is the number of steps with this one.

    m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², θ ← θ − lr · (m / c₁) / (√(v / c₂) + ε), c = 1 − β^count. Source: Kingma
    & Ba 2015, algorithm 1. As in `marless.learning.nets.adam`, the corrections are folded into two constants.
    """
    correction1, correction2 = 1 - BETA1**count, 1 - BETA2**count
    first_D += np.float32(1 - BETA1) * (gradient_D - first_D)
    second_D *= np.float32(BETA2)
    second_D += np.float32(1 - BETA2) * np.square(gradient_D)
    denominator_D = np.sqrt(second_D)
    denominator_D *= np.float32(correction1 / math.sqrt(correction2))
    denominator_D += np.float32(correction1 * eps)
    flat_D -= np.float32(lr) * (first_D / denominator_D)


def updated_moments(moments_K3: Moments, batch_K3: Moments, decay: float) -> Moments:
    """Exponentially weighted moments after one more batch; an output without weight in it keeps its own."""
    updated_K3 = decay * moments_K3 + (1 - decay) * batch_K3
    return np.where(batch_K3[:, :1] > 0, updated_K3, moments_K3)


def mean_and_std(moments_K3: Moments) -> tuple[Moments, Moments]:
    """Mean and standard deviation, each [K, 1]; 0 and 1 before the first batch."""
    total_K1, first_K1, second_K1 = np.split(moments_K3, 3, axis=1)
    seen_K1 = total_K1 > 0
    safe_K1 = np.where(seen_K1, total_K1, 1.0)
    mean_K1 = first_K1 / safe_K1
    least_K1 = np.maximum(_ROUNDING * np.abs(mean_K1), _LEAST_STD)
    std_K1 = np.maximum(np.sqrt(np.maximum(second_K1 / safe_K1 - np.square(mean_K1), 0.0)), least_K1)
    return mean_K1, np.where(seen_K1, std_K1, 1.0)


def rescale_(layer_KH: NDArray[np.float32], before_K3: Moments, after_K3: Moments) -> None:
    """Rescale an output layer [K, inputs + 1] in place, so that values in units of the reward stay as they are.

    Source: van Hasselt et al. 2016, eq. 7-9.
    """
    (mean_K1, std_K1), (new_mean_K1, new_std_K1) = mean_and_std(before_K3), mean_and_std(after_K3)
    layer_KH *= (std_K1 / new_std_K1).astype(np.float32)
    layer_KH[:, -1:] += ((mean_K1 - new_mean_K1) / new_std_K1).astype(np.float32)


@dataclass(frozen=True)
class Matrices:
    """The matrices of one net in the order of its flat vector."""

    prefix: str
    shapes: Mapping[str, tuple[int, int]]
    """(outputs, inputs + 1) by name, such as `policy.0`."""
    free: int
    """Number of further parameters, at the end."""
    module: int = 0
    """Number of parameters of a module of torch, which has no matrices."""

    @classmethod
    def of(cls, prefix: str, arrays: Arrays) -> Matrices:
        """The arrays of the net whose named arrays begin with `prefix.`; raises CorruptError if there are none."""
        names = [name.removesuffix(_WEIGHT) for name in arrays if name.startswith(f"{prefix}.")]
        names = [name for name in names if name + _WEIGHT in arrays]
        shapes: dict[str, tuple[int, int]] = {}
        for name in sorted(names, key=lambda each: _place(each, prefix)):
            shape = arrays[name + _WEIGHT].shape
            if len(shape) != 2:
                raise CorruptError(f"policy state: {name}{_WEIGHT} is of shape {list(shape)}, expected two axes")
            shapes[name] = (shape[0], shape[1] + 1)
        module, free = (arrays.get(prefix + part) for part in (_MODULE, _FREE))
        if bool(shapes) == (module is not None):
            raise CorruptError(f"policy state: it has no weights of {prefix!r}, or those of two nets")
        return cls(prefix, shapes, *(0 if each is None else each.size for each in (free, module)))

    @property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return sum(outputs * inputs for outputs, inputs in self.shapes.values()) + self.module + self.free

    def flat(self, arrays: Arrays) -> FloatArray:
        """The flat vector of named arrays, as a copy; raises CorruptError for one that is missing or does not fit."""
        flat_D = np.empty(self.size, np.float32)
        start = self.module
        if self.module:
            flat_D[:start] = checked(arrays, self.prefix + _MODULE, (self.module,))
        for name, (outputs, inputs) in self.shapes.items():
            matrix = flat_D[start : start + outputs * inputs].reshape(outputs, inputs)
            matrix[:, :-1] = checked(arrays, name + _WEIGHT, (outputs, inputs - 1))
            matrix[:, -1] = checked(arrays, name + _BIAS, (outputs,))
            start += outputs * inputs
        if self.free:
            flat_D[start:] = checked(arrays, self.prefix + _FREE, (self.free,))
        return flat_D

    def named(self, flat_D: FloatArray) -> dict[str, NDArray[np.generic]]:
        """The inverse of `flat`, as copies."""
        arrays: dict[str, NDArray[np.generic]] = {}
        start = self.module
        if self.module:
            arrays[self.prefix + _MODULE] = flat_D[:start].copy()
        for name, (outputs, inputs) in self.shapes.items():
            matrix = flat_D[start : start + outputs * inputs].reshape(outputs, inputs)
            arrays[name + _WEIGHT] = np.ascontiguousarray(matrix[:, :-1])
            arrays[name + _BIAS] = matrix[:, -1].copy()
            start += outputs * inputs
        if self.free:
            arrays[self.prefix + _FREE] = flat_D[start:].copy()
        return arrays

    def output_layer(self, flat_D: FloatArray) -> FloatArray:
        """The last matrix, [outputs, inputs + 1], as a view of the flat vector."""
        outputs, inputs = list(self.shapes.values())[-1]
        end = self.size - self.free
        return flat_D[end - outputs * inputs : end].reshape(outputs, inputs)


def _place(name: str, prefix: str) -> tuple[int, bool]:
    """Order of a matrix: layers by number, the matrix of a layer's memory after that of the layer."""
    number = name.removeprefix(f"{prefix}.").removesuffix(MEMORY)
    if not number.isdecimal():
        raise CorruptError(f"policy state: {name} is no layer of a net whose gradients can be aggregated")
    # As a number, because as text layer 10 would come before layer 2.
    return int(number), name.endswith(MEMORY)
