"""`marless doctor`: checks whether this machine can run jobs, and says what to do about problems.

A check is a function from facts to a `Finding`; `examination` gathers the facts.
"""
