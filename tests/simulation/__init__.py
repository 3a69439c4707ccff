"""The whole system in one process, on virtual time and in memory, with faults that follow from a seed."""
