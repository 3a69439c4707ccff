"""Every learner keeps apart what is on the device and what is on the host, which shows without a GPU.

test_simulated_device.py runs this file in a process of its own. `tests/gpu` has the same on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marless.learning.algos.contract import check_algorithm, trained_states
from marless.learning.algos.off_policy.draws import BatchSource
from marless.learning.algos.ppo import learner as ppo_learner
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.algos.ppo.functions import PolicyFunction
from marless.learning.algos.ppo.learner import PPOLearner
from marless.learning.algos.settings import Ramp
from marless.learning.algos.training.captured import CapturedSteps
from marless.learning.algos.training.uploads import Uploads
from tests.simulated_device import DEVICE, Graphs, Streams, simulated_device
from tests.unit.learning.algos.test_contract import ONE_A_FAMILY, QUICK, TRIALS, Plain, configured, only

CLOSE = 1e-5
"""How far weights on two devices may be apart after one round: sums in another order, and no kernels of ours."""
ALL_CASES = ("ippo", "pqn")
JOBS = [
    pytest.param(trial, case, marks=() if trial in ALL_CASES or case == quick[-1] else pytest.mark.slow)
    for trial, (*_, cases) in TRIALS.items()
    for quick in [QUICK.get(trial, cases)]
    for case in quick
]
"""Of each trial at least the case that asks most of its learner: memory, boxes, or turns."""


def apart(here, there):
    """The largest difference of two lists of states in what acts."""
    assert here.keys() == there.keys()
    pairs = [(here[key].acting[name], there[key].acting[name]) for key in here for name in here[key].acting]
    return max(float(np.abs(a.astype("f8") - b.astype("f8")).max()) for a, b in pairs if a.size)


@pytest.mark.parametrize(("trial", "case"), JOBS)
def test_round_on_the_device_is_one_on_the_host(trial, case):
    with only(case):
        with simulated_device() as transfers:
            here = trained_states(*configured(trial), DEVICE, rounds=1)
        assert transfers["to device"]
        assert transfers["to host"]  # states are published from there
        assert apart(here, trained_states(*configured(trial), rounds=1)) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(("trial", "case"), ONE_A_FAMILY)
def test_contract_is_kept_on_the_device(trial, case):
    with only(case), simulated_device():
        assert check_algorithm(*configured(trial), one_step=TRIALS[trial][1], device=DEVICE) == (case,)


def test_uploads_come_before_the_gradient_steps_that_read_them(monkeypatch):
    """They happen as late as they may, on a stream of their own, and give what copies at once give."""
    streams = Streams()
    with only("discrete"), simulated_device():
        at_once = trained_states(*configured("vdn"), DEVICE, rounds=2)
        monkeypatch.setattr(BatchSource, "_uploads", Uploads(torch.device(DEVICE), streams))
        beside = trained_states(*configured("vdn"), DEVICE, rounds=2)
    assert len(streams.main.tensors) > 20
    assert streams.main.synchronized > 0
    assert apart(beside, at_once) == 0


def test_upload_is_on_the_device_only_for_work_that_waits():
    array, streams = np.arange(3, dtype=np.float32), Streams()
    with simulated_device() as transfers:
        x = Uploads(torch.device(DEVICE), streams).upload(array)
        array[:] = 7  # the pinned copy is another memory
        assert x.hosted.isnan().all()
        assert (2 * x).tolist() == [0, 2, 4]
    assert streams.main.tensors == [x]
    assert transfers["to device"] == 1


def test_host_is_at_most_two_batches_ahead():
    uploads, waited = Uploads(torch.device("cpu"), streams := Streams()), []
    for _ in range(5):
        uploads.begin()
        waited.append(streams.main.synchronized)
    assert waited == [0, 0, 1, 2, 3]


def waits(trial, updates, every):
    """How often the host waits for the device in a round with so many gradient steps."""
    kind, config = configured(trial)
    replay = config.replay.model_copy(update={"priorities_every": every})
    with only(QUICK.get(trial, ("discrete",))[0]), simulated_device() as transfers:
        assert trained_states(kind, config.model_copy(update={"updates": updates, "replay": replay}), DEVICE, rounds=1)
    return transfers["reads"] + transfers["to host"]


@pytest.mark.parametrize(
    ("trial", "every", "more"),
    [("vdn", 1, 4), ("vdn", 4, 1), ("iddpg, twin", 4, 1), ("qmix", 1, 0), ("td3", 1, 0)],
)
def test_gradient_steps_wait_for_the_device_only_for_priorities(trial, every, more):
    assert waits(trial, 8, every) - waits(trial, 4, every) == more


REFUSED = "not permitted when stream is capturing"
CAPTURED_QUICK = {
    "ippo": ("continuous with memory",),
    "ippo, stopping early": ("discrete",),
    "ippo, one net": ("in turns",),
    "impact, in the box": ("continuous",),
    "mappo": ("discrete with memory",),
}
CAPTURED = [
    pytest.param(trial, case, marks=() if case in CAPTURED_QUICK.get(trial, ()) else pytest.mark.slow)
    for trial, (*_, cases) in TRIALS.items()
    if trial.split(",")[0] in ("ippo", "mappo", "impact")
    for case in cases
]


@pytest.fixture
def graphs(monkeypatch):
    found = Graphs()
    monkeypatch.setattr(ppo_learner, "graphs_of", lambda device: found if device.type == "simulated" else None)
    return found


def both_ways(trial, case, monkeypatch, graphs):
    """The states after three rounds with captured steps, and with steps that are started one by one."""
    with only(case), simulated_device():
        captured = trained_states(*configured(trial), DEVICE, rounds=3)
        monkeypatch.setattr(ppo_learner, "graphs_of", lambda device: None)
        return captured, trained_states(*configured(trial), DEVICE, rounds=3)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("trial", "case"), CAPTURED)
def test_captured_gradient_steps_compute_the_same_bits(trial, case, monkeypatch, graphs):
    captured, one_by_one = both_ways(trial, case, monkeypatch, graphs)
    assert apart(captured, one_by_one) == 0
    assert sum(each.replayed for each in graphs.made) > 2 * len(graphs.made) > 0


class Reading(PolicyFunction):
    """Looks at a number while it computes."""

    def _gradient(self, batch, settings, *, measure):
        assert float(batch["log_prob"].sum()) <= 0
        return super()._gradient(batch, settings, measure=measure)


class ReadingLate(PolicyFunction):
    """Looks at a number when nets have made their buffers already."""

    def _gradient(self, batch, settings, *, measure):
        metrics = super()._gradient(batch, settings, measure=measure)
        assert float(self.net.gradient_PD.abs().sum()) > 0
        return metrics


class Changing(PolicyFunction):
    """Does something else in its first three steps, of which the second would be captured."""

    steps = 0

    def _gradient(self, batch, settings, *, measure):
        metrics = super()._gradient(batch, settings, measure=measure)
        type(self).steps += 1
        self.net.gradient_PD.mul_(self.steps)
        return metrics


@pytest.mark.parametrize(
    ("function", "reason"), [(Reading, REFUSED), (ReadingLate, REFUSED), (Changing, "other results")]
)
def test_steps_that_cannot_be_repeated_are_not_captured(function, reason, monkeypatch, graphs):
    monkeypatch.setattr(PPOLearner, "policy_function", function)
    monkeypatch.setattr(Changing, "steps", 0)
    with pytest.warns(RuntimeWarning, match=f"kernel by kernel: .*{reason}"):
        captured, one_by_one = both_ways("ippo", "discrete", monkeypatch, graphs)
    if function is not Changing:
        assert apart(captured, one_by_one) == 0


def test_loss_that_moves_is_not_captured_and_its_critic_is(graphs):
    kind, config = configured("ippo")
    ramp = Ramp(start=0.1, end=0.0, env_steps=1000)
    made = {}
    for name, changes in {"fixed": {}, "moving": {"entropy": ramp}}.items():
        graphs.made.clear()
        with only("discrete"), simulated_device():
            trained_states(kind, config.model_copy(update=changes), DEVICE, rounds=2)
        made[name] = len(graphs.made)
    assert 0 < made["moving"] == made["fixed"] / 2


def test_shapes_that_were_not_used_for_long_are_captured_anew(graphs):
    with simulated_device():
        gradient_PD = torch.zeros(1, 2, device=DEVICE)

        def compute(batch):
            gradient_PD.copy_(batch["x"].sum(dim=1))
            return {"sum": gradient_PD.sum(dim=1)}

        steps = CapturedSteps(graphs, gradient_PD, lambda: None)
        for samples in (1, 2, 1, *range(3, 10), 1, 2):
            x = torch.ones(1, samples, 2, device=DEVICE)
            found = steps.run(compute, {"x": x}, "kind")
            assert (found["sum"].tolist(), gradient_PD.tolist()) == ([2 * samples], [[samples, samples]])
        assert len(graphs.made) == 10  # 2 anew
        before = found["sum"]
        steps.run(compute, {"x": 5 * x}, "kind")
        assert before.tolist() == [4]  # what a step found is not overwritten by the next one


class Mixing(PPOLearner):
    """Adds noise of the host to weights on the device."""

    def update(self, inputs):
        output = super().update(inputs)
        for group in inputs.groups:
            _, bank = self._parts(group.policy)[0]
            flat_D = bank.row(group.policy)["flat"]
            flat_D += torch.zeros(len(flat_D))
        return output


class Looking(PPOLearner):
    """Looks at weights with NumPy."""

    def update(self, inputs):
        output = super().update(inputs)
        for group in inputs.groups:
            _, bank = self._parts(group.policy)[0]
            assert np.isfinite(bank.row(group.policy)["flat"].numpy()).all()
        return output


@pytest.mark.parametrize(
    ("learner", "error", "broken"),
    [(Mixing, RuntimeError, "all tensors to be on the same device"), (Looking, TypeError, "can't convert")],
)
def test_device_refuses_a_learner_that_is(learner, error, broken):
    kind = Plain(learner)
    with only("discrete"):
        assert trained_states(kind, IPPOConfig(), rounds=1)  # on the host, nobody notices
        with simulated_device(), pytest.raises(error, match=broken):
            trained_states(kind, IPPOConfig(), DEVICE, rounds=1)


def test_device_computes_and_counts_its_transfers():
    with simulated_device() as transfers:
        x = torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
        y = (x[1:] * 2).requires_grad_()
        y.square().sum().backward()
        assert (y.device.type, y.is_cpu) == ("simulated", False)
        assert y.grad.cpu().tolist() == [8.0, 12.0]
        assert float(x.sum()) == 6.0
    assert transfers == {"to device": 1, "to host": 1, "reads": 1}


def test_views_share_the_memory_of_the_device_and_copies_do_not():
    with simulated_device():
        x = torch.zeros(2, 3, device=DEVICE)
        kept = x.cpu()
        x[:, 1].add_(5)
        torch.mul(x, 2, out=x.t().t())
        assert x.cpu().tolist() == [[0, 10, 0], [0, 10, 0]]
        assert not kept.any()


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda x, host: x + host, RuntimeError),
        (lambda x, host: torch.add(host, 1, out=x), RuntimeError),
        (lambda x, host: x[torch.tensor([0, 1])], RuntimeError),
        (lambda x, host: x.numpy(), TypeError),
        (lambda x, host: np.asarray(x), TypeError),
        (lambda x, host: x.data_ptr(), AssertionError),
    ],
)
def test_device_refuses(use, error):
    with simulated_device():
        x, host = torch.ones(3, device=DEVICE), torch.ones(3)
        assert (x + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]  # a number may be of the host
        with pytest.raises(error):
            use(x, host)
