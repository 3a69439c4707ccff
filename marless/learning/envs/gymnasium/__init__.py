"""Adapts Gymnasium's environments to the batched protocol, as a team of one: `gymnasium/<id>`.

The B copies are Python objects that are stepped one after another, so the speed is that of the environment. Where
Gymnasium leaves it open, these rules hold:

- the class and the agent are called `agent` and `agent_0`; `spaces` has the rules that convert what it observes and
  does, `masks` those of legal actions;
- an episode that has both terminated and been truncated has terminated; the value after a truncation is that of the
  final observation;
- every episode of every copy starts from a seed of its own, which follows from the seed of `reset`;
- a save holds the seeds and actions of the present episodes, and a load plays them again (`envs.replayed`).

Gymnasium's vectorised environments are not used: few tasks have one, its copies share a random generator, so that no
episode can be continued by itself, and the one of CartPole cannot reset single copies.

`ids` finds what a name means, `making` builds it, `adapter` steps it. PettingZoo's adapter shares `spaces`, `masks` and
`calls`, because its spaces are Gymnasium's.
"""
