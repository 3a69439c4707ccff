"""The cost of jobs: prices, usage of functions, the ledger of a run, bills and estimates."""
