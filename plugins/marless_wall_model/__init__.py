"""Wall models of turbulence, learned by agents on the wall of a channel: its flow solver and what surrounds it."""
