"""What Python runs first in every process below a test that has this directory on PYTHONPATH.

Appends to $AUDIT_FILE, as JSON, a line for each process, and one for each event by which data could become code.
"""

import json
import os
import sys

EVENTS = ("pickle.find_class", "marshal.load", "marshal.loads", "os.system")
"""An unpickler looks up what to call; code objects are read from bytes; a shell is started."""
IMPORTING = "<frozen importlib._bootstrap_external>"
"""Where Python itself reads the code of modules, with marshal, from its own caches."""
STARTED = "socket.__new__"
"""An event in each process that serves or works: its event loop wakes itself up through a socket."""
_noted = {os.getpid()}
_FILE = os.open(os.environ["AUDIT_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _note(**fields):
    os.write(_FILE, (json.dumps(fields) + "\n").encode())


def _stack():
    frame, found = sys._getframe(2), []
    while frame:
        found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return found


def _hook(event, arguments):
    if event == STARTED and os.getpid() not in _noted:  # forked from a process that had the hook already
        _noted.add(os.getpid())
        with open("/proc/self/cmdline") as command:  # noqa: PTH123  # pathlib is not worth its import in each process
            _note(process=command.read().split("\0"), pid=os.getpid())
    if event in EVENTS:
        stack = _stack()
        if event.startswith("marshal") and stack and stack[0].startswith(IMPORTING):
            return
        _note(event=event, arguments=repr(arguments)[:200], stack=stack[:12], pid=os.getpid())


sys.addaudithook(_hook)
_note(process=sys.orig_argv, pid=os.getpid())
