"""How many actors a round gets."""
