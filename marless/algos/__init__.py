"""Algorithms: settings and function graph, without torch; one config, one small class and one registry line each."""
