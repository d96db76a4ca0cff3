"""What the tests of jobs assert and do in many places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.service_bench import play

from mlxcel_trio.errors import ApiError, InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.job_bench import JobBench
    from support.published import Json
    from support.service_bench import End


NO_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def assert_unfinished(response: Json, status: str) -> None:
    """Nothing of the answer can be seen."""
    assert (response["status"], response["output"], response["usage"]) == (status, [], NO_USAGE)
    assert response["background"] is True


def assert_gone(bench: JobBench, response_id: str) -> None:
    """No way leads to the job."""
    looks: list[Callable[[str], object]] = [bench.poll, bench.cancel, bench.delete]
    for look in looks:
        with pytest.raises(NotFoundError):
            look(response_id)


async def assert_unchainable(bench: JobBench, response_id: str) -> None:
    """No request can continue the job, though it can be read."""
    bench.poll(response_id)
    for background in (True, False):
        with pytest.raises(InvalidRequestError) as refused:
            await bench.prepare(previous_response_id=response_id, background=background, stream=False)
        assert refused.value.code == "previous_response_not_found"


async def finish(bench: JobBench, *chunks: str, end: End = "stop", **fields: Any) -> Json:
    """A whole job."""
    created = await bench.create(**fields)
    play(await bench.engine.next_sequence(), *chunks, end=end)
    await bench.settled()
    return bench.poll(created["id"])


def footprint(bench: JobBench) -> tuple[object, ...]:
    """All that a create may change."""
    places = (len(bench.active), bench.active.retained_bytes, bench.slots.running, bench.slots.waiting)
    return (*places, len(bench.stored), len(bench.stored._live), len(bench.engine.sequences))


async def assert_refused(bench: JobBench, error: type[ApiError], **fields: Any) -> ApiError:
    """A job is refused and nothing has changed; the error."""
    await bench.settled()
    before = footprint(bench)
    with pytest.raises(error) as refused:
        await bench.prepare_job(**fields)
    await bench.settled()
    assert footprint(bench) == before
    return refused.value
