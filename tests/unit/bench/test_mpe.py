"""The table of particle games: every game of ours is in it, and rates are of whole episodes."""

from bench import mpe
from marless.learning.envs import registry


def test_every_particle_game_is_measured():
    assert [f"mpe/{game.rpartition('_v')[0]}" for game in mpe.GAMES] == [
        name for name in sorted(registry._OURS) if name.startswith("mpe/")
    ]


def test_both_sides_step_on_after_the_end_of_an_episode():
    row = mpe.compare("simple_speaker_listener_v4", continuous=True, runs=2, cpu_s=0.01)
    assert row["marless, env steps/s"]["min"] > row["mpe2, env steps/s"]["max"] > 0
    assert row["ratio"]["min"] <= row["ratio"]["median"] <= row["ratio"]["max"]
