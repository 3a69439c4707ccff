"""`marless doctor`: what of this machine stands in the way, and what to do about it.

A check is a function from facts to a `Finding`; `examination` gathers the facts.
"""
