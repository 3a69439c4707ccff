"""An environment that starts processes, as games do, and ends none of them. Installed as `witness` is."""

import ctypes
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from tests.scripted_env import ScriptedEnv

KINDS = {
    "child": (["sleep", "{name}"], {}),
    "grandchild": (["sh", "-c", "sleep {name} & wait"], {}),
    "session": (["sleep", "{name}"], {"start_new_session": True}),
    "daemon": (["sh", "-c", "setsid sleep {name} & exec true"], {}),
    "bare": (["/bin/sleep", "{name}"], {"env": {}}),
    "zombie": (["true"], {}),
}


def start(name):
    """One process of each kind, most with `name` on their command lines."""
    return [subprocess.Popen([word.format(name=name) for word in command], **how) for command, how in KINDS.values()]


class Brood(ScriptedEnv):
    """Its processes have `name` on their command lines. `early`: they start with it, not with its first episode; what
    starts them lasts for ever if it `hangs`; if "locked", no other thread of the process runs Python code meanwhile.
    """

    def __init__(self, options, batch):
        super().__init__(batch)
        self._options = options
        self._started = []
        if options.get("early"):
            self._start()

    def reset(self, seed):
        if not self._started:
            self._start()
        return super().reset(seed)

    def _start(self):
        self._started = start(self._options["name"])
        if self._options.get("hangs") == "locked":
            ctypes.PyDLL(None).pause()
        elif self._options.get("hangs"):
            time.sleep(1000)
