"""A Hugging Face hub on localhost with the few routes that a snapshot download needs.

It can be held in the middle of a file.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMMIT = "0123456789abcdef0123456789abcdef01234567"

Files = dict[str, bytes]


class HeldFile:
    """A file of which half is sent; the rest follows after ``release``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.half_sent = threading.Event()
        self.release = threading.Event()


@contextmanager
def serve_hub(repositories: Mapping[str, Files], *, held: HeldFile | None = None) -> Iterator[str]:
    """Serve ``repositories`` and yield the address. ``org/gated`` is gated; others do not exist.

    At the end clients that wait for the rest of ``held`` get it.
    """
    server = _Hub(repositories, held)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        if held is not None:
            held.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Hub(ThreadingHTTPServer):
    def __init__(self, repositories: Mapping[str, Files], held: HeldFile | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = repositories
        self.held = held


class _Handler(BaseHTTPRequestHandler):
    server: _Hub

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            parts = parts[2:]
        name, action, path = "/".join(parts[:2]), parts[2], "/".join(parts[4:])
        files = self.server.repositories.get(name)
        if files is None:
            status, code = (403, "GatedRepo") if name == "org/gated" else (404, "RepoNotFound")
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})
        elif action == "revision":
            siblings = [{"rfilename": path} for path in files]
            self._send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), {})
        elif action == "tree":
            tree = [
                {"type": "file", "path": path, "size": len(data), "oid": etag(data)}
                for path, data in files.items()
            ]
            self._send(200, json.dumps(tree).encode(), {})
        else:
            self._send_file(path, files[path])

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return

    def _send_file(self, path: str, data: bytes) -> None:
        headers = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": COMMIT}
        held = self.server.held
        if held is None or held.path != path or self.command != "GET":
            self._send(200, data, headers)
            return
        self._head(200, len(data), headers)
        half = len(data) // 2
        try:
            self.wfile.write(data[:half])
            held.half_sent.set()
            held.release.wait()
            self.wfile.write(data[half:])
        except ConnectionError:
            # The client was killed; that is what some tests are about.
            self.close_connection = True

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._head(status, len(body), headers)
        if self.command == "GET":
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()


def etag(data: bytes) -> str:
    """The name under which the hub, and a client's cache, know a file with this content."""
    return sha1(data).hexdigest()  # noqa: S324 - as the hub does
