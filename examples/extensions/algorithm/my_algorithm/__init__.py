"""An algorithm of marless: `algorithm: {name: my_algorithm}`."""
