"""The accounts of a job, from its records: a ledger that takes one round at a time, and bills."""
