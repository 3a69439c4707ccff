"""SMAC's battles in the real game: StarCraft II as a backend of `marless_smac`, over the game's own
protocol.

`installation` finds the game and its maps, `process` runs it, `connection` sends requests, `orders` translates actions
and units, `game` fights battles in one process, `battles` runs a process for each environment copy. The tests use a
stand-in for the game that serves the embedded engine; nothing here has met the real game yet.
"""
