"""Structured inputs for everything that reads what others send or leave on disks; only domain errors may come out.

`make fuzz` runs some ten million of them; `make test` runs a few thousand.
"""
