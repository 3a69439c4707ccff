"""Sets the wall clock of a Python process wrong, by the seconds in a file; python imports this before anything else.

The directory that holds a copy of this file is put on PYTHONPATH, and the file `offset` beside it is read each time
somebody asks for the time. The monotonic clocks are left alone, as a clock that is set leaves them alone. So is what
gRPC is told: it turns the wall-clock time of a deadline into a duration by the real clock, at once.
"""

import os
import sys
import time

_offset = os.path.join(os.path.dirname(__file__), "offset")  # noqa: PTH118, PTH120  # before pathlib is imported
_time = time.time


def _shifted() -> float:
    asks = sys._getframe(1).f_globals.get("__name__", "")
    if asks.startswith("grpc"):
        return _time()
    with open(_offset) as file:  # noqa: PTH123
        return _time() + float(file.read() or 0.0)


time.time = _shifted
time.time_ns = lambda: int(1e9 * _shifted())
