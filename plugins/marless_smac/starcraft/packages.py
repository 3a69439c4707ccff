"""The packages of the extra `starcraft`, imported in one place, so that a missing or clashing one gets one sentence."""

from __future__ import annotations

from marless.core.errors import SpecError

try:
    import websocket
    from google.protobuf.message import DecodeError
    from s2clientprotocol import common_pb2, debug_pb2, raw_pb2, sc2api_pb2
except ImportError as missing:
    raise SpecError(
        f"backend sc2 needs {missing.name}, which is not installed; pip install 'marless[starcraft]'"
    ) from None
except TypeError:  # protobuf refuses code that was generated for its versions before 4
    raise SpecError(
        "the installed package s2clientprotocol is too old for protobuf, and hides pys2clientprotocol: `pip uninstall"
        " s2clientprotocol`, then `pip install --force-reinstall pys2clientprotocol`"
    ) from None

__all__ = ["DecodeError", "common_pb2", "debug_pb2", "raw_pb2", "sc2api_pb2", "websocket"]
