"""Calls to an API server of Kubernetes, through the official client; their errors say what failed and what to do.

The client's own half for asyncio is used, and of it the configuration, authentication and requests. Objects are JSON
as the server has it: the client's models refuse what a newer server adds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from marless.core.errors import SpecError, UnavailableError, told
from marless.core.installing import how_to_install
from marless_kubernetes.refusals import advice_for
from marless_kubernetes.settings import NAME, ClusterAccess

CALLS = 16
"""Calls at once."""
FIRST_WAIT_S = 0.2
"""Seconds before a call is tried again the first time; each further wait is twice as long, by half more or less."""
LONGEST_WAIT_S = 10.0
CONNECT_S = 10.0
"""Seconds in which the server must take a connection."""
SILENT_S = 60.0
"""Seconds that a watch may be silent beyond its time limit; then its connection is taken for lost."""
_MOST_BYTES = 2**24
"""Of an answer that is shown to people only in part; a list of Pods may be longer."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TRIED_AGAIN = (429, 500, 502, 503, 504)
Json = Mapping[str, Any]  # Any: as the server has it


class ApiError(UnavailableError):
    """A call failed; the message says which, on what, why, and what to do."""

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", lost: bool = False, wait_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status = status
        """Status of the answer; 0 if there was none."""
        self.reason = reason
        """The answer's reason in a word, such as AlreadyExists."""
        self.lost = lost
        """True if the server may have done, or may still do, what it was asked."""
        self.wait_s = wait_s
        """Seconds after which the server wants to be asked again; 0: it does not say."""

    @property
    def passes(self) -> bool:
        """True if the same call may succeed later: a Conflict is one of counting quotas, with other Pods at once."""
        return self.status in _TRIED_AGAIN or (self.status, self.reason) == (409, "Conflict") or self.status == 0


class ApiServer:
    """One API server, and a namespace of it. It must be used in one event loop."""

    def __init__(self, access: ClusterAccess) -> None:
        """Raises SpecError without the package `kubernetes`, and outside a cluster without a kubeconfig."""
        self._access = access
        self._aio = _client()
        self._connected: Any = None  # Any: of the client, checked without its types
        self._connecting = asyncio.Lock()
        self._calls = asyncio.Semaphore(CALLS)
        self.namespace = access.namespace
        self.in_cluster = not access.kubeconfig and (_ACCOUNT / "token").exists()
        """True if the pool runs in a Pod, and uses its service account."""

    @property
    def url(self) -> str:
        """Where it is; "" before the first call."""
        return str(self._connected.configuration.host) if self._connected else ""

    async def call(self, what: str, method: str, path: str, body: Json | None = None, **query: str) -> Json:
        """Make a call, tried again while the server is overloaded or gone; returns its answer, or raises ApiError.

        Args:
            what: The call in words: "create Pod marless-1".
            method: Of HTTP.
            path: Below the namespace, or with a leading slash.
            body: What is sent as JSON.
            query: The query's parameters.
        """
        wait_s, lost = FIRST_WAIT_S, False
        try:
            async with asyncio.timeout(self._access.api_s):
                while True:
                    try:
                        async with self._response(what, method, path, body, query, self._access.api_s / 2) as response:
                            answer: Json = json.loads(await response.read())
                            return answer
                    except ApiError as error:
                        lost = lost or error.lost
                        if not error.passes:
                            raise
                        failed = error
                    await asyncio.sleep(min(failed.wait_s, LONGEST_WAIT_S) or wait_s * random.uniform(0.5, 1.5))
                    wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        except TimeoutError:
            late = f"cannot {what}: no answer within {self._access.api_s:g} s from the API server at {self.url}"
            failed = locals().get("failed") or ApiError(f"{late}; see its log", lost=True)
            failed.lost = failed.lost or lost
            raise failed from None

    async def watch(self, what: str, path: str, timeout_s: float, **query: str) -> AsyncIterator[Json]:
        """Events of a watch until the server ends it, within `timeout_s`; raises ApiError, also for events ERROR."""
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": f"{timeout_s:.0f}"}
        async with self._response(what, "GET", path, None, query, timeout_s + SILENT_S, streams=True) as response:
            while line := await response.content.readline():
                try:
                    event: Json = json.loads(line)
                except ValueError:
                    return  # the connection ended in the middle of an event
                if event["type"] == "ERROR":
                    raise _error(what, int(event["object"].get("code", 500)), event["object"], 0.0)
                yield event

    async def close(self) -> None:
        """Close the connections."""
        if self._connected:
            await self._connected.close()
            self._connected = None

    @asynccontextmanager
    async def _response(
        self,
        what: str,
        method: str,
        path: str,
        body: Json | None,
        query: Mapping[str, str],
        limit_s: float,
        *,
        streams: bool = False,
    ) -> AsyncIterator[Any]:  # Any: a response of aiohttp
        """Provide the response to one request that has succeeded; all errors become an ApiError."""
        import aiohttp

        try:
            client = await self._client()
            where = path if path.startswith("/") else f"/api/v1/namespaces/{self.namespace}/{path}"
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            serialized = await client.param_serialize(
                method, where, query_params=[*query.items()], header_params=headers, body=body,
                auth_settings=["BearerToken"],
            )  # fmt: skip
            limit = aiohttp.ClientTimeout(total=None if streams else limit_s, sock_connect=CONNECT_S, sock_read=limit_s)
            async with self._limited(streams):
                answered = await client.call_api(*serialized, _request_timeout=limit)
                async with answered.response as response:
                    if response.status >= 400:
                        raise await self._refusal(what, response)
                    yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            refused = isinstance(error, aiohttp.ClientConnectorError)
            why = f"no API server answers at {self.url}" if refused else f"the connection to {self.url} ended"
            end = "is it the right one, and does a network policy let the pool reach it?"
            raise ApiError(f"cannot {what}: {why} ({told(error)}); {end}", lost=not refused) from None

    @asynccontextmanager
    async def _limited(self, streams: bool) -> AsyncIterator[None]:
        if streams:  # watches last, and must not keep calls from being made
            yield
            return
        async with self._calls:
            yield

    async def _refusal(self, what: str, response: Any) -> ApiError:  # Any: a response of aiohttp
        text = (await response.content.read(_MOST_BYTES)).decode(errors="replace")
        try:
            status = json.loads(text)
        except ValueError:
            status = {"message": text}
        if response.status == 401:
            await self.close()  # credentials are read anew with the next call
        wait = response.headers.get("Retry-After", "0")
        status = status if isinstance(status, dict) else {}
        return _error(what, response.status, status, float(wait) if wait.isdecimal() else 0.0)

    async def _client(self) -> Any:  # Any: of the client, checked without its types
        async with self._connecting:
            if self._connected is None:
                configuration = self._aio.client.Configuration()
                try:
                    namespace = await self._configure(configuration)
                except self._aio.config.ConfigException as error:
                    raise SpecError(f"launcher {NAME}: {_no_configuration(self._access, error)}") from None
                self.namespace = self.namespace or namespace
                self._connected = self._aio.client.ApiClient(configuration)
            return self._connected

    async def _configure(self, configuration: Any) -> str:  # Any: of the client, checked without its types
        """Configure the client; returns the namespace that its source names."""
        if self.in_cluster:
            self._aio.config.load_incluster_config(configuration)
            return (_ACCOUNT / "namespace").read_text("utf-8").strip()
        loader = await self._aio.config.load_kube_config(
            self._access.kubeconfig or os.environ.get("KUBECONFIG") or None,
            context=self._access.context or None,
            client_configuration=configuration,
            persist_config=False,
        )
        return str(loader.current_context["context"].get("namespace") or "default")


def _client() -> Any:  # Any: the client is checked without its types
    try:
        from kubernetes import aio
        from kubernetes.aio import client, config  # noqa: F401  # attributes of `aio`
    except ImportError:
        how = how_to_install("kubernetes", "marless[kubernetes]")
        raise SpecError(
            f"launcher {NAME}: the package `kubernetes` is missing: {how}, or build the image with KUBERNETES=1"
        ) from None
    return aio


def _error(what: str, status: int, answer: Json, wait_s: float) -> ApiError:
    said = " ".join(str(answer.get("message") or f"status {status}").split()).rstrip(".")[:1000]
    reason = str(answer.get("reason") or "")
    sentence = f"cannot {what}: {said}; {advice_for(status, reason, said)}"
    return ApiError(sentence, status=status, reason=reason, wait_s=wait_s, lost=status >= 500)


def _no_configuration(access: ClusterAccess, error: BaseException) -> str:
    where = access.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    return (
        f"{where} does not say how to reach a cluster ({told(error)}); give kubeconfig=PATH, or run the pool in a Pod"
    )
