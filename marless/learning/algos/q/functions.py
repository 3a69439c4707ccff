"""The functions of a Q-learning update: stacks of Q nets with their target nets, and mixers.

A mixer computes the team's value from its agents' Q values, and how the error is attributed to agents.
Shapes: P nets of a stack, I inputs + 1, A actions, K outputs (A, with a dueling head A + 1), T time steps of C columns,
M = T · C, F = (T + 1) · C, see `marless.learning.algos.off_policy.batches`. Mixers: N agents, M samples, E units of the
hidden layer, S + 1 rows of the global state (the last one ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from marless.learning.algos.training.policy_batching import weights
from marless.learning.curvature.hessian import hessian_product
from marless.learning.curvature.lanczos import Product
from marless.learning.nets.acting_heads import ILLEGAL_LOGIT
from marless.learning.nets.kinds import Precision
from marless.learning.nets.layout import MixingLayout, NetLayout
from marless.learning.nets.learner_states import Row
from marless.learning.nets.stacked import StackedMLP, net


@dataclass(frozen=True, kw_only=True)
class QInputs:
    """The inputs of a stack of Q nets from one draw."""

    features: Tensor
    """float32 [P, I, F]."""
    action: Tensor
    """int64 [P, 1, M]."""
    legal: Tensor | None
    """bool [P, A, F]; None if every action always is."""
    steps: int
    """T."""
    returned: Tensor | None = None
    """bool [P, 1, F], the agent comes back; None if agents never leave."""
    turn: Tensor | None = None
    """int64 [P, 1, F], time step of the agent's last turn, whose value counts; None: each step's own."""
    memory: Tensor | None = None
    """float32 [P, H, C], memory of the nets before the first step; None: empty."""

    @property
    def width(self) -> int:
        """C."""
        return self.features.shape[2] // (self.steps + 1)

    def resets(self) -> Tensor:
        """bool [1 or P, T + 1, C]: memory is reset at the first step of a column, which is an episode or a part of one,
        and where agents come back.
        """
        shape = self.steps + 1, self.width
        if self.returned is None:
            resets = torch.zeros(1, *shape, dtype=torch.bool, device=self.features.device)
        else:
            resets = self.returned.reshape(-1, *shape).clone()
        resets[:, 0] = True
        return resets


class QNets:
    """P Q nets over the tensors of a bank's rows, and the gradient of a loss of the values of the actions taken.

    What computes these values also sets `_columns`, `_chosen` and `_turns_P1F`, see `QFunction.values`.
    """

    _columns: int
    """Columns of the net's last pass, the first of which have actions that were taken."""
    _chosen: tuple[Tensor, int]
    """The actions taken, int64 [P, 1, M], and A."""
    _turns_P1F: Tensor | None = None  # noqa: N815  # a shape suffix
    """int64 [P, 1, F], the columns whose values count; None: each its own."""

    def __init__(
        self, tensors: Row, layout: NetLayout, activation: str, *, dueling: bool, precision: Precision = "float32"
    ) -> None:
        self.tensors = tensors
        self.net = net(layout, tensors["flat"], activation, precision)
        self._dueling = dueling

    def backward(self, d_chosen_PM: Tensor) -> None:
        """Write the loss's gradient to the net's buffer, given that with respect to the values of the actions taken."""
        action_P1M, actions = self._chosen
        d_q_PAF = d_chosen_PM.new_zeros(len(d_chosen_PM), actions, self._columns)
        d_q_PAF.scatter_(1, action_P1M, d_chosen_PM.unsqueeze(1))
        if self._turns_P1F is not None:
            # All steps in which an agent waits have the value of its last turn, so their gradients add up there.
            d_q_PAF = torch.zeros_like(d_q_PAF).scatter_add_(2, self._turns_P1F.expand_as(d_q_PAF), d_q_PAF)
        self.net.backward(at_outputs(d_q_PAF) if self._dueling else d_q_PAF)

    def score_gradient(self, batch: Mapping[str, Tensor]) -> Tensor:
        """See `Measurable`; the objective is minus half the squared TD error. For the batch, see `hessian`."""
        output_PKM = self.net.forward(batch["features"], batch.get("resets"), batch.get("memory"))
        gradient_PKM, _ = self._score(batch, output_PKM).gradient()
        self.net.backward(gradient_PKM)
        return self.net.gradient_PD

    def hessian(self, batch: Mapping[str, Tensor]) -> Product:
        """See `Measurable`. A batch has "features", "action", "error" (the TD error) and "share" (the derivative of the
        value in the TD error with respect to the action's value), the last two [P, 1, M].
        """
        return hessian_product(self.net, self.tensors["flat"], batch, lambda output: self._score(batch, output))

    def _score(self, batch: Mapping[str, Tensor], output_PKM: Tensor) -> ChosenScore:
        share_P1M = batch["share"]
        slope_P1M = -weights(batch, share_P1M) * share_P1M
        action_P1M = batch["action"].long()
        return ChosenScore(
            slope_P1M * batch["error"], slope_P1M * share_P1M, action_P1M, output_PKM, dueling=self._dueling
        )

    def _values(self, output_PKM: Tensor) -> Tensor:
        return dueling(output_PKM) if self._dueling else output_PKM


class QFunction(QNets):
    """P Q nets and their target nets."""

    def __init__(
        self, tensors: Row, layout: NetLayout, activation: str, *, dueling: bool, precision: Precision = "float32"
    ) -> None:
        super().__init__(tensors, layout, activation, dueling=dueling, precision=precision)
        self._target = net(layout, tensors["target"], activation)
        self._remembers = layout.memory > 0

    def values(self, seen: QInputs, *, double: bool) -> tuple[Tensor, Tensor]:
        """Q of the actions taken, and of the best legal next actions by the target nets, each [P, M].

        With `double`, the nets in training choose the next action, and the target nets evaluate it (van Hasselt et al.
        2016, eq. 4). `backward` refers to the last call.
        """
        width, features = seen.width, seen.features
        legal_PAM = None if seen.legal is None else seen.legal[:, :, width:]
        self._turns_P1F = None
        if seen.turn is not None:
            self._turns_P1F = seen.turn * width + torch.arange(features.shape[2], device=features.device) % width
        if seen.steps == 1 and not self._remembers:  # successors need no gradient, so they get passes of their own
            now, after = features[:, :, :width], features[:, :, width:]
            best_PAM = self._values(self.net.forward(after)) if double else None
            after_PM = best(best_PAM, self._values(self._target.forward(after)), legal_PAM)
            # Last, because `backward` follows the net's last pass.
            q_PAM = self._values(self.net.forward(now))
            self._columns = width
        else:
            q_PAF, target_PAF = (
                self._values(net.forward(features, seen.resets(), seen.memory)) for net in (self.net, self._target)
            )
            if (turns_P1F := self._turns_P1F) is not None:
                q_PAF, target_PAF = (x_PAF.gather(2, turns_P1F.expand_as(x_PAF)) for x_PAF in (q_PAF, target_PAF))
            after_PM = best(q_PAF[:, :, width:] if double else None, target_PAF[:, :, width:], legal_PAM)
            q_PAM = q_PAF[:, :, :-width]
            self._columns = features.shape[2]
        self._chosen = seen.action, q_PAM.shape[1]
        return q_PAM.gather(1, seen.action).squeeze(1), after_PM


def best(choice_PAM: Tensor | None, value_PAM: Tensor, legal_PAM: Tensor | None) -> Tensor:
    """The value of the best legal action, [P, M]; the best by `choice` or, if it is None, by the values themselves."""
    judged_PAM = value_PAM if choice_PAM is None else choice_PAM
    if legal_PAM is not None:
        judged_PAM = judged_PAM.masked_fill(~legal_PAM, ILLEGAL_LOGIT)
    _, best_P1M = judged_PAM.max(dim=1, keepdim=True)  # ten times faster than argmax over this axis
    return value_PAM.gather(1, best_P1M).squeeze(1)


def dueling(output_PKM: Tensor) -> Tensor:
    """Q = V + A − mean A, [P, K − 1, M], of outputs V, A₁, A₂ … (Wang et al. 2016, eq. 9)."""
    advantage_PAM = output_PKM[:, 1:]
    return output_PKM[:, :1] + advantage_PAM - advantage_PAM.mean(dim=1, keepdim=True)


def at_outputs(d_q_PAM: Tensor) -> Tensor:
    """The gradient with respect to the outputs, [P, A + 1, M], given that with respect to the result of `dueling`."""
    return torch.cat([d_q_PAM.sum(dim=1, keepdim=True), d_q_PAM - d_q_PAM.mean(dim=1, keepdim=True)], dim=1)


class ChosenScore:
    """An objective of the values of the actions taken, given its first and second derivatives there, [P, 1, M].

    See `OutputObjective`. For −w·δ²/2 they are −w·δ and −w.
    """

    def __init__(
        self, slope_P1M: Tensor, bend_P1M: Tensor, action_P1M: Tensor, like_PKM: Tensor, *, dueling: bool
    ) -> None:
        self._slope_P1M, self._bend_P1M, self._action_P1M = slope_P1M, bend_P1M, action_P1M
        self._like_PKM = like_PKM
        self._dueling = dueling

    def gradient(self) -> tuple[Tensor, None]:
        """The first derivative, at the actions taken."""
        return self._placed(self._slope_P1M), None

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, None]:
        """The second derivative times the flow of the values of the actions taken."""
        flow_PAM = dueling(flow_PKM) if self._dueling else flow_PKM
        return self._placed(self._bend_P1M * flow_PAM.gather(1, self._action_P1M)), None

    def _placed(self, at_chosen_P1M: Tensor) -> Tensor:
        nets, outputs, samples = self._like_PKM.shape
        placed_PAM = at_chosen_P1M.new_zeros(nets, outputs - self._dueling, samples)
        placed_PAM.scatter_(1, self._action_P1M, at_chosen_P1M)
        return at_outputs(placed_PAM) if self._dueling else placed_PAM


class Sum:
    """VDN: Q_tot = Σ Q_i (Sunehag et al. 2018, eq. 4)."""

    def mix(self, q_NM: Tensor, state_1SM: Tensor | None) -> Tensor:
        """The team's value, [1, M]; `gradient` refers to the last call. `target` is that by the target mixer."""
        self._agents = len(q_NM)
        return q_NM.sum(dim=0, keepdim=True)

    target = mix

    def gradient(self, d_team_1M: Tensor) -> Tensor:
        """The gradient with respect to the agents' values last mixed, [N, M], given that with respect to the team's.

        A trainable mixer also computes that of its own parameters.
        """
        return d_team_1M.expand(self._agents, -1)


class _Monotone:
    """Q_tot = |w₂|ᵀ elu(|W₁| q + b₁) + b₂, all four by hypernetworks of the state (Rashid et al. 2018, §4.2)."""

    def __init__(self, layout: MixingLayout, flat_1D: Tensor, gradient_1D: Tensor) -> None:
        self._agents, self._embed = layout.agents, layout.embed
        self._nets = {
            name: StackedMLP(net, flat_1D[:, layout.spans[name]], "relu", gradient_1D[:, layout.spans[name]])
            for name, net in layout.nets.items()
        }

    def value(self, q_NM: Tensor, state_1SM: Tensor | None) -> Tensor:
        """The team's value, [1, M]."""
        if state_1SM is None:
            raise ValueError("a monotone mixer needs the global state, and the batch holds none")
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
        online = _Monotone(layout, tensors["flat"], self.gradient_PD)
        self.mix, self.gradient = online.value, online.backward
        self.target = _Monotone(layout, tensors["target"], torch.zeros_like(tensors["flat"])).value


Mixer: TypeAlias = Sum | MonotoneMixer
"""A function of the agents' values that is monotone in each of them."""
