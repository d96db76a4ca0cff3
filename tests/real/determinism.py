"""What must hold for every model: the same request has the same answer, however it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from support.served import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.served import ServerClient

Body = dict[str, Any]


async def one_by_one(served: ServerClient, bodies: Sequence[Body]) -> list[str]:
    """The answers to requests sent one after the other."""
    return [text_of(await served.create(**body)) for body in bodies]


async def at_once(served: ServerClient, bodies: Sequence[Body]) -> list[str]:
    """The answers to requests sent all at once, half of them as streams."""
    answers = [""] * len(bodies)

    async def ask(index: int, body: Body) -> None:
        if index % 2:
            response = (await served.stream(**body))[-1]["response"]
        else:
            response = await served.create(**body)
        answers[index] = text_of(response)

    async with trio.open_nursery() as nursery:
        for index, body in enumerate(bodies):
            nursery.start_soon(ask, index, body)
    return answers


async def check_streamed_is_not_streamed(served: ServerClient, body: Body) -> None:
    """The final object of a stream has the output and the usage of the same request without one."""
    plain = await served.create(**body)
    streamed = (await served.stream(**body))[-1]["response"]
    assert _without_ids(streamed) == _without_ids(plain)


async def check_seed_reproduces(served: ServerClient, bodies: Sequence[Body]) -> None:
    """At temperature 1 a seed gives the same answer alone and in a batch; another seed another answer."""
    seeded = [body | {"temperature": 1, "seed": 7} for body in bodies]
    alone = await one_by_one(served, seeded)
    assert await at_once(served, seeded) == alone
    assert await one_by_one(served, [body | {"seed": 8} for body in seeded]) != alone


def _without_ids(response: dict[str, Any]) -> dict[str, Any]:
    output = [{key: value for key, value in item.items() if key != "id"} for item in response["output"]]
    return {"status": response["status"], "usage": response["usage"], "output": output}
