"""Teams of policies in ONNX files, which run wherever ONNX does, and which `load_policy` reads as it reads others.

The graph's constants are the weights, under the names that they have in a file of `marless export`; the metadata of
that file are those of the model, with what policies hold beside their weights. Imports `onnx` when it is called: the
extra `onnx`.
"""

from __future__ import annotations

import base64
from pathlib import Path
from types import ModuleType
from typing import Any

from marless.core import regular_files
from marless.core.errors import CorruptError, SpecError, told
from marless.core.limits import MAX_PUBLISH_BYTES
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingState
from marless.learning.policies.policy_file import SavedTeam, contents, made_of, signed, write_file

SUFFIX = ".onnx"
_OPSET, _IR = 18, 9
"""Of 2022 and 2023: runtimes of that time and later read it."""
_BESIDE = "beside"
"""The metadata key of arrays that the graph does not use, as base64 of a safetensors file."""


def write_onnx(path: Path, saved: SavedTeam) -> None:
    """Write a team to an ONNX file atomically.

    The inputs and outputs of a policy are those of `onnx_policy`; in a team of several policies, their names begin with
    the name of the policy and a dot. Raises SpecError for a net that has no ONNX form, without the package `onnx`, and
    if the file would be too large; OSError.
    """
    onnx = _onnx()
    from marless.learning.policies import onnx_policy
    from marless.learning.policies.onnx_graph import OnnxGraph

    metadata, arrays = contents(saved)
    graph = OnnxGraph()
    for place, policy in enumerate(saved.policies):
        onnx_policy.write(graph, policy, f"{policy.name}." if len(saved.policies) > 1 else "", f"{place}/")
    beside = {name: array for name, array in arrays.items() if name not in graph.constants}
    made = onnx.helper.make_graph(graph.nodes, "team", graph.inputs, graph.outputs, list(graph.constants.values()))
    model = onnx.helper.make_model(
        made, producer_name="marless", ir_version=_IR, opset_imports=[onnx.helper.make_opsetid("", _OPSET)]
    )
    more = {_BESIDE: base64.b64encode(serial.encode_acting(ActingState(beside, {}))).decode()}
    onnx.helper.set_model_props(model, signed(metadata, arrays) | more)
    onnx.checker.check_model(model)
    write_file(path, model.SerializeToString())


def read_onnx(path: Path) -> SavedTeam:
    """Read the weights of a file of `write_onnx`; the graph is not looked at.

    Raises SpecError for a file of another kind and without the package `onnx`, CorruptError for a damaged one, and what
    `regular_files` lists.
    """
    onnx, data = _onnx(), regular_files.read(path, MAX_PUBLISH_BYTES)
    try:
        onnx.checker.check_model(data)
        model = onnx.load_model_from_string(data)
        metadata = {each.key: each.value for each in model.metadata_props}
        arrays: dict[str, Any] = {  # Any: arrays of all dtypes
            each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer if "/" in each.name
        }
        arrays |= serial.decode_acting(base64.b64decode(metadata.pop(_BESIDE), validate=True)).acting
    except KeyError:
        raise SpecError(
            f"{path} is no file of `marless export --onnx`: it does not say whose weights it holds"
        ) from None
    except (CorruptError, TypeError, ValueError, onnx.checker.ValidationError) as error:
        raise CorruptError(f"{path} is no ONNX file, or it is damaged: {told(error)}") from None
    return made_of(metadata, arrays, path)


def _onnx() -> ModuleType:
    try:
        import onnx
    except ModuleNotFoundError:
        raise SpecError(
            "ONNX files need the package onnx, which is not installed; pip install 'marless[onnx]'"
        ) from None
    return onnx
