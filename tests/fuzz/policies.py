"""Policies of strangers: read, made ready, and acted with."""

from __future__ import annotations

import json
import struct
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from marless.core.errors import MarlessError
from marless.learning.envs.base import AgentClass, Discrete
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.acting_module import OPSET
from marless.learning.policies.policy_file import digest, read_policies
from marless.learning.policies.team import Team
from tests.fuzz import scratch
from tests.fuzz.choices import ODD, Choices, document, raw, text

METADATA: dict[str, Any] = {"kind": "mlp", "activation": "tanh", "action": "discrete:3"}
ORIGIN: dict[str, Any] = {
    **{"policy": "a", "agents": '["a", "b"]', "version": "3", "job": "j", "round": "7", "algorithm": "ippo"},
    **{"env": "mpe/simple_spread", "env_options": "{}"},
}
WORDS = (
    *(
        "discrete:0",
        "discrete:9999",
        "discrete:" + "9" * 5000,
        "discrete:²",
        "box:[[0.0],[1.0]]",
        "box:[[],[]]",
        "box:[1]",
    ),
    *(
        'box:[["a"],["b"]]',
        "box:[[0],[1]]",
        "box:[[NaN],[1.0]]",
        "box:" + "[" * 1500,
        "gru",
        "relu",
        "epsilon",
        "noise",
    ),
    *("stochastic", "obs+id", "obs+last_action", "obs+last_action+id", '["a","b"]', "[[]]", "[" * 1500, "9" * 5000),
    *("-1", "1.5", "", "null", "[1]", '{"a": 1}'),
)


@cache
def _arrays() -> dict[str, np.ndarray]:
    made = {}
    for at, (inputs, outputs) in enumerate(((2, 4), (4, 3))):
        made[f"policy.{at}.weight"] = np.ones((outputs, inputs), np.float32)
        made[f"policy.{at}.bias"] = np.zeros(outputs, np.float32)
    return made


def _changed_arrays(choices: Choices) -> dict[str, np.ndarray]:
    arrays = dict(_arrays())
    for _ in range(choices.below(3)):
        name, what = choices.pick(sorted(arrays)), choices.below(5)
        array = arrays[name]
        if what == 0:
            del arrays[name]
        elif what == 1:
            arrays[name] = array.astype(choices.pick(("float64", "int64", "bool", "float16", "uint8")))
        elif what == 2:
            arrays[name] = np.zeros([side + choices.pick((0, 1)) for side in array.shape], np.float32)
        elif what == 3:
            arrays[name] = array.reshape(choices.pick(((-1,), (1, -1), (-1, 1), (1, 1, -1))))
        else:
            arrays[choices.pick(("policy.9.bias", "policy.free", "exploration", "policy", "", "policy.0.gru"))] = array
        if not arrays:
            break
    return arrays


def _metadata(base: dict[str, Any], choices: Choices) -> dict[str, Any]:
    found = dict(base)
    for _ in range(choices.below(3)):
        key = choices.pick((*found, "acts", "inputs", "ids"))
        if choices.sometimes(6):
            found.pop(key, None)
        else:
            found[key] = choices.pick(ODD) if choices.sometimes(4) else choices.pick(WORDS)
    return found


def _file(arrays: dict[str, np.ndarray], metadata: object, choices: Choices) -> bytes:
    """A safetensors file by hand, so that nothing refuses to write it."""
    header: dict[str, Any] = {"__metadata__": {"marless": text(scratch.json_text(metadata), choices)}}
    at = 0
    names = {"float32": "F32", "float64": "F64", "int64": "I64", "bool": "BOOL", "float16": "F16", "uint8": "U8"}
    for name, array in arrays.items():
        end = at + array.nbytes
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    if choices.sometimes(6):
        header = document(header, choices)
    written = text(json.dumps(header), choices).encode("utf-8", "surrogatepass")
    data = struct.pack("<Q", len(written)) + written + b"".join(array.tobytes() for array in arrays.values())
    return raw(data, choices) if choices.sometimes(4) else data


def acting(choices: Choices) -> None:
    """As an actor worker pulls it: decoded, stacked, acted with."""
    state = serial.decode_acting(_file(_changed_arrays(choices), _metadata(METADATA, choices), choices))
    agent_class = AgentClass("a", ("a", "b"), 2, Discrete(3))
    players = ActingPolicies.from_states(agent_class, [state, state])
    chosen = players.greedy(np.zeros((2, 1, 2), np.float32), None)
    assert chosen.shape == (2, 1)


@cache
def _graph() -> bytes:
    """A layer as a module's ONNX graph."""
    shapes = {"inputs": ["batch", 2], "parameter.weight": [3, 2], "parameter.bias": [3], "outputs": ["batch", 3]}
    *inputs, output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, each) for name, each in shapes.items())
    *given, found = shapes
    made = helper.make_graph([helper.make_node("Gemm", given, [found], transB=1)], "module", inputs, [output])
    model = helper.make_model(made, ir_version=9, opset_imports=[helper.make_opsetid("", OPSET)])
    written: bytes = model.SerializeToString()
    return written


def module(choices: Choices) -> None:
    """As `acting`, of a module of torch, whose graph is read in C++."""
    graph = np.frombuffer(raw(_graph(), choices), np.uint8)
    arrays = {"policy.parameters": np.ones(choices.pick((9, 9, 8, 10)), np.float32), "policy.graph": graph}
    metadata = METADATA | {"kind": "module/their", "hidden": "2", "observes": "2"}
    state = serial.decode_acting(_file(arrays, metadata, Choices(b"")))
    players = ActingPolicies.from_states(AgentClass("a", ("a", "b"), 2, Discrete(3)), [state, state])
    assert players.greedy(np.zeros((2, 1, 2), np.float32), None).shape == (2, 1)


def policy_file(choices: Choices) -> None:
    """As `marless evaluate FILE` loads it; its digest is right, for a stranger can compute one too."""
    _loaded(_changed_arrays(choices), _metadata(METADATA | ORIGIN, choices), choices)


def team_file(choices: Choices) -> None:
    """The same for a file of a team: arrays and metadata of each policy begin with its place."""
    arrays: dict[str, np.ndarray] = {}
    metadata = {key: ORIGIN[key] for key in ("job", "round", "algorithm", "env", "env_options")}
    listed = [{"name": "a", "agents": ["a"], "version": 3}, {"name": "b", "agents": ["b"], "version": 4}]
    for place in range(len(listed)):
        arrays |= {f"{place}/{name}": array for name, array in _changed_arrays(choices).items()}
        metadata |= {f"{place}/{name}": value for name, value in _metadata(METADATA, choices).items()}
    metadata |= {
        "policies": scratch.json_text(document(listed, choices) if choices.sometimes(2) else listed),
        "card": scratch.json_text(document({"job": "j", "curve": [[1, 2.0]]}, choices)),
    }
    _loaded(arrays, _metadata(metadata, choices), choices)


def _loaded(arrays: dict[str, np.ndarray], metadata: dict[str, Any], choices: Choices) -> None:
    plain = Choices(b"")
    try:
        decoded = serial.decode_acting(_file(arrays, metadata, plain))
        metadata["sha256"] = digest(decoded.metadata, decoded.acting)
    except (MarlessError, TypeError, ValueError):
        metadata["sha256"] = "none"
    files = scratch.files({"policy": _file(arrays, metadata, choices if choices.sometimes(3) else plain)})
    held = read_policies(files / "policy")
    team = Team.of(held.policies, held.origin, held.card)
    sizes = {agent: policy.obs_size for policy in held.policies for agent in policy.agents}
    team.act({agent: np.zeros(sizes[agent]) for agent in team.agents})
