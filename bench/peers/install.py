"""Installs peers, each into its own virtual environment: `python -m bench.peers.install rllib benchmarl jaxmarl`."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HOME = Path(__file__).parent
LOCKS = HOME.parent.parent / "requirements"

# `make lock` turns these into requirements/peer-*.txt, which is what is installed.
REQUIREMENTS = {
    "rllib": ("ray[rllib]==2.60.0", "torch==2.13.0", "mpe2==1.1.1", "pettingzoo>=1.25,<2", "gymnasium[mujoco]"),
    "benchmarl": ("benchmarl==1.5.2", "torch==2.13.0", "torchrl", "vmas", "mpe2==1.1.1", "pettingzoo>=1.25,<2"),
    "jaxmarl": ("jaxmarl==0.2.0", "mpe2==1.1.1", "pettingzoo>=1.25,<2"),
    "sb3": (
        *("stable-baselines3==2.9.2", "torch==2.13.0", "gymnasium[mujoco]==1.4.0", "mujoco>=4.0,<4.1"),
        *("ale-py==0.12.1", "opencv-python-headless>=4.11,<6"),
    ),
}
ONE_AGENT = frozenset({"sb3"})
"""Peers that train one agent, in the tasks of `bench.one_agent`."""


def interpreter(peer: str) -> Path:
    """Path of a peer's Python, whether installed or not."""
    return HOME / f".venv-{peer}" / "bin" / "python"


def installed(peer: str) -> bool:
    """True if a peer was installed completely."""
    return _marker(peer).exists()


def install(peer: str) -> None:
    """Create the peer's environment from its lock file; raises subprocess.CalledProcessError if pip fails."""
    _marker(peer).unlink(missing_ok=True)
    venv.create(HOME / f".venv-{peer}", clear=True, with_pip=True)
    lock = LOCKS / f"peer-{peer}.txt"
    if any(requirement.startswith("torch==") for requirement in REQUIREMENTS[peer]):
        try:
            _locked(peer, "--only-binary", ":all:", "-r", str(LOCKS / "torch-cpu.txt"))
        except subprocess.CalledProcessError:
            _locked(peer, "--only-binary", ":all:", "-r", str(LOCKS / "torch.txt"))
    # Some packages of peers have no wheel. They are built with the setuptools of the lock file.
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as backend:
        backend.write("".join(re.findall(r"(?m)^setuptools==.*\n(?:    .*\n)+", lock.read_text())))
        backend.flush()
        _locked(peer, "-r", backend.name)
    _locked(peer, "--no-build-isolation", "-r", str(lock))
    _marker(peer).touch()


def _locked(peer: str, *arguments: str) -> None:
    command = [interpreter(peer), "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", *arguments]
    subprocess.run(command, check=True)


def _marker(peer: str) -> Path:
    return HOME / f".venv-{peer}" / "installed"


def main() -> int:
    """Install the peers named on the command line; the exit code is the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="+", choices=sorted(REQUIREMENTS))
    failed = 0
    for peer in parser.parse_args().peers:
        try:
            install(peer)
            print(f"{peer}: installed, {interpreter(peer)}")
        except subprocess.CalledProcessError as error:
            failed += 1
            print(f"{peer}: pip failed with exit code {error.returncode}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
