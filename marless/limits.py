"""The most that there may be of anything that a job, a file or a request counts; docs/security.md has the table."""

from __future__ import annotations

MAX_AGENTS = 512
"""Agents of one environment, and so policies that act at a time."""
MAX_ACTORS = 4096
"""Actors of one rollout."""
MAX_ENVS = MAX_STEPS = 65_536
"""Environment copies of an actor, and its time steps."""
MAX_EPISODES = 10**6
"""Episodes of one evaluation."""
MAX_TIMEOUT_S = 7 * 86_400.0
"""Seconds that a job may give one actor."""
MAX_POLICIES = 4096
"""Policies and joint critics that one request names, those that no agent uses any more included."""
MAX_PARTS = 16
"""Blobs of one version."""
MAX_NAME = 200
"""Characters of the name of an agent, a class, a policy, an environment or a worker."""
MAX_OBSERVATION = 2**20
"""Numbers that one agent observes."""
MAX_ACTIONS = 2**16
"""Discrete actions, or components of a continuous one."""
MAX_STATE = 2**24
"""Numbers of an environment's global state."""
MAX_TRAJECTORY_BYTES = 512 * 2**20
"""What one actor may upload."""
MAX_COUNT = 2**53
"""Rounds, epochs, versions, env steps: whole numbers beyond are not exact in JSON, and not in Redis's scripts."""
