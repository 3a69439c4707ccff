"""Proximal policy optimisation for teams: IPPO and MAPPO."""
