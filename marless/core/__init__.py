"""The nouns that everyone shares, and what job sections, registries and long computations are made with. No torch."""
