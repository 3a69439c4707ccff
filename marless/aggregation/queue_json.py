"""A queue of gradients as JSON, for what a parameter function must find again after a restart."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from marless.aggregation.queue import Counts, Gradient, Queue
from marless.errors import CorruptError


def encode(queue: Queue) -> str:
    """The queue as one line of JSON; equal queues give equal lines."""
    return json.dumps({**asdict(queue), "done": sorted(queue.done)}, separators=(",", ":"), sort_keys=True)


def decode(text: str) -> Queue:
    """The inverse of `encode`; raises CorruptError for a text that it has not written."""
    try:
        found: Any = json.loads(text)  # Any: JSON
        queue = Queue(
            **found
            | {
                "waiting": tuple(Gradient(**each) for each in found["waiting"]),
                "done": frozenset((int(clock), str(name)) for clock, name in found["done"]),
                "counts": Counts(**found["counts"]),
            }
        )
        if encode(queue) == text:
            return queue
    except (TypeError, ValueError, KeyError, RecursionError):
        pass
    raise CorruptError("the saved queue of gradients cannot be read; it was not written by this version of marless")
