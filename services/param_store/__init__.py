"""The parameter store service: keeps versions of policies in Redis, published by fenced compare-and-set."""
