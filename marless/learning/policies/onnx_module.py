"""Modules of torch in the ONNX graphs of policies: the graph that actors run becomes a part of the policy's."""

from __future__ import annotations

from math import prod

import onnx
from onnx import numpy_helper

from marless.learning.nets.acting_module import OUTPUTS, PARAMETER, graph_in, input_names
from marless.learning.nets.module_layout import PARAMETERS
from marless.learning.nets.net_kind import InputShape
from marless.learning.policies.onnx_graph import BATCH, OnnxGraph, Traced
from marless.learning.policies.policy import Policy


def write(graph: OnnxGraph, policy: Policy, prefix: str, held: str, inputs: InputShape, x: Traced) -> Traced:
    """Add the module of a policy, which reads inputs [batch, I]; returns its outputs [batch, K].

    Its parameters are one constant, as in the state, of which the graph takes each.
    """
    arrays = policy.state.acting
    part = onnx.load_model_from_string(graph_in(arrays)).graph
    flat = graph.constant(arrays[f"policy.{PARAMETERS}"], f"{held}policy.{PARAMETERS}")
    given = [x] if inputs.image is None else [x[:, : inputs.pixels].reshape(BATCH, *inputs.image)]
    if inputs.image is not None and inputs.size > inputs.pixels:
        given.append(x[:, inputs.pixels :])
    names, start = {name: each.name for name, each in zip(input_names(len(given)), given, strict=True)}, 0
    for each in part.input:
        if each.name.startswith(PARAMETER):
            shape = [length.dim_value for length in each.type.tensor_type.shape.dim]
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
    outputs = part.output[0].type.tensor_type.shape.dim[1].dim_value
    return Traced(graph, renamed(OUTPUTS), (BATCH, outputs))
