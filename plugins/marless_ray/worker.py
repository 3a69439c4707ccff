"""`python -m marless_ray.worker PARENT MODULE ARGUMENTS`: a worker that ends with its parent process.

The kernel kills it when the actor that started it is gone, also while it hangs.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the worker to its end."""
    parent, module, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(parent):  # or it ended before the kernel was asked
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
