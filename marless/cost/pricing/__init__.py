"""Price tables, exact money, and what the functions of a record used: what every account of a job is computed from."""
