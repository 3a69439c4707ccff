"""The multi-particle games of mpe2, in NumPy, equal to mpe2 step for step; see `marless.learning.envs.mpe.engine`."""
