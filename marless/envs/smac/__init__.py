"""SMAC's battles without the game: 23 maps in batched NumPy, with the interface of SMAC's class."""
