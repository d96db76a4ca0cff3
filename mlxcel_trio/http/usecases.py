"""What the handlers need from the service room, as protocols: tests and embedders may bring their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import trio

    from mlxcel_trio.protocol.events import Event
    from mlxcel_trio.protocol.models import ModelList, ModelObject
    from mlxcel_trio.protocol.requests import CreateResponse
    from mlxcel_trio.protocol.responses import Response


class PreparedResponse(Protocol):
    """An admitted response. It holds a queue place until it has run or is closed."""

    @property
    def stream(self) -> bool:
        """Whether the client asked for events."""

    @property
    def response_id(self) -> str:
        """The id of the response, known from the start."""

    def close(self) -> None:
        """Free the queue place; idempotent."""

    def open(
        self, *, ping_interval: float | None
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Event]]:
        """Run while the block is open and yield the events; leaving cancels what still runs."""

    async def run(self) -> Response:
        """Run to the end. Raises :class:`~mlxcel_trio.errors.ApiError`."""


class Health(Protocol):
    """A msgspec struct, sent as it is."""

    @property
    def ok(self) -> bool:
        """Whether new work would be taken."""


class Responses(Protocol):
    """The use cases behind the routes."""

    async def prepare(self, request: CreateResponse) -> PreparedResponse:
        """Validate and admit. Raises :class:`~mlxcel_trio.errors.ApiError` before anything is sent."""

    def models(self) -> ModelList:
        """Every listed model name."""

    def model(self, name: str) -> ModelObject:
        """One model name. Raises :class:`~mlxcel_trio.errors.NotFoundError`."""

    def health(self) -> Health:
        """The state of the engine."""
