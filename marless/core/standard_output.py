"""Standard output for data alone, in processes that run code of others, such as environments, which prints."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import TextIO

_STDOUT, _STDERR = 1, 2


def kept_for_data() -> TextIO:
    """Take standard output away from all other code of this process; returns it, for data.

    For the rest of the process's life, descriptor 1 leads to standard error. The descriptor, and not only `sys.stdout`,
    because C code and subprocesses write to it; and to the end, because threads and functions that run at the exit
    print after all data, and so does C code that has written into a buffer.
    """
    stream = sys.stdout
    stream.flush()
    # The copy is closed in subprocesses, so that none writes to it or keeps its reader waiting.
    copy = fcntl.fcntl(_STDOUT, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    data = os.fdopen(copy, "w", encoding=stream.encoding, errors=stream.errors)
    try:
        os.dup2(_STDERR, _STDOUT)
    except OSError:  # standard error is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return data
