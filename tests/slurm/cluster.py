"""A Slurm cluster on this machine, made for a test: a controller and a node, beside any other Slurm.

Debian's packages have its programs: `apt-get install --no-install-recommends slurm-wlm munge`. Nothing of
/etc/slurm or /etc/munge is used.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
START_S = 60.0
STOP_S = 20.0
CPUS = 16
"""That Slurm believes the node to have."""
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_SETTINGS = """
ClusterName=marless
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthInfo=socket={place}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=65536 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def absent() -> str:
    """Why this machine cannot run a cluster; "" if it can."""
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=_PATH)]:
        return f"not installed: {', '.join(missing)} (apt-get install --no-install-recommends slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "only root runs a node of Slurm"


class Cluster:
    """Runs the commands of users."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @property
    def configuration(self) -> Path:
        """What SLURM_CONF names for its users."""
        return self.place / "slurm.conf"

    def run(self, *command: str) -> str:
        """Run a command of Slurm; returns its output. Raises AssertionError with what it said if it fails."""
        environment = os.environ | {"PATH": _PATH, "SLURM_CONF": str(self.configuration)}
        done = subprocess.run(command, env=environment, cwd=self.place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.said}"
        return done.stdout.strip()

    @property
    def said(self) -> str:
        """The logs of the daemons and of all tasks."""
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(self.place.glob("*.log")))

    def written(self) -> dict[str, bytes]:
        """All that Slurm has written, by file."""
        files = (path for path in self.place.rglob("*") if path.is_file() and not path.is_socket())
        return {str(path.relative_to(self.place)): path.read_bytes() for path in files}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a cluster; at the end, its jobs and daemons are ended, and its files are removed."""
    with ExitStack() as stack:
        # Not in a directory of pytest: MUNGE and the node's user must reach it.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        place.chmod(0o755)
        made = Cluster(place)
        _configure(place)
        _munge(stack, place)
        for daemon in ("slurmctld", "slurmd"):
            _start(stack, place, daemon, "-D", "-f", str(place / "slurm.conf"))
        _until(lambda: made.run("sinfo", "--noheader", "--format", "%T") == "idle", made)
        stack.callback(_cancel_all, made)
        yield made


def _configure(place: Path) -> None:
    for name in ("state", "spool"):
        (place / name).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"controller_port": one.getsockname()[1], "node_port": other.getsockname()[1]}
    named = {"host": socket.gethostname(), "place": place, "user": getpass.getuser(), "cpus": CPUS}
    (place / "slurm.conf").write_text(_SETTINGS.format(**named, **ports))


def _munge(stack: ExitStack, place: Path) -> None:
    key = place / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    options = {"key-file": key, "socket": place / "munge.socket", "pid-file": place / "munged.pid"}
    options |= {"seed-file": place / "munge.seed", "log-file": place / "munged.log"}
    _start(stack, place, "munged", "--foreground", *(f"--{name}={value}" for name, value in options.items()))
    give_up_s = time.monotonic() + START_S
    while not (place / "munge.socket").is_socket():
        assert time.monotonic() < give_up_s, "munged made no socket"
        time.sleep(0.02)


def _start(stack: ExitStack, place: Path, program: str, *arguments: str) -> None:
    with (place / f"{program}.log").open("ab") as log:
        process = subprocess.Popen(
            [shutil.which(program, path=_PATH) or program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    stack.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _cancel_all(made: Cluster) -> None:
    made.run("scancel", "--user", getpass.getuser())
    _until(lambda: not made.run("squeue", "--noheader"), made)


def _until(reached: Callable[[], bool], made: Cluster) -> None:
    give_up_s = time.monotonic() + START_S
    while True:
        try:
            if reached():
                return
        except AssertionError:
            if time.monotonic() > give_up_s:
                raise
        assert time.monotonic() < give_up_s, made.said
        time.sleep(0.1)
