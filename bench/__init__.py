"""What we claim, as programs."""
