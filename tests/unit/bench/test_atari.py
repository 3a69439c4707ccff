"""The benchmark of Atari's games: all three play the same game."""

from bench import atari


def test_all_step_eight_copies():
    for made in (atari.ours, atari.gymnasium_s, atari.ale_s):
        step = made("Pong")
        for i in range(3):
            step(i)
