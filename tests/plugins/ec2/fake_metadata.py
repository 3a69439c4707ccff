"""A metadata service of one EC2 instance (IMDSv2) on this machine, whose answers a test changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN, TTL = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"


class FakeMetadata:
    """Answers at `address` what `texts` has, by the path below `latest/`."""

    def __init__(self, instance: str, market: str) -> None:
        document = {
            "instanceId": instance,
            "instanceType": "c6a.4xlarge",
            "availabilityZone": "eu-central-1a",
            "region": "eu-central-1",
            "pendingTime": "2026-11-24T12:00:00Z",
        }
        self.texts = {
            "dynamic/instance-identity/document": json.dumps(document),
            "meta-data/instance-life-cycle": market,
            "meta-data/autoscaling/target-lifecycle-state": "InService",
        }
        self.valid = {"first"}
        self.asked: list[str] = []
        self.address = ""

    def forget_tokens(self) -> None:
        """As if all tokens had expired."""
        self.valid.clear()


@contextmanager
def metadata(instance: str, market: str = "spot") -> Iterator[FakeMetadata]:
    """One running service."""
    fake = FakeMetadata(instance, market)

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            if self.path != "/latest/api/token" or not self.headers.get(TTL, "").isdecimal():
                return self._answer(400, "")
            token = f"token-{len(fake.asked)}"
            fake.valid.add(token)
            return self._answer(200, token)

        def do_GET(self) -> None:
            path = self.path.removeprefix("/latest/")
            fake.asked.append(path)
            if self.headers.get(TOKEN) not in fake.valid:
                return self._answer(401, "")
            return self._answer(200, fake.texts[path]) if path in fake.texts else self._answer(404, "no such page")

        def _answer(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Length", f"{len(text)}")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
