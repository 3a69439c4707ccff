"""The one place that imports structlog, without rich, which structlog would import for logs that people read.

Our logs are JSON. Importing rich would take a tenth of the time in which an actor worker starts.
"""

from __future__ import annotations

import sys
from typing import Any, cast

__all__ = ["structlog"]

_modules = cast("dict[str, Any]", sys.modules)  # None in place of a module makes its import an ImportError
_kept = _modules.setdefault("rich", None)
try:
    import structlog
finally:
    if _kept is None:
        del _modules["rich"]
