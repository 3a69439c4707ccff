"""What surrounds a machine on EC2, for a container that stands for one: metadata (IMDSv2) and the endpoints of AWS.

surroundings.py METADATA.json MOTO_HOST MOTO_PORT CERTIFICATE KEY

Runs in the container, as root, with Python's own library. Metadata is answered at 169.254.169.254; what is sent to
127.0.0.2:443, as which /etc/hosts has the names of AWS's endpoints, goes to moto.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

METADATA, ENDPOINTS = ("169.254.169.254", 80), ("127.0.0.2", 443)
TOKEN = "only-for-this-machine"


def metadata(texts: Mapping[str, str]) -> ThreadingHTTPServer:
    """The metadata service: answers who shows a token, and hands one out."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked = self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            self._answer(*((200, TOKEN) if asked else (400, "")))

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
                self._answer(401, "")  # as with http_tokens = "required"
            elif self.path in texts:
                self._answer(200, texts[self.path])
            else:
                self._answer(404, "")

        def _answer(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Length", f"{len(text)}")
            self.end_headers()
            self.wfile.write(text.encode())

    subprocess.run(("ip", "address", "replace", f"{METADATA[0]}/32", "dev", "lo"), check=True)
    return ThreadingHTTPServer(METADATA, Handler)


async def endpoints(host: str, port: int, certificate: str, key: str) -> None:
    """Pass what comes by TLS on to moto."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def passed(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(2**16):
                target.write(data)
                await target.drain()
        target.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(passed(reader, inner_writer), passed(inner_reader, writer))

    server = await asyncio.start_server(accepted, *ENDPOINTS, ssl=context)
    await server.serve_forever()


async def main(texts: str, host: str, port: str, certificate: str, key: str) -> None:
    """Serve both, for ever."""
    answering = metadata(json.loads(texts))
    await asyncio.gather(asyncio.to_thread(answering.serve_forever), endpoints(host, int(port), certificate, key))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_text(), *sys.argv[2:]))
