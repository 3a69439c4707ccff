"""What a job costs: prices, the functions that are used, the ledger of a run and its bill."""
