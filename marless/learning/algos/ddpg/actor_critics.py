"""Gradients of policies and critics in one gradient step of DDPG, all computed from the parameters before the step.

Critics regress on r + γ Q′(s′, μ′(s′)); policies maximise Q(s, μ(s)), where only an agent's own action is replaced by
its policy's, and the others' are those taken (Lowe et al. 2017, eq. 5 and 6; single agents: Lillicrap et al. 2016).
Departs from Lowe et al., who update the critic first and use the result for the policy: here both gradients use the
parameters before the step. Stacked nets have one row per agent, and several rows may use the same net.
Shapes: R rows (agents), of all classes one after another where critics read them; P nets of D parameters, A actions or
action components, I inputs + 1, K outputs, M samples, F values of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.ddpg.heads import Head
from marless.learning.algos.ddpg.inputs import CriticInputs, SampleView, replaced
from marless.learning.algos.off_policy import td
from marless.learning.algos.training.passes import PRESENT
from marless.learning.algos.training.policy_batching import Stack
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.stacked import feed_forward

Metrics = dict[str, Tensor]
"""Values per net, [P], by metric."""


@dataclass(frozen=True, kw_only=True)
class Critics:
    """A stack of critics and their target nets, with one row per agent of the views."""

    nets: RowNets
    targets: RowNets


@dataclass(frozen=True, kw_only=True)
class Actors:
    """A stack of policies of one class, with their target nets and critics."""

    index: int
    """Index of the class among the views."""
    stack: Stack
    """Its members are the rows."""
    head: Head
    nets: RowNets
    targets: RowNets
    judges: RowNets
    """The critic of each row, for the policies' gradient; it is not trained through this."""
    own: Tensor
    """int64 [R, A], position of each row's action in its critic's inputs."""

    def judged(self, input_xIM: Tensor, agents: int) -> Tensor:
        """The inputs of the rows' critics, from those of all `agents` agents of the class, or from one row for all."""
        return self.stack.take(input_xIM.expand(agents, -1, -1))


@dataclass(frozen=True)
class StackGradient:
    """The gradient of the loss of a stack's nets."""

    gradient: Tensor
    """[P, D]; valid until the next gradient of the stack."""
    metrics: Metrics


class ActorCritics:
    """Policies of one or several classes, and the critics of all their agents: one stack, or two for twin critics."""

    def __init__(
        self, inputs: CriticInputs, actors: Sequence[Actors], critics: Sequence[Critics], *, regularisation: float
    ) -> None:
        self.actors = tuple(actors)
        self.critics = tuple(critics)
        self._inputs = inputs
        self._regularisation = regularisation

    def refresh(self) -> None:
        """Copy all parameters to the rows again, after a gradient step."""
        for actors in self.actors:
            for nets in (actors.nets, actors.targets, actors.judges):
                nets.refresh()
        for critics in self.critics:
            critics.nets.refresh()
            critics.targets.refresh()

    def built(self, views: Sequence[SampleView]) -> Tensor:
        """The critics' inputs for the actions taken, [R or 1, I, M]."""
        return self._inputs.build([view.now for view in views], [view.action for view in views])

    def targets(self, views: Sequence[SampleView]) -> Tensor:
        """The critics' targets, [R, 1, M]; with twins, from the lower value (Fujimoto et al. 2018, eq. 10)."""
        input_xIM = self._built_after(views)
        value_R1M = self.critics[0].targets.net.evaluate(input_xIM)
        for critics in self.critics[1:]:
            value_R1M = torch.minimum(value_R1M, critics.targets.net.evaluate(input_xIM))
        reward_R1M = torch.cat([view.reward for view in views])
        return reward_R1M + torch.cat([view.discount for view in views]) * value_R1M

    def critic_gradients(self, views: Sequence[SampleView], built: Tensor) -> tuple[list[StackGradient], Tensor]:
        """The gradients of each stack of critics, and the TD errors of the first stack, [R, 1, M]."""
        target_R1M, weight_RM = self.targets(views), torch.cat([view.weights() for view in views])
        # the weights without importance; 0 for an agent that is in none of the samples
        share_RM = td.sample_weights(torch.cat([view.alive for view in views]).squeeze(1), None)
        found, errors = [], []
        for critics in self.critics:
            value_R1M = critics.nets.net.forward(built)
            error_R1M = value_R1M - target_R1M
            error_RM = error_R1M.squeeze(1)
            per_row = {
                "value_loss": td.td_loss(error_RM, weight_RM, None),
                "value": (value_R1M.squeeze(1) * share_RM).sum(dim=1),  # a plain mean: only losses have importance
            }
            gradient_PD = critics.nets.backward(td.td_gradient(error_RM, weight_RM, None).unsqueeze(1))
            found.append(StackGradient(gradient_PD, _per_net(critics.nets, per_row, share_RM)))
            errors.append(error_R1M)
        return found, errors[0]

    def policy_gradients(self, views: Sequence[SampleView], built: Tensor) -> list[StackGradient]:
        """The gradients of each stack of policies."""
        found = []
        for actors in self.actors:
            view = views[actors.index]
            input_RIM, mine = actors.judged(built, len(view.now)), view.taken(actors.stack)
            found.append(descent(actors, mine, input_RIM, self._regularisation))
        return found

    def _built_after(self, views: Sequence[SampleView]) -> Tensor:
        """The critics' inputs in the successor states. Absent agents do not act there, except for their own critics:
        after a truncation, the value of what the agent saw last is that of going on.
        """
        after, actions = [view.after for view in views], self._actions_after(views)
        present = [
            action if view.alive_after is None else action * view.alive_after
            for action, view in zip(actions, views, strict=True)
        ]
        input_xIM = self._inputs.build(after, present)
        if all(view.alive_after is None for view in views):
            return input_xIM
        input_RIM = input_xIM.expand(sum(map(len, actions)), -1, -1)
        parts = zip(torch.split(input_RIM, [len(each) for each in actions]), actions, strict=True)
        return torch.cat(
            [
                replaced(part, self._inputs.own(k)[: len(part)].to(part.device), action)
                for k, (part, action) in enumerate(parts)
            ]
        )

    def _actions_after(self, views: Sequence[SampleView]) -> list[Tensor]:
        """The actions of target policies in the successor states, by class."""
        # Not initialised: the stacks of a class together have each of its agents, so every row is written.
        actions = [torch.empty_like(view.action) for view in views]
        for actors in self.actors:
            view, stack = views[actors.index], actors.stack
            output_RAM = actors.targets.net.evaluate(stack.rows(view.after))
            legal = None if view.legal_after is None else stack.rows(view.legal_after)
            noise_RAM = stack.rows(view.noise_after)
            actions[actors.index][stack.agents] = actors.head.target(output_RAM, noise_RAM, legal)
        return [
            action if view.kept is None else torch.where(view.kept.isnan(), action, view.kept)
            for action, view in zip(actions, views, strict=True)
        ]


def descent(actors: Actors, mine: SampleView, input_RIM: Tensor, regularisation: float) -> StackGradient:
    """The gradient of the loss −Σ w Q(s, μ(s)) + regularisation · Σ w |z|²/A, z being the policies' outputs.

    `mine` has the rows' samples, and `input_RIM` their critics' inputs.
    """
    output_RAM = actors.nets.net.forward(mine.now)
    action_RAM = actors.head.act(output_RAM, mine.noise, mine.legal)
    weight_R1M, judges = mine.weights(acting=True).unsqueeze(1), actors.judges.net
    value_R1M = judges.forward(replaced(input_RIM, actors.own, action_RAM))
    d_action_RAM = judges.input_gradient(-weight_R1M, actors.own)
    # outputs of illegal actions have no effect, so they are not regularised
    squared_RAM = output_RAM if mine.legal is None else output_RAM * mine.legal
    # The gradient of the penalty at z. The penalty is quadratic in z, so it is half of this gradient times z.
    pull_RAM = squared_RAM * (weight_R1M * (2 * regularisation / output_RAM.shape[1]))
    penalty_R = 0.5 * (pull_RAM * squared_RAM).sum(dim=(1, 2))
    loss_R = penalty_R - (value_R1M * weight_R1M).sum(dim=(1, 2))
    gradient_PD = actors.nets.backward(actors.head.gradient(d_action_RAM).add_(pull_RAM))
    return StackGradient(gradient_PD, _per_net(actors.nets, {"policy_loss": loss_R}, weight_R1M.squeeze(1)))


def _per_net(nets: RowNets, per_row: dict[str, Tensor], share_RM: Tensor) -> Metrics:
    """Means over those of each net's rows that have samples, of weight above 0; and whether a net has such rows."""
    present_R1 = (share_RM.sum(dim=1, keepdim=True) > 0).float()
    rows_P1 = nets.mean(present_R1)
    # `mean` divides by all rows of a net; this turns it into the mean over rows with samples. Where
    # there are none, 1/0 is not chosen.
    scale_P1 = torch.where(rows_P1 > 0, 1 / rows_P1, 0.0)
    means = {name: nets.mean(x_R.unsqueeze(1) * present_R1) * scale_P1 for name, x_R in per_row.items()}
    return {name: mean_P1.squeeze(1) for name, mean_P1 in means.items()} | {PRESENT: (rows_P1 > 0).float().squeeze(1)}


class RowNets:
    """P nets with R rows; `owners` has the index of each row's net."""

    def __init__(self, layout: NetLayout, flat_PD: Tensor, activation: str, owners: Sequence[int]) -> None:
        nets = len(flat_PD)
        self._flat_PD = flat_PD
        self._alone = tuple(owners) == tuple(range(nets))
        self.owners_R = torch.tensor(owners, device=flat_PD.device)
        rows = [[r for r, owner in enumerate(owners) if owner == net] for net in range(nets)]
        self._rows = [torch.tensor(each, dtype=torch.long, device=flat_PD.device) for each in rows]
        # With one row per net the rows are the nets' own parameters: nothing is copied,
        # and there is nothing to refresh.
        self.flat_RD = flat_PD if self._alone else flat_PD[self.owners_R]
        self.net = feed_forward(layout, self.flat_RD, activation)

    def refresh(self) -> None:
        """Copy the nets' parameters to the rows again, after a gradient step."""
        if not self._alone:
            torch.index_select(self._flat_PD, 0, self.owners_R, out=self.flat_RD)

    def backward(self, d_output_RKM: Tensor) -> Tensor:
        """Each net's gradient [P, D], given those at its rows' last outputs; overwritten by the next call."""
        self.net.backward(d_output_RKM)
        return self.mean(self.net.gradient_PD)

    def mean(self, x_RF: Tensor) -> Tensor:
        """Mean over the rows of each net: [R, F] → [P, F]; 0 for nets without rows."""
        if self._alone:
            return x_RF
        rows = [x_RF[index].mean(dim=0) if len(index) else torch.zeros_like(x_RF[0]) for index in self._rows]
        return torch.stack(rows)
