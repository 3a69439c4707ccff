"""`python -m marless`: the command, where its script is not on the path."""

from marless.cli import command

command()
