"""Background responses as clients see them. Each object is checked, also against the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.served import body_of, checked_error, checked_response
from support.streams import ENDING_KEYS

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    import httpx
    from support.published import Json
    from support.served import ServerClient

UNFINISHED = ("queued", "in_progress")

HAIKU = ("Soft", " rain", " on", " the", " roof")
ROWS = (
    ScriptRow(when="haiku", emit=HAIKU),
    ScriptRow(when="prefill", prefill_delay=3600),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(when="bad", emit=("a", "b"), then="raise"),
    ScriptRow(emit=("ok",)),
)


class Job:
    """One background response. ``last`` is its object as it was answered last."""

    def __init__(self, server: ServerClient, created: httpx.Response) -> None:
        assert created.status_code == 200, created.text
        self._server = server
        self.last = checked_response(created)
        self.id: str = self.last["id"]
        self.statuses: list[str] = []
        self._take(created)

    @property
    def path(self) -> str:
        """Where it is found."""
        return f"/v1/responses/{self.id}"

    async def poll(self) -> Json:
        """Its object as it stands."""
        return self._take(await self._server.client.get(self.path))

    async def until(self, status: str) -> Json:
        """Poll it again and again until it has this status, which it must reach."""
        while self.last["status"] != status:
            assert self.last["status"] in UNFINISHED, f"{self.last} where {status} is awaited"
            await self.poll()
        return self.last

    async def end(self) -> Json:
        """Poll it to its end; returns the final object."""
        while self.last["status"] in UNFINISHED:
            await self.poll()
        return self.last

    async def cancel(self) -> Json:
        """Cancel it, at any stage; returns the final object."""
        final = self._take(await self._server.client.post(f"{self.path}/cancel"))
        assert final["status"] not in UNFINISHED
        return final

    async def delete(self) -> None:
        """Delete it, which must succeed; after that it is unknown."""
        reply = await self._server.client.delete(self.path)
        assert reply.status_code == 200, reply.text
        assert reply.json() == {"id": self.id, "object": "response", "deleted": True}
        await self.assert_unknown()

    async def assert_unknown(self) -> None:
        """Nothing is found under its id any more."""
        client = self._server.client
        for reply in (
            await client.get(self.path),
            await client.delete(self.path),
            await client.post(f"{self.path}/cancel"),
            await client.get(f"{self.path}/input_items"),
        ):
            assert (reply.status_code, checked_error(reply)["code"]) == (404, "response_not_found")

    def _take(self, reply: httpx.Response) -> Json:
        assert reply.status_code == 200, reply.text
        now, before = checked_response(reply), self.last
        assert now["background"] is True
        for key in now.keys() - ENDING_KEYS:
            assert now[key] == before[key], f"{key} was {before[key]!r} and is {now[key]!r}"
        if before["status"] not in UNFINISHED:
            assert now == before, "the final object changed"
        assert not (before["status"] == "in_progress" and now["status"] == "queued"), "it went back"
        if now["status"] not in self.statuses:
            self.statuses.append(now["status"])
        self.last = now
        return now


async def create_job(server: ServerClient, **fields: Any) -> Job:
    """Create a background response."""
    job = Job(server, await request_job(server, **fields))
    assert job.statuses == ["queued"]
    return job


async def request_job(server: ServerClient, **fields: Any) -> httpx.Response:
    """Ask for one; the answer may be a refusal."""
    return await server.client.post("/v1/responses", json=body_of({"background": True} | fields))


async def refused_job(server: ServerClient, **fields: Any) -> tuple[int, Json]:
    """Ask for one that is refused; status and error object."""
    reply = await request_job(server, **fields)
    assert reply.status_code >= 400, reply.text
    return reply.status_code, checked_error(reply)


async def no_job_left(served: ServerClient) -> None:
    """Nothing holds a place among the jobs, its memory, a queue place, a slot or a row."""
    await served.until(jobs=0, job_bytes=0, running=0, waiting=0, rows=0)


async def said_in(served: ServerClient, conversation: str) -> list[str]:
    """The texts of a conversation, oldest first."""
    reply = await served.client.get(f"/v1/conversations/{conversation}/items?order=asc")
    assert reply.status_code == 200, reply.text
    return ["".join(part["text"] for part in item["content"]) for item in reply.json()["data"]]
