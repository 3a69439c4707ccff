"""Atari 2600 games of the Arcade Learning Environment (ALE), preprocessed: environments `atari/<game>`."""
