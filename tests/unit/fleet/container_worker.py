"""A program of workers in containers: notes what its pool hands over, then does what its name says."""

import json
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    place, name = Path(sys.argv[sys.argv.index("--place") + 1]), sys.argv[-1]
    for line in sys.stdin:
        unfinished = place / f"{name}.part"
        unfinished.write_text(json.dumps({"handover": json.loads(line)}))
        unfinished.rename(place / name)
        if name == "exits":
            sys.exit(3)
        if name == "dies":
            os.kill(os.getpid(), signal.SIGTERM)
