"""A schedule of marless: `schedule: {name: my_schedule}`."""
