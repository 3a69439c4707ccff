"""A metrics sink of marless: `sinks: [{name: my_sink}]`."""
