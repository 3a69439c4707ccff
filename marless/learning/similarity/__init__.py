"""Measures of how alike agents behave, over observations that they all have seen."""
