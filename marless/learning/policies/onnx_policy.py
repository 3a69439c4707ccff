"""The ONNX graph of a policy: what it observes, how it acts, what it remembers, as named inputs and outputs.

| input | dtype, shape | |
|---|---|---|
| `observation` | float32 [batch, O] | as the environment gives it |
| | uint8 [batch, frames · channels, height, width] | the last `model.frames` images, the oldest first |
| `mask` | bool [batch, A] | discrete actions: which are legal |
| `agent` | int64 [batch] | place of the agent in `ids`, where the policy tells agents apart |
| `hidden` | float32 [batch, H] | memory of recurrent nets, 0 at the start of an episode |
| `last_action` | float32 [batch, A] | one-hot or its components, 0 at the start, where the policy reads it |

| output | dtype, shape | |
|---|---|---|
| `action` | int64 [batch], or float32 [batch, A] within its box | the greedy action |
| `logits` or `values` | float32 [batch, A] | of discrete actions; illegal ones have −1e9 |
| `mean`, `log_std` | float32 [batch, A] | of stochastic continuous policies, in units in which the box is [−1, 1] |
| `next_hidden`, `next_last_action` | | to be given with the next observation |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets import acting_heads as heads
from marless.learning.nets.acting_module import MEMORY, NEXT_MEMORY, OUTPUTS, PARAMETER, graph_in, input_names
from marless.learning.nets.acting_nets import hidden_of
from marless.learning.nets.inputs import WHITE, Inputs
from marless.learning.nets.kinds import MLP, SIZED_BY_WEIGHTS, kind_of
from marless.learning.nets.layout import NetLayout, layout_of
from marless.learning.nets.module_kind import is_module
from marless.learning.nets.module_layout import PARAMETERS
from marless.learning.nets.net_kind import InputShape, Ops, Window
from marless.learning.nets.normalising import Normaliser
from marless.learning.policies.onnx_graph import BATCH, OnnxGraph, Traced
from marless.learning.policies.policy import Policy


def write(graph: OnnxGraph, policy: Policy, prefix: str, held: str) -> None:
    """Add a policy to a graph: the names of its inputs and outputs begin with `prefix`, those of its weights, which are
    named as in its state, with `held`. Raises SpecError for a net that has no ONNX form.
    """
    metadata, agents = policy.state.metadata, policy.agent_class
    inputs, acts = Inputs.parse(metadata), metadata.get("acts", heads.STOCHASTIC)
    kind, activation = metadata.get("kind", MLP), metadata.get("activation", "")
    if is_module(kind):
        x, last_action = _Reader(graph, prefix, policy, agents, inputs).rows()
        output = _add_module(graph, policy, prefix, held, inputs.shape(agents), x[0].swapaxes(0, 1))
        _finish(graph, prefix, held, policy, output[:, : heads.outputs_of(agents.action, acts)], last_action)
        return
    by_weights = kind in SIZED_BY_WEIGHTS
    hidden = hidden_of(policy.state.acting, kind) if by_weights else tuple(map(int, metadata["hidden"].split(",")))
    actions = heads.outputs_of(agents.action, acts)
    layout = layout_of(kind, inputs.shape(agents), hidden, actions + heads.values_of(metadata))
    read = _Reader(graph, prefix, policy, agents, inputs)
    x, last_action = read.rows()
    # Definitions call layers, or give them to `Ops.convolve`; what they are is a matter between `Ops` and layers.
    layers: list[Any] = [_Layer(graph, held, policy, name) for name in layout.names]
    memory = _memory(graph, prefix, layout)
    try:
        found, memory = kind_of(kind).step(ops(layout, activation), layers, x, memory)
    except SpecError as error:
        raise SpecError(f"net {kind}: {error}") from None
    except (TypeError, ValueError) as error:
        raise SpecError(f"net {kind} computes something that has no ONNX form: {error}; write it with `Ops`") from None
    if layout.memory:
        graph.output(f"{prefix}next_hidden", "float32", memory[0].swapaxes(0, 1))
    _finish(graph, prefix, held, policy, found[0][:actions].swapaxes(0, 1), last_action)


def _finish(graph: OnnxGraph, prefix: str, held: str, policy: Policy, output: Traced, last_action: bool) -> None:
    """Write what a net's outputs [batch, K] mean."""
    acts = policy.state.metadata.get("acts", heads.STOCHASTIC)
    action = _act(graph, prefix, held, policy, output, acts)
    if last_action:
        graph.output(f"{prefix}next_last_action", "float32", action)


@dataclass(frozen=True)
class _Reader:
    """Makes the inputs of a net."""

    graph: OnnxGraph
    prefix: str
    policy: Policy
    agents: AgentClass
    inputs: Inputs

    def rows(self) -> tuple[Traced, bool]:
        """Inputs [1, I, batch] as `Inputs` orders them, and whether the last action is among them."""
        parts = [self._observation()]
        if self.inputs.last_action:
            parts.append(self.graph.input(f"{self.prefix}last_action", "float32", (BATCH, self.agents.action.n)))
        if known := len(self.inputs.known):
            agent = self.graph.input(f"{self.prefix}agent", "int64", (BATCH,))
            places = self.graph.constant(np.array(known, np.int64)), self.graph.constant(np.array([0, 1], np.float32))
            parts.append(self.graph.node("OneHot", [agent, *places], (BATCH, known)))
        return joined(parts).swapaxes(0, 1)[None], self.inputs.last_action

    def _observation(self) -> Traced:
        image, name = self.agents.image, f"{self.prefix}observation"
        if image is not None:
            channels, height, width = image
            stacked = self.graph.input(name, "uint8", (BATCH, self.inputs.frames * channels, height, width))
            return stacked.reshape(BATCH, -1).alike("Cast", to=TensorProto.FLOAT) / float(WHITE)
        x = self.graph.input(name, "float32", (BATCH, self.agents.obs_size))
        state = self.policy.state
        normaliser = Normaliser.of([state.acting], state.metadata, self.agents.obs_size)
        if normaliser is None:
            return x
        x = (x - normaliser.centre[0, :, 0]) * normaliser.scale[0, :, 0]
        if normaliser.clip is None:
            return x
        low, high = (self.graph.constant(np.array(bound, np.float32)) for bound in (-normaliser.clip, normaliser.clip))
        return x.alike("Clip", low, high)


def _memory(graph: OnnxGraph, prefix: str, layout: NetLayout) -> Traced:
    """The memory [1, H, batch] before this step."""
    if not layout.memory:
        return Traced(graph, "", (1, 0, BATCH))
    return graph.input(f"{prefix}hidden", "float32", (BATCH, layout.memory)).swapaxes(0, 1)[None]


class _Layer:
    """A layer of a net; `weight` of a convolution is [outputs, rows · columns · channels]."""

    def __init__(self, graph: OnnxGraph, held: str, policy: Policy, name: str) -> None:
        arrays = policy.state.acting
        self.weight, self.bias = (
            graph.constant(arrays[f"policy.{name}.{part}"], f"{held}policy.{name}.{part}")
            for part in ("weight", "bias")
        )

    def __call__(self, x: Traced) -> Traced:
        shape = (x.shape[0], self.weight.shape[0], x.shape[2])
        return x.graph.node("MatMul", [self.weight, x], shape) + self.bias[:, None]


def ops(layout: NetLayout, activation: str) -> Ops:
    """What definitions of nets call beside layers, as nodes."""
    operator = {"tanh": "Tanh", "relu": "Relu"}.get(activation)
    if operator is None:
        raise CorruptError(f"policy state: activation {activation!r:.40}")
    return Ops(
        inputs=layout.input_shape,
        activate=lambda x: x.alike(operator),
        tanh=lambda x: x.alike("Tanh"),
        sigmoid=lambda x: x.alike("Sigmoid"),
        exp=lambda x: x.alike("Exp"),
        join=joined,
        largest=lambda x, axis: x.reduced("ReduceMax", axis),
        choose=_chosen,
        images=layout.input_shape.images,
        convolve=_convolved,
        pool=_pooled,
    )


def joined(arrays: Sequence[Traced]) -> Traced:
    """Arrays side by side along their second axis."""
    first = arrays[0]
    if len(arrays) == 1:
        return first
    shape = (first.shape[0], sum(each.shape[1] for each in arrays), *first.shape[2:])
    return first.graph.node("Concat", arrays, shape, axis=1)


def _chosen(mask: Traced, x: Traced, otherwise: float) -> Traced:
    number = x.graph.constant(np.array(otherwise, np.float32))
    return x.graph.node("Where", [mask, x, number], np.broadcast_shapes(mask.shape, x.shape))


def _convolved(layer: Any, images: Traced, window: Window) -> Traced:  # Any: a `_Layer`
    """Images [1, batch, height, width, channels]; ONNX wants channels first."""
    _, copies, height, width, channels = images.shape
    outputs, places = layer.weight.shape[0], (window.steps(height), window.steps(width))
    weight = layer.weight.reshape(outputs, window.size, window.size, channels).transposed([0, 3, 1, 2])
    x = images.reshape(copies, height, width, channels).transposed([0, 3, 1, 2])
    how = {"strides": [window.stride] * 2, "pads": [window.padding] * 4, "kernel_shape": [window.size] * 2}
    return _last(x.graph.node("Conv", [x, weight, layer.bias], (copies, outputs, *places), **how))


def _pooled(images: Traced, window: Window) -> Traced:
    _, copies, height, width, channels = images.shape
    x = images.reshape(copies, height, width, channels).transposed([0, 3, 1, 2])
    how = {"strides": [window.stride] * 2, "pads": [window.padding] * 4, "kernel_shape": [window.size] * 2}
    return _last(x.graph.node("MaxPool", [x], (copies, channels, window.steps(height), window.steps(width)), **how))


def _last(x: Traced) -> Traced:
    """Images with channels first, [batch, channels, height, width], as definitions of nets have them."""
    return x.transposed([0, 2, 3, 1])[None]


def _act(graph: OnnxGraph, prefix: str, held: str, policy: Policy, output: Traced, acts: str) -> Traced:
    """Write actions of a net's outputs [batch, K]; returns what the policy remembers of them."""
    space = policy.action
    if isinstance(space, Discrete):
        return _choose_best(graph, prefix, space.n, output, "values" if acts == heads.EPSILON_GREEDY else "logits")
    unit = recorded = _unit_mean(graph, prefix, held, policy, output, acts)
    if acts == heads.SQUASHED_NORMAL:
        unit = recorded.alike("Tanh")
    graph.output(f"{prefix}action", "float32", _within(space, unit))
    return recorded


def _choose_best(graph: OnnxGraph, prefix: str, n: int, output: Traced, name: str) -> Traced:
    mask = graph.input(f"{prefix}mask", "bool", (BATCH, n))
    scores = _chosen(mask, output, heads.ILLEGAL_LOGIT)
    best = graph.node("ArgMax", [scores], (BATCH,), axis=1, keepdims=0)
    graph.output(f"{prefix}action", "int64", best)
    graph.output(f"{prefix}{name}", "float32", scores)
    switch = graph.constant(np.array([0, 1], np.float32))
    return graph.node("OneHot", [best, graph.constant(np.array(n, np.int64)), switch], (BATCH, n))


def _unit_mean(graph: OnnxGraph, prefix: str, held: str, policy: Policy, output: Traced, acts: str) -> Traced:
    """The mean of a continuous policy's recorded actions [batch, A]; stochastic ones output it, and the deviation."""
    n = policy.action.n
    if acts in {heads.DETERMINISTIC, heads.DETERMINISTIC_OR_RANDOM}:
        return output.alike("Tanh")
    if acts == heads.SQUASHED:
        return output[:, :n].alike("Tanh")
    if acts == heads.BETA:
        concentrations = output.alike("Softplus") + 1.0
        alpha, beta = concentrations[:, :n], concentrations[:, n:]
        total = alpha + beta
        mean = (alpha - beta) / total
        log_std = (alpha * beta / (total + 1.0)).alike("Log") * 0.5 - total.alike("Log") + float(np.log(2.0))
    else:
        mean = output
        free = graph.constant(policy.state.acting["policy.free"], f"{held}policy.free")
        log_std = graph.node("Expand", [free, graph.node("Shape", [output], (2,))], output.shape)
    graph.output(f"{prefix}mean", "float32", mean)
    graph.output(f"{prefix}log_std", "float32", log_std)
    return mean


def _within(box: Box, unit: Traced) -> Traced:
    """`Box.components` of numbers [batch, A]."""
    low, high = (each.astype(np.float32) for each in box.bounds)
    above, below = np.isfinite(low), np.isfinite(high)
    least, most = np.where(above, low, 0).astype(np.float32), np.where(below, high, 0).astype(np.float32)
    found = (unit + 1.0) * (np.float32(0.5) * (most - least)) + least
    if not (above & below).all():
        graph = unit.graph
        for where, other in (
            (~(above & below), unit),
            (above & ~below, unit.alike("Softplus") + least),
            (below & ~above, most - (-unit).alike("Softplus")),
        ):
            found = graph.node("Where", [graph.constant(where), other, found], unit.shape)
    return found.alike("Max", found.graph.constant(low)).alike("Min", found.graph.constant(high))


def _add_module(graph: OnnxGraph, policy: Policy, prefix: str, held: str, inputs: InputShape, x: Traced) -> Traced:
    """Add the graph that actors run, which reads inputs [batch, I] and what it remembers; returns its outputs
    [batch, K].

    Its parameters are one constant, as in the state, of which the graph takes each.
    """
    arrays = policy.state.acting
    part = onnx.load_model_from_string(graph_in(arrays)).graph
    flat = graph.constant(arrays[f"policy.{PARAMETERS}"], f"{held}policy.{PARAMETERS}")
    given = [x] if inputs.image is None else [x[:, : inputs.pixels].reshape(BATCH, *inputs.image)]
    if inputs.image is not None and inputs.size > inputs.pixels:
        given.append(x[:, inputs.pixels :])
    shapes = {each.name: [one.dim_value for one in each.type.tensor_type.shape.dim] for each in part.input}
    if MEMORY in shapes:
        given.append(graph.input(f"{prefix}hidden", "float32", (BATCH, shapes[MEMORY][1])))
    known = input_names(len(given), remembers=MEMORY in shapes)
    names, start = {name: each.name for name, each in zip(known, given, strict=True)}, 0
    for each in part.input:
        if each.name.startswith(PARAMETER):
            shape = shapes[each.name]
            size = prod(shape)
            names[each.name] = flat[start : start + size].reshape(*shape).name
            start += size

    # Names of values are those of the whole file, so all of this part get one beginning.
    def renamed(name: str) -> str:
        return names.get(name, f"{prefix}module/{name}") if name else ""

    for held_array in part.initializer:
        names[held_array.name] = graph.constant(numpy_helper.to_array(held_array)).name
    for node in part.node:
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.name = renamed(node.name)
        copied.input[:] = map(renamed, node.input)
        copied.output[:] = map(renamed, node.output)
        graph.nodes.append(copied)
    found = {
        each.name: Traced(graph, renamed(each.name), (BATCH, each.type.tensor_type.shape.dim[1].dim_value))
        for each in part.output
    }
    if NEXT_MEMORY in found:
        graph.output(f"{prefix}next_hidden", "float32", found[NEXT_MEMORY])
    return found[OUTPUTS]
