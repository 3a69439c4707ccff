"""Requests to a running game: protobuf messages in WebSocket frames, one at a time."""

from __future__ import annotations

from typing import Any

from marless.core.errors import UnavailableError, told
from marless_smac.starcraft.packages import DecodeError, sc2api_pb2, websocket

ENDED = sc2api_pb2.ended
LAUNCHED = sc2api_pb2.launched


class GameError(UnavailableError):
    """The game failed, or answered against its protocol; a new process of it may work."""


class GameSocket:
    """One WebSocket to a game. After a request that took longer than `timeout_s`, the connection cannot be used."""

    def __init__(self, socket: Any, timeout_s: float) -> None:  # Any: websocket-client has no types
        self._socket, self._timeout_s, self._id = socket, timeout_s, 0
        self._socket.settimeout(timeout_s)
        self.status = LAUNCHED

    def ask(self, kind: str, request: Any) -> Any:  # Any: messages of the game's protocol
        """Send a request, which is the field `kind` of the protocol's Request; returns that field of the answer.

        Raises GameError if the game reports an error, does not answer in time, or answers against the protocol.
        """
        self._id += 1
        self._send(kind, sc2api_pb2.Request(id=self._id, **{kind: request}))
        response = self._receive(kind)
        if response.error:
            raise GameError(f"StarCraft II refused {kind}: {'; '.join(response.error)}")
        if response.id != self._id or not response.HasField("status"):
            raise GameError(f"StarCraft II answered {kind} with no status, or the answer to another request")
        self.status = response.status
        if not response.HasField(kind):
            raise GameError(f"StarCraft II answered {kind} with {response.WhichOneof('response')}")
        answer = getattr(response, kind)
        if "error" in answer.DESCRIPTOR.fields_by_name and answer.HasField("error"):
            name = answer.DESCRIPTOR.fields_by_name["error"].enum_type.values_by_number[answer.error].name
            raise GameError(f"StarCraft II refused {kind}: {name} {answer.error_details}".rstrip())
        return answer

    def close(self) -> None:
        """Ask the game to quit, without waiting for an answer, and close the socket."""
        try:
            self._send("quit", sc2api_pb2.Request(quit=sc2api_pb2.RequestQuit()))
        except GameError:
            pass  # it has ended already
        finally:
            self._socket.shutdown()

    def _send(self, kind: str, request: Any) -> None:  # Any: as above
        try:
            self._socket.send_binary(request.SerializeToString())
        except (websocket.WebSocketException, OSError) as error:
            raise GameError(f"StarCraft II cannot be asked for {kind}: {told(error)}") from error

    def _receive(self, kind: str) -> Any:  # Any: as above
        try:
            opcode, data = self._socket.recv_data()
        except websocket.WebSocketTimeoutException as error:
            raise GameError(f"StarCraft II has not answered {kind} within {self._timeout_s:g} s") from error
        except (websocket.WebSocketException, OSError) as error:
            raise GameError(f"StarCraft II closed the connection during {kind}: {told(error)}") from error
        if opcode != websocket.ABNF.OPCODE_BINARY:
            raise GameError(f"StarCraft II closed the connection during {kind}")
        try:
            return sc2api_pb2.Response.FromString(data)
        except DecodeError as error:
            raise GameError(f"StarCraft II answered {kind} with bytes that are no message") from error
