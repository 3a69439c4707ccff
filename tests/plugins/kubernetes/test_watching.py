"""How Pods are followed: watches that end, lost versions, bookmarks, and what happens meanwhile."""

import asyncio

import pytest

from marless.fleet.launchers.base import ACCEPTED, LaunchOrder
from marless_kubernetes import tracking
from tests.plugins.kubernetes.api_fake import Fault
from tests.plugins.kubernetes.conftest import facts, seen

PATIENCE_S = 10.0
GONE = "its Pod is gone: something else has deleted it, or its node"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(tracking, "FIRST_WAIT_S", 0.05)


@pytest.fixture
async def running(server, launcher, place):
    """A worker that runs; the name of its Pod."""
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(place, "one")
    await seen(lambda: not server.secrets)
    [name] = server.pods
    return name


async def ended(launcher):
    async with asyncio.timeout(PATIENCE_S):
        return await launcher.observe("one")


def remove_unseen(server, name):
    """The Pod goes while nobody watches, and the server keeps no event of it."""

    def remove():
        server.cut_in_thread()
        server.store.remove("pods", name)
        server.store.compact()

    server.do(remove)


async def test_a_watch_that_ends_goes_on_where_it_was(server, launcher, running):
    version = server.do(lambda: server.store.version)
    lists = server.calls["list pods"]
    server.cut_watches()
    await seen(lambda: len(server.watching_since) == 2)
    assert int(server.watching_since[-1]) <= version
    assert server.calls["list pods"] == lists
    server.do(lambda: server.store.remove("pods", running))
    assert await ended(launcher) == GONE


async def test_what_happens_while_no_watch_is_open_is_not_missed(server, launcher, running):
    server.do(lambda: [server.cut_in_thread(), server.store.remove("pods", running)])
    assert await ended(launcher) == GONE


async def test_a_version_that_the_server_has_no_more_is_listed_anew(server, launcher, running):
    lists = server.calls["list pods"]
    remove_unseen(server, running)
    assert await ended(launcher) == GONE
    assert server.calls["list pods"] == lists + 1


async def test_a_gone_version_that_is_told_by_the_status_is_listed_anew(server, launcher, running):
    server.faults["watch pods"].append(Fault(410, "too old resource version: 1 (2)", "Expired"))
    remove_unseen(server, running)
    assert await ended(launcher) == GONE


async def test_bookmarks_spare_lists(server, launcher, running):
    """Without them, a quiet watch would go on from a version that is long compacted."""
    lists = server.calls["list pods"]
    server.do(server.store.bookmark)
    bookmarked = server.do(lambda: server.store.version)
    tracker = launcher._preparing.result().tracker
    await seen(lambda: tracker._version == str(bookmarked))
    server.do(server.store.compact)
    server.cut_watches()
    await seen(lambda: len(server.watching_since) == 2)
    assert server.watching_since[-1] == str(bookmarked)
    server.do(lambda: server.store.remove("pods", running))
    assert await ended(launcher) == GONE
    assert server.calls["list pods"] == lists


async def test_watches_that_fail_are_tried_again_and_lists_too(server, launcher, running):
    server.faults["watch pods"] += [Fault(500, "etcdserver: request timed out", "InternalError"), Fault()]
    server.faults["list pods"] += [Fault(503, "apiserver is shutting down.", "ServiceUnavailable")]
    remove_unseen(server, running)
    assert await ended(launcher) == GONE


async def test_a_list_that_began_before_a_pod_was_created_does_not_end_it(server, launcher, place, running):
    """The list's answer lacks the Pod, and comes after that to its creation."""
    server.do(server.store.compact)
    holding = server.hold("list pods")
    server.cut_watches()
    await seen(lambda: holding.is_reached)
    launching = asyncio.create_task(launcher.launch([LaunchOrder("two", "ticket")]))
    await seen(lambda: sum(pod.is_created for pod in launcher._preparing.result().tracker._pods.values()) == 2)
    holding.release()
    assert await launching == [ACCEPTED]
    await facts(place, "two")


async def test_a_list_between_the_order_of_a_pod_and_its_creation_does_not_end_it(server, launcher, place, running):
    creating = server.hold("create pods", before=True)
    launching = asyncio.create_task(launcher.launch([LaunchOrder("two", "ticket")]))
    await seen(lambda: creating.is_reached)
    lists = server.calls["list pods"]
    server.do(lambda: [server.cut_in_thread(), server.store.bookmark(), server.store.compact()])
    await seen(lambda: server.calls["list pods"] == lists + 1 and len(server.watching_since) == 3)
    creating.release()
    assert await launching == [ACCEPTED]
    await facts(place, "two")
