"""Mixers: the team's value from its agents' Q values, and how the error is attributed to agents.

Shapes: N agents, M samples, E units of the mixer's hidden layer, S + 1 rows of the global state (the last one ones).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from marless.learning.nets.layout import MixingLayout
from marless.learning.nets.learner_states import Row
from marless.learning.nets.stacked import StackedMLP


class Mixer(Protocol):
    """A function of the agents' values that is monotone in each of them."""

    def mix(self, q_NM: Tensor, state_1SM: Tensor | None) -> Tensor:
        """The team's value, [1, M]; `gradient` refers to the last call."""
        ...

    def target(self, q_NM: Tensor, state_1SM: Tensor | None) -> Tensor:
        """The team's value by the target mixer, [1, M]."""
        ...

    def gradient(self, d_team_1M: Tensor) -> Tensor:
        """The gradient with respect to the agents' values last mixed, [N, M], given that with respect to the team's
        value; a trainable mixer also computes that of its own parameters.
        """
        ...


class Sum:
    """VDN: Q_tot = Σ Q_i (Sunehag et al. 2018, eq. 4)."""

    def mix(self, q_NM: Tensor, state_1SM: Tensor | None) -> Tensor:
        self._agents = len(q_NM)
        return q_NM.sum(dim=0, keepdim=True)

    target = mix

    def gradient(self, d_team_1M: Tensor) -> Tensor:
        return d_team_1M.expand(self._agents, -1)


class _Monotone:
    """Q_tot = |w₂|ᵀ elu(|W₁| q + b₁) + b₂, all four by hypernetworks of the state (Rashid et al. 2018, §4.2)."""

    def __init__(self, layout: MixingLayout, flat_1D: Tensor, gradient_1D: Tensor) -> None:
        self._agents, self._embed = layout.agents, layout.embed
        self._nets = {
            name: StackedMLP(net, flat_1D[:, layout.spans[name]], "relu", gradient_1D[:, layout.spans[name]])
            for name, net in layout.nets.items()
        }

    def value(self, q_NM: Tensor, state_1SM: Tensor) -> Tensor:
        """The team's value, [1, M]."""
        self._q_NM = q_NM
        made = {name: net.forward(state_1SM)[0] for name, net in self._nets.items()}
        self._raw1_NEM, self._raw2_EM = made["weight1"].view(self._agents, self._embed, -1), made["weight2"]
        self._weight1_NEM, self._weight2_EM = self._raw1_NEM.abs(), self._raw2_EM.abs()
        before_EM = (self._weight1_NEM * q_NM.unsqueeze(1)).sum(dim=0) + made["bias1"]
        self._hidden_EM = functional.elu(before_EM)
        return (self._weight2_EM * self._hidden_EM).sum(dim=0, keepdim=True) + made["bias2"]

    def backward(self, d_team_1M: Tensor) -> Tensor:
        """The gradient with respect to q, [N, M]; those of the hypernetworks are written to `gradient_1D`."""
        # elu′(x) = 1 where elu(x) > 0, else eˣ = elu(x) + 1
        d_before_EM = d_team_1M * self._weight2_EM * self._hidden_EM.clamp(max=0).add_(1)
        # The weights are |w|, whose derivative is the sign of w.
        d_weight1_NEM = d_before_EM * self._q_NM.unsqueeze(1) * self._raw1_NEM.sign()
        gradients = {
            "weight1": d_weight1_NEM.flatten(0, 1),
            "bias1": d_before_EM,
            "weight2": d_team_1M * self._hidden_EM * self._raw2_EM.sign(),
            "bias2": d_team_1M,
        }
        for name, gradient in gradients.items():
            self._nets[name].backward(gradient.unsqueeze(0))
        return (self._weight1_NEM * d_before_EM).sum(dim=1)


class MonotoneMixer:
    """QMIX's mixer with its target mixer, over a row of its bank."""

    def __init__(self, tensors: Row, layout: MixingLayout) -> None:
        self.tensors = tensors
        self.gradient_PD = torch.zeros_like(tensors["flat"])
        self._online = _Monotone(layout, tensors["flat"], self.gradient_PD)
        self._target = _Monotone(layout, tensors["target"], torch.zeros_like(tensors["flat"]))

    def mix(self, q_NM: Tensor, state_1SM: Tensor | None) -> Tensor:
        return self._online.value(q_NM, _given(state_1SM))

    def target(self, q_NM: Tensor, state_1SM: Tensor | None) -> Tensor:
        return self._target.value(q_NM, _given(state_1SM))

    def gradient(self, d_team_1M: Tensor) -> Tensor:
        return self._online.backward(d_team_1M)


def _given(state_1SM: Tensor | None) -> Tensor:
    if state_1SM is None:
        raise ValueError("a monotone mixer needs the global state, and the batch holds none")
    return state_1SM
