"""The frontier: static settings of one job, with equal env steps and several seeds, by cost, time and return.

Presets are points among them. What a preset costs more than the best setting in hindsight is its regret.
"""
