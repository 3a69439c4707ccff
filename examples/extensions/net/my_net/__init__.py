"""A kind of net of marless: `model: {net: my_net}`."""
