"""Upper limits on counts and sizes in jobs, files and requests (docs/security.md has the table), and valid job ids."""

from __future__ import annotations

import re

from marless.core.errors import SpecError, shown

MAX_AGENTS = 1024
"""Agents of one environment, and so policies that act at the same time."""
MAX_ACTORS = 4096
"""Actors of one rollout."""
MAX_ENVS = MAX_STEPS = 65_536
"""Environment copies per actor, and time steps per copy."""
MAX_EPISODES = 10**6
"""Episodes of one evaluation."""
MAX_TIMEOUT_S = 7 * 86_400.0
"""Seconds: the longest time limit that a job may set."""
MAX_POLICIES = 4096
"""Policies and joint critics named in one request, including those that no agent uses any more."""
MAX_PARTS = 16
"""Blobs of one version."""
MAX_KEPT = 4096
"""Newest versions of a policy that one request may have the store keep."""
MAX_NAME = 200
"""Characters of the name of an agent, a class, a policy, an environment or a worker."""
MAX_OBSERVATION = 2**20
"""Elements of one agent's observation."""
MAX_FRAMES = 16
"""Images that a net reads at once, the last ones that an agent has observed."""
MAX_ACTIONS = 2**16
"""Discrete actions, or dimensions of a continuous action."""
MAX_WIDTH, MAX_LAYERS = 8192, 16
"""Units of a hidden layer, and hidden layers of a net."""
MAX_STATE = 2**24
"""Elements of an environment's global state."""
MAX_TRAJECTORY_BYTES = 512 * 2**20
"""Size of one actor's upload."""
MAX_PUBLISH_BYTES = 512 * 2**20
"""Size of one publish of a learner: the states of all policies, critics and mixers of its scope."""
MAX_COUNT = 2**53
"""Rounds, epochs, versions, env steps: larger integers are not exact as the doubles of JSON and of Redis scripts."""
MAX_CARRY_BYTES = 256 * 2**20
"""Size of the state that a lane of environment copies takes to the next round."""
MAX_STATUS_BYTES, MAX_SPEC_BYTES, MAX_MACHINES_BYTES, MAX_PENDING_BYTES = 2**23, 2**22, 2**24, 2**26
"""Sizes of job.json, spec.yaml, machines.json and pending.json in a run folder."""
MAX_RECORD_BYTES = 2**26
"""Size of one line of rounds.jsonl."""
MAX_MANIFEST_BYTES = 2**22
"""Size of the manifest of a checkpoint."""
MAX_SMALL_BYTES = 2**20
"""Size of the other files that marless writes to read them again: a stack's address, what a sink has got."""
MAX_RETURNED_BYTES, LANE_BYTES = 2 * 2**20, 1024
"""Size of the carries that the actors of a round return with their receipts, and what each counts for besides its own
bytes. Larger ones are published by the actors."""


_VALID = re.compile(r"[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?")


def is_id(job_id: str) -> bool:
    """True if this is a valid job id."""
    return _VALID.fullmatch(job_id) is not None


def check_id(job_id: str) -> None:
    """Raises SpecError unless this is a valid job id."""
    if not is_id(job_id):
        raise SpecError(f"job id {shown(job_id)}: use lower-case letters, digits and dashes, at most 100")
