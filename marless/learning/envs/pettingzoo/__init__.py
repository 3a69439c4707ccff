"""Adapts PettingZoo environments to the batched protocol: `pettingzoo/<module>`, or `pettingzoo/<module>:<callable>`.

The module's `parallel_env` is preferred to its turn-based `env` (AEC), which is converted. The B copies are Python
objects that are stepped one after another, so the speed is that of the environment. Where PettingZoo does not define
the behaviour, these rules do:

- agents with equal spaces form one class; `spaces` has the rules that convert observations, actions and masks;
- an absent agent observes zeros and has reward 0; its only legal action is 0, as for an agent whose own mask allows no
  action (it is not its turn): such steps have no effect on a policy's gradient;
- an agent that is in `agents` and gets no observation waits: it does action 0, and its rewards belong to its last turn.
  After a truncation, so does one that was truncated without an observation while others got one;
- the episode is over when no agent is left; it is truncated if some agent was truncated in that step, not terminated;
- an agent that is truncated while others go on is not terminated: it shows its final observation once more, in a frame
  in which it is absent. One that vanishes without a flag, or without a final observation, counts as terminated;
- `state()` is called only where frames carry a state, and not after an episode whose agents have all terminated;
- every episode of every copy starts from a seed of its own, which follows from the seed of `reset`;
- a save holds the seeds and actions of the present episodes, and a load plays them again (`envs.replayed`).

`names` finds modules before anything of PettingZoo is imported, `making` builds environments, `adapter` steps them.
"""
