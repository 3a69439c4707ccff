"""A Redis in memory: the commands that the parameter store uses, and its Lua scripts run by a real Lua.

It is durable, as with `appendfsync always`. While it is down, every command fails; `lossy` ones fail after they were
executed, as those do whose answer is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from lupa import lua51
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.simulation.loop import VirtualLoop

Bytes = bytes
_lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False)
_scripts: dict[bytes, Any] = {}


class MemoryRedis:
    """The data, and the interface of `redis.asyncio.Redis` as far as it is used."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self._loop = loop
        self._chance = chance
        self._data: dict[bytes, Any] = {}
        self._serial = 0
        self.down = False
        self.lossy = 0.0
        self.delay_s = 0.0003
        self.evaluated: Callable[[bytes, list[bytes], list[bytes], Any], None] = lambda *_: None
        """Called after each script: its text, its keys, its arguments, and its answer."""

    def wipe(self) -> None:
        """Lose everything."""
        self._data.clear()

    async def execute_command(self, *words: Any) -> Any:
        if words[0] == "XREAD":
            return await self._xread(*words)
        return (await self._run([words]))[0]

    def pipeline(self, transaction: bool = True) -> Pipeline:
        return Pipeline(self)

    async def info(self, section: str = "") -> dict[str, Any]:
        await self._travel()
        return {"redis_version": "7.0.15", "aof_enabled": 1, "maxmemory": 0}

    async def _run(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Execute commands as one transaction."""
        await self._travel()
        answers = [self._execute(words) for words in commands]
        await self._travel(lossy=True)
        return answers

    async def _travel(self, *, lossy: bool = False) -> None:
        await asyncio.sleep(self._chance.expovariate(1.0 / self.delay_s))
        if self.down or (lossy and self.lossy and self._chance.random() < self.lossy):
            raise RedisConnectionError("the connection to Redis is lost")

    def _execute(self, words: tuple[Any, ...]) -> Any:
        name, *rest = words
        arguments = [_bytes(word) for word in rest]
        if name == "EVAL":
            return self._eval(arguments)
        return getattr(self, f"_{name.lower()}")(*arguments)

    def _eval(self, arguments: list[bytes]) -> Any:
        script, count, *rest = arguments
        keys, args = rest[: int(count)], rest[int(count) :]
        answer = _plain(_compiled(script)(_table(keys), _table(args), self._called))
        self.evaluated(script, keys, args, answer)
        return answer

    def _called(self, name: bytes, *arguments: Any) -> Any:
        """`redis.call` in a script."""
        answer = self._execute((name.decode(), *arguments))
        if answer is None:
            return False
        return _table([False if each is None else each for each in answer]) if isinstance(answer, list) else answer

    # Commands

    def _ping(self) -> bytes:
        return b"PONG"

    def _exists(self, key: bytes) -> int:
        return int(key in self._data)

    def _unlink(self, *keys: bytes) -> int:
        return sum(self._data.pop(key, None) is not None for key in keys)

    def _rename(self, key: bytes, to: bytes) -> bytes:
        self._data[to] = self._data.pop(key)
        return b"OK"

    def _expire(self, key: bytes, _seconds: bytes) -> int:
        return int(key in self._data)  # no simulation lasts as long as what expires

    _persist = _exists

    def _hget(self, key: bytes, field: bytes) -> bytes | None:
        return self._data.get(key, {}).get(field)

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        self._data.setdefault(key, {}).update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(pairs) // 2

    def _hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        return [self._hget(key, field) for field in fields]

    def _hgetall(self, key: bytes) -> list[bytes]:
        return [word for pair in self._data.get(key, {}).items() for word in pair]

    def _hkeys(self, key: bytes) -> list[bytes]:
        return list(self._data.get(key, {}))

    def _hdel(self, key: bytes, *fields: bytes) -> int:
        return self._without(key, fields)

    def _hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        value = int(self._hget(key, field) or 0) + int(by)
        self._hset(key, field, _bytes(value))
        return value

    def _zadd(self, key: bytes, score: bytes, member: bytes) -> int:
        self._data.setdefault(key, {})[member] = float(score)
        return 1

    def _zrem(self, key: bytes, member: bytes) -> int:
        return self._without(key, (member,))

    def _zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = self._data.get(key, {}).get(member)
        return None if score is None else _bytes(score)

    def _zrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        members = sorted(self._data.get(key, {}), key=lambda member: (self._data[key][member], member))
        stop = int(last) % len(members) + 1 if members and int(last) >= -len(members) else 0
        return members[int(first) : stop]

    def _sadd(self, key: bytes, member: bytes) -> int:
        self._data.setdefault(key, {})[member] = None
        return 1

    def _srem(self, key: bytes, member: bytes) -> int:
        return self._without(key, (member,))

    def _sismember(self, key: bytes, member: bytes) -> int:
        return int(member in self._data.get(key, {}))

    def _smembers(self, key: bytes) -> list[bytes]:
        return list(self._data.get(key, {}))

    def _xadd(self, key: bytes, *words: bytes) -> bytes:
        self._serial += 1
        entry = _bytes(f"{round(self._loop.time() * 1000)}-{self._serial}")
        self._data.setdefault(key, {})[entry] = words[words.index(b"*") + 1 :]
        return entry

    async def _xread(self, *words: Any) -> Any:
        """XREAD COUNT 1 BLOCK ms STREAMS key since."""
        key, since = _bytes(words[-2]), _position(_bytes(words[-1]))
        until_s = self._loop.time() + int(words[words.index("BLOCK") + 1]) / 1000
        while True:
            await self._travel()
            if found := [entry for entry in self._data.get(key, {}) if _position(entry) > since]:
                return [[key, found]]
            if self._loop.time() >= until_s:
                return None
            await asyncio.sleep(0.05)

    def _without(self, key: bytes, members: Any) -> int:
        """Remove members of a collection, and the collection with its last one."""
        held = self._data.get(key, {})
        removed = sum(held.pop(member, _NOTHING) is not _NOTHING for member in members)
        if key in self._data and not held:
            del self._data[key]
        return removed


class Pipeline:
    """Commands that are executed together."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *words: Any) -> None:
        self._commands.append(words)

    async def execute(self) -> list[Any]:
        return await self._redis._run(self._commands)


_NOTHING = object()


def _bytes(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, memoryview | bytearray):
        return bytes(word)
    if isinstance(word, float) and word == int(word):
        word = int(word)
    return str(word).encode()


def _position(entry: bytes) -> tuple[int, int]:
    first, _, second = entry.partition(b"-")
    return int(first), int(second)


def _compiled(script: bytes) -> Any:
    if script not in _scripts:
        body = b"return function(KEYS, ARGV, call) local redis = {call = call} " + b"\n" + script + b"\nend"
        _scripts[script] = _lua.execute(body)
    return _scripts[script]


def _table(values: list[Any]) -> Any:
    return _lua.table_from(values)


def _plain(value: Any) -> Any:
    """An answer of a script, converted as Redis does: numbers to integers, false to nil, a table to its array."""
    if lua51.lua_type(value) == "table":
        plain: list[Any] = []
        while (each := value[len(plain) + 1]) is not None:
            plain.append(_plain(each))
        return plain
    if value is False or value is None:
        return None
    return int(value) if isinstance(value, int | float) else value
