"""The server's sockets: an accept loop of our own around hypercorn's HTTP/1.1.

hypercorn's own loop lets an exception in one connection end the server, never ends a connection that was
answered, cannot be cancelled while a client does not read, and has no cap on connections.
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import repr_socket_addr

from mlxcel_trio.errors import ConfigurationError
from mlxcel_trio.http.connection import Connection, ConnectionLimits
from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

log = get_logger(__name__)

# accept() failed because the machine is out of something; trio's serve_listeners waits as long.
EXHAUSTED_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
EXHAUSTED_PAUSE_SECONDS = 0.1

# A name such as localhost may stand for an address of a family that this machine does not have.
MISSING_FAMILY_ERRNOS = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})

MAX_KERNEL_TIMEOUT_SECONDS = 3600


class WorkerLimits(ConnectionLimits, frozen=True, kw_only=True):
    """Limits of a connection and of the server.

    Connections beyond ``max_connections`` wait in the kernel's queue of ``backlog``. ``graceful_timeout``:
    seconds that running requests get after shutdown was asked for.
    """

    max_connections: int = 1024
    backlog: int = 1024
    graceful_timeout: float = 10.0


DEFAULT_LIMITS = WorkerLimits()


async def serve_http(
    app: ASGIFramework,
    host: str,
    port: int,
    *,
    shutdown: trio.Event,
    limits: WorkerLimits = DEFAULT_LIMITS,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``app`` over HTTP/1.1 until ``shutdown`` is set.

    ``host`` is a name or an address, of which all are listened on; ``port`` 0 picks a free one. The URL, with
    the port that was picked, is reported through ``task_status`` once connections are taken.

    ``shutdown`` stops accepting and ends idle connections at once; requests that are being answered may
    finish within ``limits.graceful_timeout`` and are cancelled then. Cancelling the call cancels at once.

    :raises ConfigurationError: the address cannot be listened on.
    """
    listeners = await open_listeners(host, port, limits.backlog)
    acceptor = _Acceptor(app, limits)
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            for listener in listeners:
                accepting.start_soon(acceptor.accept, listener, connections)
            task_status.started(_url(listeners[0]))
            await shutdown.wait()
            accepting.cancel_scope.cancel()
        await acceptor.end_idle_connections()
        connections.cancel_scope.deadline = trio.current_time() + limits.graceful_timeout


async def open_listeners(host: str, port: int, backlog: int) -> list[trio.SocketListener]:
    """Listening sockets on every address of ``host``, all on the same port.

    :raises ConfigurationError: the name is unknown or an address is not to be had.
    """
    with ExitStack() as opened:
        try:
            listeners = await _listen_on_all(host, port, backlog, opened)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "this is not a host name"
            raise ConfigurationError(
                f"Cannot listen on {host}:{port}: {reason}. Choose another address with --host or --port; "
                "--port 0 picks a free port."
            ) from error
        opened.pop_all()
    return listeners


async def _listen_on_all(host: str, port: int, backlog: int, opened: ExitStack) -> list[trio.SocketListener]:
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[trio.SocketListener] = []
    missing: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            sock = await _listen(family, kind, protocol, (address[0], port, *address[2:]), backlog)
        except OSError as error:
            if error.errno not in MISSING_FAMILY_ERRNOS:
                raise
            missing = error
        else:
            opened.callback(sock.close)
            listeners.append(trio.SocketListener(sock))
            port = sock.getsockname()[1]  # of the others too
    if missing is not None and not listeners:
        raise missing
    return listeners


async def _listen(
    family: int, kind: int, protocol: int, address: tuple[object, ...], backlog: int
) -> trio.socket.SocketType:
    with ExitStack() as opened:
        sock = opened.enter_context(trio.socket.socket(family, kind, protocol))
        # Otherwise a restart has to wait until the kernel has forgotten the old connections.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        await sock.bind(address)
        sock.listen(backlog)
        opened.pop_all()
    return sock


def _url(listener: trio.SocketListener) -> str:
    sock = listener.socket
    return f"http://{repr_socket_addr(sock.family, sock.getsockname())}"


class _Acceptor:
    """Takes connections and keeps each one's failure to itself."""

    def __init__(self, app: ASGIFramework, limits: WorkerLimits) -> None:
        self._app = ASGIWrapper(app)
        self._limits = limits
        self._config = _hypercorn_config(limits)
        self._context = WorkerContext(max_requests=None)
        self._places = trio.Semaphore(limits.max_connections)
        self._open: set[Connection] = set()

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Serve connections of ``listener`` in ``nursery`` until cancelled; closes the listener."""
        async with listener:
            while True:
                await self._places.acquire()
                nursery.start_soon(self._serve, await _accept_one(listener))

    async def end_idle_connections(self) -> None:
        """End what is idle now, and every other connection after the request that it is answering."""
        await self._context.terminated.set()
        for connection in self._open:
            connection.end_if_idle()

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = Connection(self._app, self._config, self._context, self._limits, stream)
        self._open.add(connection)
        try:
            _notice_vanished_peer(stream, self._limits.write_timeout)
            await connection.run()
        except* Exception as errors:
            log.warning("connection_failed", reason=repr(_first_leaf(errors)))
        finally:
            self._open.discard(connection)
            self._places.release()
            await trio.aclose_forcefully(stream)


async def _accept_one(listener: trio.SocketListener) -> trio.SocketStream:
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in EXHAUSTED_ERRNOS:
                raise
            log.error("accept_failed", reason=error.strerror)
            await trio.sleep(EXHAUSTED_PAUSE_SECONDS)


def _notice_vanished_peer(stream: trio.SocketStream, timeout: float) -> None:
    """Have the kernel end the connection when the peer's machine is gone, which no packet will tell."""
    seconds = round(min(max(timeout, 1), MAX_KERNEL_TIMEOUT_SECONDS))
    options = {
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": max(1, seconds // 3),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 1000 * seconds,
    }
    # Some systems refuse options once the peer is gone, which the first read tells as well.
    with suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # not every platform has them all
                stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _first_leaf(error: BaseException) -> BaseException:
    return _first_leaf(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _hypercorn_config(limits: WorkerLimits) -> Config:
    config = Config()
    config.h11_max_incomplete_size = limits.max_header_bytes
    config.include_server_header = False
    config.errorlog = None  # its log lines are ours to write
    return config
