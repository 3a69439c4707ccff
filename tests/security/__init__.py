"""Attacks on marless, each with what must come of it; docs/security.md lists the promises."""
