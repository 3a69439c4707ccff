"""Workers on machines that dial in: a host program runs there, and starts and ends workers as its pool orders.

`pool` is the pool's side, for launchers that get machines from a cloud. `program` is what runs on each machine. What
they say to each other (protos/marless/rpc/v1/hosts.proto) knows no cloud: `surroundings` is what a host program asks
of its own.
"""
