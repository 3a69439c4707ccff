"""A scheduler and a node: it runs the containers of Pods as processes of this machine."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.rig import WITNESS
from tests.plugins.kubernetes.objects import Json, ObjectStore, now

ROOT = Path(__file__).parents[3]
_LAST_WORDS = 2048
SECOND_S = 0.05
"""A second of a Pod's grace is shorter here."""
_IMAGE_ERRORS = {
    "missing": ("ErrImagePull", 'failed to pull and unpack image "docker.io/library/missing:latest": not found'),
    "Bad": ("InvalidImageName", 'Failed to apply default image tag "Bad": couldn\'t parse image name "Bad"'),
}


@dataclass
class Node:
    """Has room for `room` Pods, and follows what the API server says."""

    store: ObjectStore
    place: Path
    room: int = 1000
    is_lost: bool = False
    """Whether the API server hears nothing of it."""
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    ends: dict[str, Json] = field(default_factory=dict)
    """Worker → what the node says of its Pod's end besides its container's exit."""

    async def run(self) -> None:
        """Schedule Pods, start them and end them, until cancelled."""
        try:
            while True:
                changed = self.store.changed
                self._look()
                await changed.wait()
        finally:
            for process in self.processes.values():
                _end(process)
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            await asyncio.gather(*(process.communicate() for process in self.processes.values()))

    def _look(self) -> None:
        for name, pod in list(self.store.objects["pods"].items()):
            if pod["metadata"].get("labels", {}).get("app") == "pool":
                continue
            if not pod["spec"].get("nodeName"):
                self._schedule(name, pod)
            elif name not in self._running and not self.is_lost:
                self._running[name] = asyncio.create_task(self._keep(name, pod["metadata"]["uid"]))

    def _schedule(self, name: str, pod: Json) -> None:
        used = sum(
            bool(each["spec"].get("nodeName")) and each["status"]["phase"] in ("Pending", "Running")
            for each in self.store.objects["pods"].values()
        )
        if used < self.room:
            yes = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}

            def place(new: Json) -> None:
                new["spec"]["nodeName"] = "node-1"
                new["status"]["conditions"] = [yes]

            self.store.change("pods", name, place)
        elif not pod["status"].get("conditions"):
            few = "0/1 nodes are available: 1 Insufficient cpu."
            text = f"{few} preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
            no = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
            self.store.change("pods", name, lambda new: new["status"].update(conditions=[no]))

    async def _keep(self, name: str, uid: str) -> None:
        """Run a Pod to its end, and confirm its deletion."""
        folder = self.place / uid
        running = asyncio.create_task(self._run(name, folder))
        try:
            while not running.done():
                pod = self.store.objects["pods"].get(name)
                if pod is None or pod["metadata"].get("deletionTimestamp"):
                    break
                changed = asyncio.create_task(self.store.changed.wait())
                await asyncio.wait([changed, running], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if running.done():
                running.result()
            await self._kill(name, running)
            while pod := self.store.objects["pods"].get(name):
                if pod["metadata"].get("deletionTimestamp") and not self.is_lost:
                    self.store.remove("pods", name)
                    break
                await self.store.changed.wait()
        finally:
            running.cancel()
            self._running.pop(name, None)
            shutil.rmtree(folder, ignore_errors=True)

    async def _kill(self, name: str, running: asyncio.Task[None]) -> None:
        """SIGTERM, and SIGKILL after the Pod's grace, which may be shortened meanwhile."""
        process = self.processes.get(name)
        if not process or running.done() or self.is_lost:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        while not running.done() and (left_s := began_s + SECOND_S * self._grace_s(name) - time.monotonic()) > 0:
            changed = asyncio.create_task(self.store.changed.wait())
            await asyncio.wait([running, changed], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        _end(process)
        await asyncio.wait([running])

    def _grace_s(self, name: str) -> float:
        pod = self.store.objects["pods"].get(name)
        return pod["metadata"].get("deletionGracePeriodSeconds", 0) if pod else 0

    async def _run(self, name: str, folder: Path) -> None:
        pod = self.store.objects["pods"][name]
        container = pod["spec"]["containers"][0]
        await self._mount(pod, folder)
        if trouble := _IMAGE_ERRORS.get(container["image"]):
            self._say(name, "Pending", {"waiting": {"reason": trouble[0], "message": trouble[1]}})
            if trouble[0] == "ErrImagePull":
                again = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "missing": ' + trouble[1]}
                self._say(name, "Pending", {"waiting": again})
            await asyncio.Future()
        process = await self._start(container, folder)
        self.processes[name] = process
        self._say(name, "Running", {"running": {"startedAt": now()}})
        assert process.stdout
        written = await process.stdout.read()
        code = await process.wait()
        code = code if code >= 0 else 128 - code
        terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": now()}
        if code:
            terminated["message"] = written.decode(errors="replace")[-_LAST_WORDS:]
        end = self.ends.get(pod["metadata"]["labels"]["marless.worker"], {})
        terminated |= end.pop("terminated", {})
        phase = "Succeeded" if code == 0 else "Failed"
        self._say(name, phase, {"terminated": terminated}, **end)

    async def _mount(self, pod: Json, folder: Path) -> None:
        """Mount what the Pod names; as a node, it waits for a Secret that does not exist yet."""
        for volume in pod["spec"]["volumes"]:
            (folder / volume["name"]).mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                await self._mount_secret(volume["secret"]["secretName"], {}, folder / volume["name"])
            for source in volume.get("projected", {}).get("sources", ()):
                files = {each["key"]: each["path"] for each in source["secret"]["items"]}
                await self._mount_secret(source["secret"]["name"], files, folder / volume["name"])

    async def _mount_secret(self, wanted: str, files: dict[str, str], folder: Path) -> None:
        """Write its `files`, key → path; all of them by default."""
        while wanted not in self.store.objects["secrets"]:
            await self.store.changed.wait()
        stored = self.store.objects["secrets"][wanted]["data"]
        for key, path in (files or {key: key for key in stored}).items():
            (folder / path).write_bytes(base64.b64decode(stored[key]))
            (folder / path).chmod(0o440)

    def renew(self, secret: str, key: str, value: str) -> None:
        """Write a changed Secret into the Pods that mount it, as a node does within a minute or so."""
        self.store.objects["secrets"][secret]["data"][key] = base64.b64encode(value.encode()).decode()
        for pod in self.store.objects["pods"].values():
            for volume in pod["spec"]["volumes"]:
                file = self.place / pod["metadata"]["uid"] / volume["name"] / key
                named = [source["secret"]["name"] for source in volume.get("projected", {}).get("sources", ())]
                if secret in named and file.exists():
                    file.write_text(value)

    async def _start(self, container: Json, folder: Path) -> asyncio.subprocess.Process:
        # Secrets are mounted below one folder, each under its volume's name. /tmp and /dev/shm are this machine's.
        paths = {"/secrets": str(folder), "/run/marless": str(folder / "run")}
        command = [_at(word, paths) for word in (*container["command"][1:], *container["args"])]
        environment = {each["name"]: each["value"] for each in container["env"]}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment | {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}:{WITNESS}"},
            cwd=ROOT,
            start_new_session=True,
        )

    def _say(self, name: str, phase: str, state: Json, **more: str) -> None:
        if self.is_lost:
            return
        status = {"name": "worker", "state": state, "ready": phase == "Running", "restartCount": 0}
        self.store.change(
            "pods", name, lambda pod: pod["status"].update(phase=phase, containerStatuses=[status], **more)
        )


def _at(word: str, paths: dict[str, str]) -> str:
    """A path of the container, as one of this machine."""
    for inside, here in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        if word == inside or word.startswith(f"{inside}/"):
            return here + word.removeprefix(inside)
    return word


def _end(process: asyncio.subprocess.Process) -> None:
    """Kill every process of a container."""
    for pid in filter(None, (_worker_of(process.pid), process.pid)):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _worker_of(pid: int) -> int:
    """The process below the first one of a container; 0 if there is none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0
