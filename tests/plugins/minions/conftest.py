"""The command, which tests of its own verbs use, too."""

from tests.unit.app.cli.conftest import coordinator, marless

__all__ = ["coordinator", "marless"]
