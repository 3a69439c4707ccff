"""An environment of marless: `env: {name: my_environment}`."""
