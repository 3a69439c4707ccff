"""The command `marless` without a new interpreter, which would import for seconds."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from marless.app.cli.main import main


def called(place: Path, words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Call a command in this directory and with these variables alone; its exit code, its data, what it says."""
    with (
        chdir(place),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", ["marless", *words]),
        mock.patch.object(tempfile, "tempdir", None),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as said,
        pytest.raises(SystemExit) as end,
    ):
        main()
    return int(end.value.code or 0), out.getvalue(), said.getvalue()
