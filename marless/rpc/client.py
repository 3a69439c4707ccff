"""Calls to a service: `Peer` wraps a gRPC channel with marless's limits, deadlines, credentials and domain errors.

A process must be allowed enough files and memory before it starts gRPC, which ends it by a segmentation fault if it is
not.
"""

from __future__ import annotations

import resource
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from marless.core.errors import UnavailableError
from marless.rpc import chunks
from marless.rpc.addresses import is_local
from marless.rpc.admission import JOB_KEY
from marless.rpc.errors import from_rpc
from marless.rpc.security import Security
from marless.rpc.tracing import metadata as trace_metadata

CLIENT_FILES = 64
"""Files that a process with clients must be allowed to have open: twice as many as `marless train` has."""
SERVICE_FILES = 256
"""The same for a service, which has a connection to each worker in addition."""
CLIENT_BYTES = 2**30
"""Address space that a process must be allowed: services and clients take up to 0.9 GiB, as threads reserve theirs."""
LEARNER_BYTES = 2**31
"""The same where learners run: with torch they take 1.3 GiB."""
MAX_MESSAGE_BYTES = 16 * 2**20
CALL_TIMEOUT_S = 30.0
PACKAGE = "marless.rpc.v1"
Request = TypeVar("Request")
Response = TypeVar("Response")
Reply = TypeVar("Reply", bound=Message)
Header = TypeVar("Header", bound=Message)
KEEPALIVE: tuple[tuple[str, int], ...] = (
    # A connection to a stopped or unreachable process is closed within seven seconds, on both sides. A process that is
    # busy computing keeps its connections even if it holds the GIL: gRPC's own threads answer pings.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # one minute by default; the longer of the two timeouts applies
    ("grpc.http2.max_pings_without_data", 0),
)
_OPTIONS: tuple[tuple[str, Any], ...] = (  # Any: gRPC option values are ints or strings
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    *KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 50),
    # This also limits one attempt to connect: with TLS, or on a busy machine, 0.1 s can be too short.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # With a shared subchannel, a new channel would inherit the back-off of a failed one.
    ("grpc.use_local_subchannel_pool", 1),
)
# Local traffic must not go through $http_proxy: the proxy would see or refuse what never leaves this machine.
_LOCAL_OPTIONS = (*_OPTIONS, ("grpc.enable_http_proxy", 0))


def allow_many_files() -> None:
    """Raise the limit of open files to its hard limit: each worker has a connection, each queued job a lock file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_process_limits(*, files: int = CLIENT_FILES, address_bytes: int = CLIENT_BYTES) -> None:
    """Raise UnavailableError if this process may have too few files open, or too little memory."""
    for what, option, kind, least, unit in (
        ("open files", "-n", resource.RLIMIT_NOFILE, files, 1),
        ("KiB of address space", "-v", resource.RLIMIT_AS, address_bytes, 1024),
    ):
        allowed, _ = resource.getrlimit(kind)
        if allowed != resource.RLIM_INFINITY and allowed < least:
            raise UnavailableError(
                f"this process is allowed {allowed // unit:,} {what} (`ulimit {option}`), and needs {least // unit:,}; "
                f"raise the limit: `ulimit {option} {least // unit}`"
            )


class Peer:
    """A client's connection to one service. Connects on first use; raises domain errors only.

    `service` is the name used in the message of an UnreachableError instead of the address. To make one raises
    UnavailableError in a process that may not open enough files or take enough memory.
    """

    def __init__(self, address: str, security: Security, service: str = "") -> None:
        check_process_limits()
        credentials = security.channel_credentials(address)
        options = _LOCAL_OPTIONS if is_local(address) else _OPTIONS
        self.address = address
        self.channel = (
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
        )
        self._security = security
        self._name = service or address

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """gRPC metadata of the next call: the bearer token and the present span of a trace, if there are any."""
        return (*self._security.metadata(), *trace_metadata())

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        wait_for_ready: bool = False,
    ) -> Response:
        """Call a unary method of a stub on this peer's channel, with a deadline."""
        try:
            return await method(request, timeout=timeout_s, metadata=self.metadata, wait_for_ready=wait_for_ready)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._name) from None

    async def stream(
        self, method: grpc.aio.UnaryStreamMultiCallable[Request, Response], request: Request
    ) -> AsyncGenerator[Response, None]:
        """Iterate over a server stream, without a deadline; closing the iterator cancels the call."""
        call = method(request, metadata=self.metadata)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._name) from None
        finally:
            call.cancel()

    async def send(
        self,
        method: str,
        header: Message,
        buffers: Iterable[memoryview | bytes],
        reply: type[Reply],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Reply:
        """Send a bulk transfer to `method` ("Service/Method") and return the server's reply."""
        frames = chunks.frames(header, buffers)
        first, second = next(frames), next(frames, None)
        how: dict[str, Any] = {"timeout": timeout_s, "metadata": self._of_job(header)}  # Any: arguments of a call
        path, read = f"/{PACKAGE}.{method}", reply.FromString
        try:
            if second is None:  # the same on the wire as a stream of one message, and takes less CPU time
                return await self.channel.unary_unary(path, chunks.identity, read)(first, **how)
            return await self.channel.stream_unary(path, chunks.identity, read)(chain((first, second), frames), **how)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._name) from None

    async def fetch(
        self, method: str, request: Message, header: type[Header], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> tuple[Header, bytearray]:
        """Receive a bulk transfer from `method` ("Service/Method"): its header, and all its bytes in one buffer."""
        data = bytearray()
        async with self.download(method, request, timeout_s=timeout_s) as frames:
            head, contents = await chunks.read_header(frames, header)
            async for frame in contents:
                data += chunks.data_of(frame)
        return head, data

    async def receive(
        self, method: str, request: Message, header: type[Header], into: memoryview, timeout_s: float
    ) -> Header:
        """Fetch a transfer that exactly fills `into`; raises CorruptError if it has fewer or more bytes."""
        async with self.download(method, request, timeout_s=timeout_s) as frames:
            head, contents = await chunks.read_header(frames, header)
            await chunks.read_data(contents, into)
        return head

    @asynccontextmanager
    async def download(
        self, method: str, request: Message, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Receive a bulk transfer from `method` ("Service/Method") frame by frame: see `marless.rpc.chunks`."""
        frames_of: grpc.aio.UnaryStreamMultiCallable[Message, bytes] = self.channel.unary_stream(
            f"/{PACKAGE}.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=None,
        )
        call = frames_of(request, timeout=timeout_s, metadata=self._of_job(request))
        try:
            yield aiter(call)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._name) from None
        finally:
            call.cancel()

    def _of_job(self, message: Message) -> tuple[tuple[str, str], ...]:
        """The metadata of a transfer, with its job if it has one, so that jobs take turns while transfers wait."""
        job = getattr(message, "job", "")
        # gRPC takes no other characters in metadata; a call that names no job only waits in a line of its own.
        return (*self.metadata, (JOB_KEY, job)) if job and job.isascii() and job.isprintable() else self.metadata

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        await self.channel.close()
