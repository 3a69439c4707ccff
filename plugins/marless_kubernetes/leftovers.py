"""The Pods that pools which have ended left behind, for `marless fleet`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from marless.core.errors import SpecError, UnavailableError
from marless.core.orphans import Orphan
from marless.fleet.launchers.base import Options
from marless_kubernetes.api_server import ApiError, ApiServer
from marless_kubernetes.pools import pods_of_dead_pools
from marless_kubernetes.settings import ClusterAccess, read_access

Work = Callable[[ApiServer], Awaitable[list[Orphan]]]


class LeftoverPods:
    """The Pods of one namespace. A pool's own are deleted with it; these are of one that was started again, or that ran
    outside the cluster.
    """

    what = "Pods"

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    def of_dead_pools(self) -> Sequence[Orphan]:
        async def find(server: ApiServer) -> list[Orphan]:
            return [each async for each in pods_of_dead_pools(server)]

        return asyncio.run(self._with_server(find))

    def end(self, found: Sequence[Orphan]) -> None:
        async def delete(server: ApiServer) -> list[Orphan]:
            for each in found:
                try:
                    await server.call(f"delete Pod {each.id}", "DELETE", f"pods/{each.id}", gracePeriodSeconds="1")
                except ApiError as error:
                    if error.status != 404:
                        raise
            return []

        asyncio.run(self._with_server(delete))

    async def _with_server(self, work: Work) -> list[Orphan]:
        server = ApiServer(self._access)
        try:
            return await work(server)
        except SpecError as error:  # no such cluster can be asked
            raise UnavailableError(str(error)) from None
        finally:
            await server.close()


def leftovers(options: Options | None) -> LeftoverPods | None:
    """The Pods of the namespace that the launcher's options name; None if the operator has chosen another launcher."""
    return None if options is None else LeftoverPods(read_access(options))
