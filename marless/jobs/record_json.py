"""Reads a round record from its line of `rounds.jsonl`, which `RoundRecord.to_json` has written."""

from __future__ import annotations

import json

from marless.core import columns
from marless.core.documents import dataclass_of
from marless.jobs.record import RoundRecord
from marless.learning.data.returns import EpisodeReturns


def from_json(line: str) -> RoundRecord:
    """Parse one line of `rounds.jsonl`; raises ValueError if it is not a round record."""
    try:
        data = json.loads(line)
        if "distances" not in data:  # each line has them, although a record that is made need not name any
            raise KeyError("distances")
        data |= {name: columns.decoded(data[name]) for name in ("invocations", "lanes", "machines")}
        for held in (data["evaluation"], (data["earlier_evaluation"] or {}).get("returns")):
            if held:
                del held["return"], held["win_rate"]  # of others, for programs that read the file
        # Returns are as large as an environment makes them, and enter no cost.
        record = dataclass_of(RoundRecord, data, unlimited=(EpisodeReturns,))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no round record: {error}") from None
    for found in (record.returns, *(each.returns for each in record.evaluations)):
        if found and not (found.episodes >= 1 and 0 <= (found.wins or 0) <= found.episodes):
            raise ValueError(f"no round record: {found.wins} wins of {found.episodes} episodes")
    return record
