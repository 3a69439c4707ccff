"""Gradients of policies and critics in one gradient step, all computed from the parameters before the step.

Critics regress on r + γ Q′(s′, μ′(s′)); policies maximise Q(s, μ(s)), where only an agent's own action is replaced by
its policy's, and the others' are those taken (Lowe et al. 2017, eq. 5 and 6; single agents: Lillicrap et al. 2016).
With soft policies (Haarnoja et al. 2018) it is r + γ (Q′(s′, a′) + α H), a′ being drawn from the present policy, and
they maximise Q(s, a) + α H, Q being the lower of both critics'. In teams H is the entropy of the agent's own policy.
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

from marless.learning.algos.ddpg.heads import Chosen, Head
from marless.learning.algos.ddpg.inputs import CriticInputs, SampleView, replaced
from marless.learning.algos.training.passes import PRESENT
from marless.learning.algos.training.policy_batching import Stack
from marless.learning.algos.training.td import sample_weights, td_gradient, td_loss
from marless.learning.nets.kinds import Precision
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.stacked import feed_forward, units_off

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
    """The nets that act in successor states: target nets, or, of soft policies, the nets themselves."""
    judges: tuple[RowNets, ...]
    """The critics of each row, for the policies' gradient; not trained through this. The lowest value counts."""
    own: Tensor
    """int64 [R, A], position of each row's action in its critic's inputs."""
    log_weight: Tensor | None = None
    """float32 [P, 1], log α of soft policies; it may change in place."""

    @property
    def entropy_weight(self) -> Tensor:
        """float32 [R, 1, 1], α of each row."""
        assert self.log_weight is not None
        return self.log_weight.exp()[self.nets.owners_R].unsqueeze(2)

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
        self, inputs: CriticInputs, actors: Sequence[Actors], critics: Sequence[Critics], *, regularisation: float = 0.0
    ) -> None:
        self.actors = tuple(actors)
        self.critics = tuple(critics)
        self._inputs = inputs
        self._regularisation = regularisation

    def refresh(self) -> None:
        """Copy all parameters to the rows again, after a gradient step."""
        for actors in self.actors:
            for nets in (actors.nets, actors.targets, *actors.judges):
                nets.refresh()
        for critics in self.critics:
            critics.nets.refresh()
            critics.targets.refresh()

    def built(self, views: Sequence[SampleView]) -> Tensor:
        """The critics' inputs for the actions taken, [R or 1, I, M]."""
        return self._inputs.build([view.now for view in views], [view.action for view in views])

    def targets(self, views: Sequence[SampleView]) -> Tensor:
        """The critics' targets, [R, 1, M]; with twins, from the lower value (Fujimoto et al. 2018, eq. 10)."""
        choices = self._choices_after(views)
        input_xIM = self._built_after(views, [each.action for each in choices])
        value_R1M = self.critics[0].targets.net.evaluate(input_xIM)
        for critics in self.critics[1:]:
            value_R1M = torch.minimum(value_R1M, critics.targets.net.evaluate(input_xIM))
        if choices[0].entropy is not None:
            value_R1M = value_R1M + torch.cat([each.entropy for each in choices if each.entropy is not None])
        reward_R1M = torch.cat([view.reward for view in views])
        return reward_R1M + torch.cat([view.discount for view in views]) * value_R1M

    def critic_gradients(self, views: Sequence[SampleView], built: Tensor) -> tuple[list[StackGradient], Tensor]:
        """The gradients of each stack of critics, and the TD errors of the first stack, [R, 1, M]."""
        target_R1M, weight_RM = self.targets(views), torch.cat([view.weights() for view in views])
        # the weights without importance; 0 for an agent that is in none of the samples
        share_RM = sample_weights(torch.cat([view.alive for view in views]).squeeze(1), None)
        found, errors = [], []
        for critics in self.critics:
            value_R1M = critics.nets.net.forward(built)
            error_R1M = value_R1M - target_R1M
            error_RM = error_R1M.squeeze(1)
            per_row = {
                "value_loss": td_loss(error_RM, weight_RM, None),
                "value": (value_R1M.squeeze(1) * share_RM).sum(dim=1),  # a plain mean: only losses have importance
            }
            gradient_PD = critics.nets.backward(td_gradient(error_RM, weight_RM, None).unsqueeze(1))
            found.append(StackGradient(gradient_PD, _per_net(critics.nets, per_row, share_RM)))
            errors.append(error_R1M)
        return found, errors[0]

    def policy_gradients(self, views: Sequence[SampleView], built: Tensor) -> list[Descent]:
        """The gradients of each stack of policies."""
        found = []
        for actors in self.actors:
            view = views[actors.index]
            input_RIM, mine = actors.judged(built, len(view.now)), view.taken(actors.stack)
            found.append(descent(actors, mine, input_RIM, self._regularisation))
        return found

    def _built_after(self, views: Sequence[SampleView], actions: Sequence[Tensor]) -> Tensor:
        """The critics' inputs in the successor states. Absent agents do not act there, except for their own critics:
        after a truncation, the value of what the agent saw last is that of going on.
        """
        after = [view.after for view in views]
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

    def _choices_after(self, views: Sequence[SampleView]) -> list[Chosen]:
        """The actions in the successor states by class, [N, A, M]; and, of soft policies, α H, [N, 1, M]."""
        # Not initialised: the stacks of a class together have each of its agents, so every row is written.
        actions = [torch.empty_like(view.action) for view in views]
        soft = self.actors[0].log_weight is not None
        entropies = [torch.empty_like(view.reward) if soft else None for view in views]
        for actors in self.actors:
            view, stack = views[actors.index], actors.stack
            output_RKM = actors.targets.net.evaluate(stack.rows(view.after))
            legal = None if view.legal_after is None else stack.rows(view.legal_after)
            choice = actors.head.target(output_RKM, stack.rows(view.noise_after), legal)
            actions[actors.index][stack.agents] = choice.action
            earned = entropies[actors.index]
            if earned is not None and choice.entropy is not None:
                earned[stack.agents] = actors.entropy_weight * choice.entropy
        return [_standing(*each) for each in zip(actions, entropies, views, strict=True)]


def _standing(action_NAM: Tensor, entropy_N1M: Tensor | None, view: SampleView) -> Chosen:
    """The same where agents wait in the successor states: their last action stands, which they do not choose anew."""
    if view.kept is None:
        return Chosen(action_NAM, entropy_N1M)
    acts_NAM = view.kept.isnan()
    earned = None if entropy_N1M is None else torch.where(acts_NAM[:, :1], entropy_N1M, 0.0)
    return Chosen(torch.where(acts_NAM, action_NAM, view.kept), earned)


@dataclass(frozen=True)
class Descent:
    """The gradient of a stack of policies."""

    policy: StackGradient
    entropy: Tensor | None = None
    """[P], mean entropy of soft policies over their samples; 0 for one without any."""
    present: Tensor | None = None
    """[P], likewise: 1, or 0 for a policy without samples."""

    def weight_gradient(self, target_entropy: float) -> StackGradient:
        """The gradient of log α, H − the target: the weight grows while the entropy is below its target.

        It is that of −log α · (log π + target), which Haarnoja et al. 2018 (eq. 18) have with α in the place of log α,
        as in their own later code.
        """
        assert self.entropy is not None and self.present is not None
        gradient_P1 = (self.entropy - target_entropy * self.present).unsqueeze(1)
        return StackGradient(gradient_P1, {PRESENT: self.present})


def descent(actors: Actors, mine: SampleView, input_RIM: Tensor, regularisation: float) -> Descent:
    """The gradient of the loss −Σ w (Q(s, μ(s)) + α H) + regularisation · Σ w |z|²/K, z being the policies' outputs.

    `mine` has the rows' samples, and `input_RIM` their critics' inputs. Only soft policies have an entropy H.
    """
    output_RKM = actors.nets.net.forward(mine.now)
    choice = actors.head.act(output_RKM, mine.noise, mine.legal)
    weight_R1M = mine.weights(acting=True).unsqueeze(1)
    value_R1M, d_action_RAM = _valued(actors, replaced(input_RIM, actors.own, choice.action), weight_R1M)
    loss_R, d_entropy_R1M = -(value_R1M * weight_R1M).sum(dim=(1, 2)), None
    numbers = {}
    if choice.entropy is not None:
        d_entropy_R1M = -actors.entropy_weight * weight_R1M
        loss_R += (d_entropy_R1M * choice.entropy).sum(dim=(1, 2))
        numbers["entropy"] = (weight_R1M * choice.entropy).sum(dim=(1, 2))
    gradient_RKM = actors.head.gradient(d_action_RAM, d_entropy_R1M)
    if regularisation:
        # outputs of illegal actions have no effect, so they are not regularised
        squared_RKM = output_RKM if mine.legal is None else output_RKM * mine.legal
        # The gradient of the penalty at z. The penalty is quadratic in z, so it is half of this gradient times z.
        pull_RKM = squared_RKM * (weight_R1M * (2 * regularisation / output_RKM.shape[1]))
        loss_R = 0.5 * (pull_RKM * squared_RKM).sum(dim=(1, 2)) + loss_R
        gradient_RKM = gradient_RKM.add_(pull_RKM)
    metrics = _per_net(actors.nets, {"policy_loss": loss_R, **numbers}, weight_R1M.squeeze(1))
    policy = StackGradient(actors.nets.backward(gradient_RKM), metrics)
    return Descent(policy, metrics.get("entropy"), metrics[PRESENT] if numbers else None)


def _valued(actors: Actors, input_RIM: Tensor, weight_R1M: Tensor) -> tuple[Tensor, Tensor]:
    """The rows' values Q, [R, 1, M], the lowest of their critics'; and the gradient of −Σ w Q at their own actions."""
    nets = [judge.net for judge in actors.judges]
    values = [net.forward(input_RIM) for net in nets]
    if len(values) == 1:
        return values[0], nets[0].input_gradient(-weight_R1M, actors.own)
    value_R1M, judge_R1M = torch.stack(values).min(dim=0)
    parts = [net.input_gradient(-weight_R1M * (judge_R1M == i), actors.own) for i, net in enumerate(nets)]
    return value_R1M, torch.stack(parts).sum(dim=0)


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

    def __init__(
        self,
        layout: NetLayout,
        flat_PD: Tensor,
        activation: str,
        owners: Sequence[int],
        precision: Precision = "float32",
    ) -> None:
        nets = len(flat_PD)
        self._flat_PD = flat_PD
        self._alone = tuple(owners) == tuple(range(nets))
        self.owners_R = torch.tensor(owners, device=flat_PD.device)
        rows = [[r for r, owner in enumerate(owners) if owner == net] for net in range(nets)]
        self._rows = [torch.tensor(each, dtype=torch.long, device=flat_PD.device) for each in rows]
        # With one row per net the rows are the nets' own parameters: nothing is copied,
        # and there is nothing to refresh.
        self.flat_RD = flat_PD if self._alone else flat_PD[self.owners_R]
        self.net = feed_forward(layout, self.flat_RD, activation, precision)

    def refresh(self) -> None:
        """Copy the nets' parameters to the rows again, after a gradient step."""
        if not self._alone:
            torch.index_select(self._flat_PD, 0, self.owners_R, out=self.flat_RD)

    def backward(self, d_output_RKM: Tensor) -> Tensor:
        """Each net's gradient [P, D], given those at its rows' last outputs; overwritten by the next call."""
        self.net.backward(d_output_RKM)
        return self.mean(self.net.gradient_PD)

    def units_off(self) -> Tensor | None:
        """See `stacked.units_off`; the mean over each net's rows."""
        off_R = units_off(self.net)
        return None if off_R is None else self.mean(off_R.unsqueeze(1)).squeeze(1)

    def mean(self, x_RF: Tensor) -> Tensor:
        """Mean over the rows of each net: [R, F] → [P, F]; 0 for nets without rows."""
        if self._alone:
            return x_RF
        rows = [x_RF[index].mean(dim=0) if len(index) else torch.zeros_like(x_RF[0]) for index in self._rows]
        return torch.stack(rows)
