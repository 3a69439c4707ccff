"""`python -m marless`: the `marless` command, for when its script is not on the path."""

from marless.app.cli import command

command()
