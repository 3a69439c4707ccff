"""What a process must be allowed before it starts gRPC, which ends it by a segmentation fault if it is not."""

from __future__ import annotations

import resource

from marless.core.errors import UnavailableError

CLIENT_FILES = 64
"""Files that a process with clients must be allowed to have open: twice as many as `marless train` has."""
SERVICE_FILES = 256
"""The same for a service, which has a connection to each worker in addition."""
CLIENT_BYTES = 2**30
"""Address space that a process must be allowed: services and clients take up to 0.9 GiB, as threads reserve theirs."""
LEARNER_BYTES = 2**31
"""The same where learners run: with torch they take 1.3 GiB."""


def allow_many_files() -> None:
    """Raise the limit of open files to its hard limit: each worker has a connection, each queued job a lock file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check(*, files: int = CLIENT_FILES, address_bytes: int = CLIENT_BYTES) -> None:
    """Raise UnavailableError if this process may have too few files open, or too little memory."""
    for what, option, kind, least, unit in (
        ("open files", "-n", resource.RLIMIT_NOFILE, files, 1),
        ("KiB of address space", "-v", resource.RLIMIT_AS, address_bytes, 1024),
    ):
        allowed, _ = resource.getrlimit(kind)
        if allowed != resource.RLIM_INFINITY and allowed < least:
            raise UnavailableError(
                f"this process is allowed {allowed // unit:,} {what} (`ulimit {option}`), and needs {least // unit:,}; "
                f"raise the limit: `ulimit {option} {least // unit}`"
            )
