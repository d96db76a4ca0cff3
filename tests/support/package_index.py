"""A package index on localhost that serves one wheel, and can be held in the middle of it."""

from __future__ import annotations

import threading
import zipfile
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHEEL_NAME = "tiny_demo-1.0-py3-none-any.whl"
GGUF_MEMBER = "tiny_demo/tiny.gguf"
LICENSE_MEMBER = "tiny_demo-1.0.dist-info/LICENSE"


def write_wheel(path: Path, gguf: bytes) -> bytes:
    """A wheel that pip accepts; returns its bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GGUF_MEMBER, gguf)
        archive.writestr(LICENSE_MEMBER, "Do as you like.\n")
        info = "tiny_demo-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


class PackageIndex:
    """Serves ``wheel``. After half of it it waits for ``release``; with ``truncate`` it sends no more."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel = wheel
        self.truncate = False
        self.downloads = 0
        self.half_sent = threading.Event()
        self.release = threading.Event()
        self.url = ""

    @contextmanager
    def serve(self) -> Iterator[PackageIndex]:
        """Serve at ``url``; at the end a client that waits gets the rest."""
        server = _Server(self)
        self.url = f"http://127.0.0.1:{server.server_port}/simple"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.release.set()
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    def __init__(self, index: PackageIndex) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.index = index


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        index = self.server.index
        if self.path.endswith(".whl"):
            self._send_wheel(index)
            return
        digest = sha256(index.wheel).hexdigest()
        page = f'<a href="/files/{WHEEL_NAME}#sha256={digest}">wheel</a>'.encode()
        self._head("text/html", len(page))
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return

    def _head(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send_wheel(self, index: PackageIndex) -> None:
        index.downloads += 1
        self._head("application/octet-stream", len(index.wheel))
        half = len(index.wheel) // 2
        try:
            self.wfile.write(index.wheel[:half])
            index.half_sent.set()
            index.release.wait()
            if not index.truncate:
                self.wfile.write(index.wheel[half:])
        except ConnectionError:
            # The client was killed; that is what some tests are about.
            self.close_connection = True
