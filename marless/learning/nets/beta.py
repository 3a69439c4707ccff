"""Actions in a box from a Beta distribution for each component, in NumPy; its twin for learners is in `nets.heads`.

Of 2·A outputs, the first A are of α, the others of β: each is 1 + ln(1 + eᵒ) > 1, so that a density has one peak and is
0 at the bounds (Chou et al. 2017). The action is y = 2x − 1 in (−1, 1), with x of that Beta distribution. Samples keep
a distance of 2⁻²⁰ from the bounds, so that log-probabilities are finite; both twins compute them from what is recorded.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import ActionArray, BoolArray, FloatArray

EDGE = 1 - 2.0**-20
"""The largest |y|; a float32."""
LOG_2 = math.log(2.0)
_SHIFT = 8
"""Stirling's series is used above this: there it has errors below 1e-12."""
_Doubles = NDArray[np.float64]


class ActingBeta:
    """See the module."""

    def sample(
        self, output_NKB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        alpha_NAB, beta_NAB = concentrations(output_NKB)
        action_NAB = (2 * rng.beta(alpha_NAB, beta_NAB) - 1).clip(-EDGE, EDGE).astype(np.float32)
        density_NAB = (alpha_NAB - 1) * np.log1p(action_NAB, dtype=np.float64)
        density_NAB += (beta_NAB - 1) * np.log1p(-action_NAB, dtype=np.float64)
        # y is twice as wide as x, so that both numbers above are those of x plus ln 2, and its density is half.
        density_NAB -= (alpha_NAB + beta_NAB - 1) * LOG_2
        density_NAB -= log_gamma(alpha_NAB) + log_gamma(beta_NAB) - log_gamma(alpha_NAB + beta_NAB)
        log_prob_NB: FloatArray = density_NAB.sum(axis=1).astype(np.float32)
        return np.ascontiguousarray(action_NAB.transpose(0, 2, 1)), log_prob_NB

    def greedy(self, output_NKB: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        """The means."""
        return self.outputs(output_NKB, mask_NBA)[0]

    def outputs(self, output_NKB: FloatArray, mask_NBA: BoolArray | None) -> tuple[FloatArray, FloatArray]:
        """Means and log deviations of y, each [N, B, A]."""
        alpha_NAB, beta_NAB = concentrations(output_NKB)
        total_NAB = alpha_NAB + beta_NAB
        mean_NAB = (alpha_NAB - beta_NAB) / total_NAB
        log_std_NAB = LOG_2 + 0.5 * np.log(alpha_NAB * beta_NAB / (total_NAB + 1)) - np.log(total_NAB)
        mean_NBA, log_std_NBA = (
            np.ascontiguousarray(each.transpose(0, 2, 1), np.float32) for each in (mean_NAB, log_std_NAB)
        )
        return mean_NBA, log_std_NBA

    def unit(self, action: ActionArray) -> ActionArray:
        return action


def concentrations(output_NKB: FloatArray) -> tuple[_Doubles, _Doubles]:
    """α and β, each [N, A, B], of outputs [N, 2·A, B]."""
    alpha_NAB, beta_NAB = np.split(1 + np.logaddexp(0.0, output_NKB.astype(np.float64)), 2, axis=1)
    return alpha_NAB, beta_NAB


def log_gamma(x: _Doubles) -> _Doubles:
    """ln Γ(x) for x ≥ 1, up to 1e-11, by Stirling's series: actors have no SciPy."""
    # Γ(x) = Γ(x + 8) / (x (x + 1) … (x + 7)), whose factors fit a float64 up to x of 1e38.
    product = np.prod([x + i for i in range(_SHIFT)], axis=0)
    z = x + _SHIFT
    square = 1 / (z * z)
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))) / z
    result: _Doubles = (z - 0.5) * np.log(z) - z + 0.5 * math.log(2 * math.pi) + series - np.log(product)
    return result
