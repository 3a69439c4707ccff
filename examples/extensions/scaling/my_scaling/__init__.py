"""A scaling policy of marless: `scaling: {name: my_scaling}`."""
