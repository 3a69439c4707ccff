"""Independent PPO compiled as one JAX program around JaxMARL's own simple_spread; XLA uses every core it finds.

JaxMARL's package has environments but no training loop. This loop is ours; it has the form of JaxMARL's published ones
(rollout, advantages and all minibatches inside one compiled call), with the task's net per agent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxmarl
import optax
from jax import Array

from bench.events import Events, Options, options
from bench.task import TASK

COPIES = TASK.iteration_env_steps // TASK.episode_steps
ACTIONS = 5
ENV = jaxmarl.make("MPE_simple_spread_v3", num_agents=TASK.agents, local_ratio=TASK.local_ratio)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(TASK.max_grad_norm), optax.scale_by_adam())
"""Without the learning rate, which every step is multiplied by."""

Params = dict[str, list[tuple[Array, Array]]]


class Samples(NamedTuple):
    """One rollout of one agent; M = T·B once flat."""

    obs: Array
    action: Array
    log_prob: Array
    advantage: Array
    target: Array


def initial(key: Array) -> Params:
    """Initialise a policy and a critic of one agent."""
    obs_size = ENV.observation_space(ENV.agents[0]).shape[0]

    def net(key: Array, outputs: int, last_gain: float) -> list[tuple[Array, Array]]:
        sizes = (obs_size, *TASK.hidden, outputs)
        gains = (2**0.5, 2**0.5, last_gain)
        keys = jax.random.split(key, len(gains))
        return [
            (jax.nn.initializers.orthogonal(gain)(k, (i, o)), jnp.zeros(o))
            for k, i, o, gain in zip(keys, sizes[:-1], sizes[1:], gains, strict=True)
        ]

    policy, critic = jax.random.split(key)
    return {"policy": net(policy, ACTIONS, 0.01), "critic": net(critic, 1, 1.0)}


def forward(layers: list[tuple[Array, Array]], x: Array) -> Array:
    """A multi-layer perceptron with tanh between layers."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def logits(agents: list[Params], obs_NBO: Array) -> Array:
    """[N, B, A]; agent by agent, since XLA's batched matmul is slower than separate ones on a CPU."""
    return jnp.stack([forward(p["policy"], obs) for p, obs in zip(agents, obs_NBO, strict=True)])


def play(agents: list[Params], key: Array, copies: int, greedy: bool) -> tuple[Array, Array, Array, Array]:
    """One episode of every copy: obs [T+1, N, B, O], action, log-probability and reward [T, N, B]."""
    key, reset_key = jax.random.split(key)
    seen, state = jax.vmap(ENV.reset)(jax.random.split(reset_key, copies))

    def stacked(values: dict[str, Array]) -> Array:
        return jnp.stack([values[agent] for agent in ENV.agents])

    def step(carry: tuple[Array, object], key: Array) -> tuple[tuple[Array, object], tuple[Array, ...]]:
        obs_NBO, state = carry
        act_key, env_key = jax.random.split(key)
        log_all_NBA = jax.nn.log_softmax(logits(agents, obs_NBO))
        action_NB = log_all_NBA.argmax(-1) if greedy else jax.random.categorical(act_key, log_all_NBA)
        log_prob_NB = jnp.take_along_axis(log_all_NBA, action_NB[..., None], -1)[..., 0]
        chosen = dict(zip(ENV.agents, action_NB, strict=True))
        seen, state, reward, _, _ = jax.vmap(ENV.step_env)(jax.random.split(env_key, copies), state, chosen)
        return (stacked(seen), state), (obs_NBO, action_NB, log_prob_NB, stacked(reward))

    keys = jax.random.split(key, TASK.episode_steps)
    (last_NBO, _), (obs, action, log_prob, reward) = jax.lax.scan(step, (stacked(seen), state), keys)
    return jnp.concatenate([obs, last_NBO[None]]), action, log_prob, reward


def samples(params: Params, obs_SBO: Array, action: Array, log_prob: Array, reward_TB: Array) -> Samples:
    """Flat samples of one agent, advantages by GAE and normalised; S = T + 1, bootstrapped at the time limit."""
    value_SB = forward(params["critic"], obs_SBO)[..., 0]
    delta_TB = reward_TB + TASK.gamma * value_SB[1:] - value_SB[:-1]

    def back(running_B: Array, delta_B: Array) -> tuple[Array, Array]:
        running_B = delta_B + TASK.gamma * TASK.gae_lambda * running_B
        return running_B, running_B

    _, advantage_TB = jax.lax.scan(back, jnp.zeros(COPIES), delta_TB, reverse=True)
    target_TB = advantage_TB + value_SB[:-1]
    normal_TB = (advantage_TB - advantage_TB.mean()) / (advantage_TB.std() + 1e-8)
    series = Samples(obs_SBO[:-1], action, log_prob, normal_TB, target_TB)
    return jax.tree.map(lambda x: x.reshape(TASK.iteration_env_steps, *x.shape[2:]), series)


def loss(params: Params, batch: Samples) -> Array:
    """Clipped surrogate, value error and entropy bonus (Schulman et al. 2017, eq. 9)."""
    log_all_MA = jax.nn.log_softmax(forward(params["policy"], batch.obs))
    log_prob_M = jnp.take_along_axis(log_all_MA, batch.action[:, None], -1)[:, 0]
    ratio_M = jnp.exp(log_prob_M - batch.log_prob)
    clipped_M = jnp.clip(ratio_M, 1 - TASK.clip, 1 + TASK.clip)
    gain_M = jnp.minimum(ratio_M * batch.advantage, clipped_M * batch.advantage)
    entropy_M = -(jnp.exp(log_all_MA) * log_all_MA).sum(-1)
    error_M = jnp.square(forward(params["critic"], batch.obs)[:, 0] - batch.target)
    return (TASK.value_weight * error_M - gain_M - TASK.entropy_weight * entropy_M).mean()


def learn(
    params: Params, moments: optax.OptState, batch: Samples, key: Array, lr: float
) -> tuple[Params, optax.OptState]:
    """All epochs of one agent."""

    def minibatch(carry: tuple[Params, optax.OptState], rows: Array) -> tuple[tuple[Params, optax.OptState], None]:
        params, moments = carry
        gradient = jax.grad(loss)(params, jax.tree.map(lambda x: x[rows], batch))
        change, moments = OPTIMIZER.update(gradient, moments)
        steps = jax.tree.map(lambda x: -lr * x, change)
        return (optax.apply_updates(params, steps), moments), None

    orders = [jax.random.permutation(k, TASK.iteration_env_steps) for k in jax.random.split(key, TASK.epochs)]
    rows = jnp.stack(orders).reshape(-1, TASK.minibatch_env_steps)
    return jax.lax.scan(minibatch, (params, moments), rows)[0]


@jax.jit
def iterate(
    agents: list[Params], moments: list[optax.OptState], key: Array, lr: float
) -> tuple[list[Params], list[optax.OptState], Array]:
    """One iteration of all agents: rollout and update."""
    key, play_key, learn_key = jax.random.split(key, 3)
    obs_SNBO, *series = play(agents, play_key, COPIES, greedy=False)
    learnt = [
        learn(params, moments[n], samples(params, obs_SNBO[:, n], *(x[:, n] for x in series)), learn_key, lr)
        for n, params in enumerate(agents)
    ]
    return [params for params, _ in learnt], [state for _, state in learnt], key


@jax.jit
def greedy_return(agents: list[Params], key: Array) -> Array:
    """Undiscounted return per agent, mean over agents and evaluation episodes."""
    reward_TNB = play(agents, key, TASK.evaluation_episodes, greedy=True)[-1]
    return reward_TNB.sum(0).mean()


def train(run: Options) -> None:
    """Train and report iterations until the run is finished."""
    events = Events(run)
    key, *keys = jax.random.split(jax.random.key(run.seed), TASK.agents + 1)
    agents = [initial(k) for k in keys]
    moments = [OPTIMIZER.init(params) for params in agents]
    while not events.finished:
        agents, moments, key = jax.block_until_ready(iterate(agents, moments, key, run.rates.lr))
        events.iteration(lambda seed, agents=agents: float(greedy_return(agents, jax.random.key(seed))))


if __name__ == "__main__":
    train(options(__doc__ or ""))
