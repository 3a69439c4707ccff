"""Learns, and knows no service: environments, nets, algorithms, data, and policies that act. NumPy; torch to train."""
