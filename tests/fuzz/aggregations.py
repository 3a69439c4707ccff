"""Requests to the parameter function, and the gradients and states that it reads."""

from __future__ import annotations

import math

import numpy as np
from safetensors import numpy as safetensors

from marless.core.state import NetStep, ReturnScale
from marless.learning.nets import serial
from marless.rpc.v1 import param_store_pb2
from marless.services.param_store.aggregation import aggregation_of
from marless.services.param_store.parameter_function import next_versions
from tests.fuzz.choices import Choices, raw

NAMES = (
    "gradient/0/0",
    "gradient/1/0",
    "a",
    "b",
    "lane/0",
    "",
    "gradient/",
    "two words",
    "x{y}",
    "g" * 300,
    "gradient/²",
)
NUMBERS = (1.0, 0.5, 0.0, -1.0, 1e308, math.inf, math.nan, 5e-324)
STEPS = {
    "policy": NetStep(lr=0.1, eps=1e-8, max_grad_norm=0.5, target_steps=1),
    "critic": NetStep(lr=0.1, eps=1e-8, max_grad_norm=0.5, returns=ReturnScale(decay=0.9, popart=True)),
}
Arrays = dict[str, np.ndarray]


def request(choices: Choices) -> None:
    """A request, with anything changed, as the servicer takes it."""
    made = param_store_pb2.AggregateRequest(job="job", epoch=1, round=1, keep=3)
    made.policies.add(policy="a", version=1)
    one = made.gradients.add(weight=1.0)
    one.parts.add(policy="gradient/0/0", version=1)
    made.steps["policy"].lr, made.steps["policy"].max_grad_norm = 0.1, 0.5
    for _ in range(choices.below(4)):
        what = choices.below(8)
        if what in (0, 1, 2):
            pairs = (made.policies, one.parts, made.discarded)[what]
            pairs.add(policy=choices.pick(NAMES), version=choices.number())
        elif what == 3:
            made.gradients.add(weight=choices.pick(NUMBERS)).parts.add(policy=choices.pick(NAMES), version=1)
        elif what == 4:
            step = made.steps[choices.pick(("policy", "critic", "", "mixer"))]
            step.lr, step.eps, step.max_grad_norm = (choices.pick(NUMBERS) for _ in range(3))
        elif what == 5:
            step = made.steps["critic"]
            step.returns.decay = choices.pick(NUMBERS)
        elif what == 6:
            made.epoch, made.round = choices.number(), choices.number()
        else:
            one.weight, made.job = choices.pick(NUMBERS), choices.pick(NAMES)
    wanted = aggregation_of(made)
    assert wanted.gradients
    assert all(0 < each.weight <= 1 for each in wanted.gradients)


def gradient(choices: Choices) -> None:
    """A policy and two gradients of it, as learners have published them."""
    flat_D = np.ones(6, np.float32)
    acting = {"policy.0.weight": np.ones((2, 2), np.float32), "policy.0.bias": np.zeros(2, np.float32)}
    learning: Arrays = {"critic.0.weight": np.ones((1, 2), np.float32), "critic.0.bias": np.zeros(1, np.float32)}
    for prefix, size in (("policy", 6), ("critic", 3)):
        learning |= {f"{prefix}.{name}": np.zeros(size, np.float32) for name in ("first", "second")}
        learning[f"{prefix}.count"] = np.array(1)
    learning |= {"policy.target": flat_D, "critic.moments": np.zeros((1, 3))}
    sent = {"a/policy": flat_D, "a/critic": flat_D[:3], "a/critic.returns": np.ones((1, 3))}
    state = serial.encode_acting(serial.ActingState(_changed(acting, choices), {})), _file(_changed(learning, choices))
    files = [{f"gradient/{k}/0": _file(_changed(sent, choices))} for k in range(2)]
    if choices.sometimes(8):
        files[0] = {name: raw(data, choices) for name, data in files[0].items()}
    weights = [choices.pick((1.0, 0.5, 5e-324)) for _ in files]
    made, _ = next_versions({"a": state}, files, weights, STEPS, choices.sometimes(2))
    serial.decode(*map(bytes, made["a"].blobs))  # whole, and finite


def _changed(arrays: Arrays, choices: Choices) -> Arrays:
    """Arrays of which up to two are missing, of another type, shape or name, or odd numbers; most often none."""
    found = dict(arrays)
    for _ in range(max(0, choices.below(5) - 2)):
        if not found:
            break
        name, what = choices.pick(sorted(found)), choices.below(5)
        array = found.pop(name)
        if what == 1:
            with np.errstate(all="ignore"):
                found[name] = array.astype(choices.pick(("float64", "int64", "bool", "float16", "uint8")))
        elif what == 2:
            found[name] = np.zeros([side + choices.pick((0, 1)) for side in array.shape], array.dtype)
        elif what == 3:
            found[name] = array.reshape(choices.pick(((-1,), (1, -1), (-1, 1), (1, 1, -1))))
        elif what == 4:
            found[choices.pick(("policy", "a", "a/b/policy", "", "b/policy", "policy.free", "policy.9.weight"))] = array
        if what in (1, 2) and found[name].dtype.kind == "f" and choices.sometimes(4):
            with np.errstate(all="ignore"):
                found[name] = np.full_like(found[name], choices.pick(NUMBERS))
    return found


def _file(arrays: Arrays) -> bytes:
    return safetensors.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
