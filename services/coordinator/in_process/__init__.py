"""A coordinator that runs its functions itself: no pools, no store, no Redis, no sockets.

Breakpoints, profilers and exceptions in environments, nets and losses work as in any program: between the command line
and the environment lies nothing but calls. Weights, records and decisions are those of the services, bit for bit.
"""
