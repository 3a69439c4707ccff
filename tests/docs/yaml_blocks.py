"""The YAML of a page, read as what it is: a job or some sections of one, prices, presets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from marless.jobs import presets, prices, spec
from tests.docs import programs
from tests.docs.blocks import Block
from tests.plugins.minions import made as minions

ANY = {"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 2}}


def check(block: Block, place: Path, patch: pytest.MonkeyPatch) -> None:
    """Raise an error if the reader that the block is for refuses it."""
    document = yaml.safe_load(block.text)
    file = place / "block.yaml"
    file.write_text(block.text, "utf-8")
    if document.keys() <= spec.JobSpec.model_fields.keys():
        _check_job(block, document, place, patch)
    elif document.keys() <= {field.alias or name for name, field in prices.Prices.model_fields.items()}:
        prices.read(str(file))
    else:
        for name in document:
            presets.preset(f"{file}:{name}").applied(spec.of_document(ANY, [], "any"))


def _check_job(block: Block, document: Mapping[str, Any], place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(place)
    minions.saved(place / "scheduler", minions.scheduler(of=minions.task(max_actors=16, rounds=2)))
    if block.file:
        programs.install(block.page, place)
        patch.syspath_prepend(place)
    spec.of_document({**ANY, **document}, [], str(block))
