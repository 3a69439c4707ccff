"""What every bucket must do: the same checks for one in memory, and for servers that speak S3's protocol."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marless.core.errors import ConflictError, CorruptError, NotFoundError, SpecError
from marless.storage.bucket.objects import Objects, check_conditions
from marless.storage.places import Address

MOST = 2**20


def what_is_written_is_read(objects: Objects, tmp_path: Path) -> None:
    objects.put("a/b", b"one")
    held = objects.get("a/b", MOST)
    assert held and held.data == b"one"
    objects.put("a/b", b"two")
    assert objects.get("a/b", MOST, unless=held.etag).data == b"two"
    assert objects.get("a/b", MOST, unless=objects.get("a/b", MOST).etag) is None
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    objects.send("a/file", tmp_path / "file")
    objects.fetch("a/file", tmp_path / "copy", 3_000_000)
    assert (tmp_path / "copy").read_bytes() == b"x" * 3_000_000


def what_is_missing_or_too_large_is_refused(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        objects.get("missing", MOST)
    with pytest.raises(NotFoundError):
        objects.fetch("missing", tmp_path / "x", MOST)
    objects.put("large", b"123456")
    with pytest.raises(CorruptError):
        objects.get("large", 5)
    with pytest.raises(CorruptError):
        objects.fetch("large", tmp_path / "x", 5)


def an_object_is_created_once(objects: Objects, tmp_path: Path) -> None:
    etag = objects.create("once", b"1")
    with pytest.raises(ConflictError):
        objects.create("once", b"2")
    assert objects.get("once", MOST, unless=etag) is None


def an_object_is_replaced_only_by_who_has_seen_it(objects: Objects, tmp_path: Path) -> None:
    first = objects.create("seen", b"1")
    second = objects.replace("seen", b"2", first)
    with pytest.raises(ConflictError):
        objects.replace("seen", b"3", first)
    assert objects.get("seen", MOST).data == b"2"
    objects.delete(["seen"])
    with pytest.raises(ConflictError):
        objects.replace("seen", b"4", second)
    with pytest.raises(NotFoundError):
        objects.get("seen", MOST)


def an_object_is_removed_only_by_who_has_seen_it(objects: Objects, tmp_path: Path) -> None:
    first = objects.create("removed", b"1")
    second = objects.replace("removed", b"2", first)
    with pytest.raises((ConflictError, SpecError)) as refused:
        objects.remove("removed", first)
    assert objects.get("removed", MOST).data == b"2"
    if refused.type is SpecError:
        return  # a server without such deletions
    objects.remove("removed", second)
    with pytest.raises(NotFoundError):
        objects.get("removed", MOST)


def of_many_writers_one_wins(objects: Objects, tmp_path: Path) -> None:
    etag = objects.create("contested", b"0")

    def try_to(i: int) -> bool:
        try:
            objects.replace("contested", b"by %d" % i, etag)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(try_to, range(8)))
    assert sum(won) == 1
    assert objects.get("contested", MOST).data == b"by %d" % won.index(True)


def what_is_there_is_listed(objects: Objects, tmp_path: Path) -> None:
    for key in ("p/a/1", "p/a/2", "p/b", "pq/c"):
        objects.put(key, key.encode())
    assert [(each.key, each.bytes) for each in objects.listing("p/")] == [("p/a/1", 5), ("p/a/2", 5), ("p/b", 3)]
    assert list(objects.folders("p/")) == ["a"]
    assert list(objects.folders("")) == ["p", "pq"]
    objects.delete(["p/a/1", "p/b", "p/never"])
    assert [each.key for each in objects.listing("p/")] == ["p/a/2"]


def names_may_be_odd(objects: Objects, tmp_path: Path) -> None:
    for name in ("a b+c", "ü/ß", "per%cent", "a=b&c"):
        objects.put(f"odd/{name}", b"1")
        assert objects.get(f"odd/{name}", MOST).data == b"1"
    assert len(list(objects.listing("odd/"))) == 4


def conditions_are_honoured(objects: Objects, tmp_path: Path) -> None:
    check_conditions(objects, Address("bucket", "place"))
    assert not list(objects.listing("place"))


CHECKS: tuple[Callable[[Objects, Path], None], ...] = (
    what_is_written_is_read,
    what_is_missing_or_too_large_is_refused,
    an_object_is_created_once,
    an_object_is_replaced_only_by_who_has_seen_it,
    an_object_is_removed_only_by_who_has_seen_it,
    of_many_writers_one_wins,
    what_is_there_is_listed,
    names_may_be_odd,
    conditions_are_honoured,
)
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
