"""``POST /v1/responses/input_tokens`` against what the response itself says, on the tiny model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from real.generated_inputs import RequestGenerator
from support.served import body_of, checked_error, checked_response
from support.served_model import serving_model

if TYPE_CHECKING:
    import httpx
    from real.generated_inputs import Body
    from support.served import ServerClient

INPUTS = 200


async def count_input_tokens(served: ServerClient, body: Body) -> httpx.Response:
    return await served.client.post("/v1/responses/input_tokens", json=body)


async def test_two_hundred_generated_inputs() -> None:
    generator = RequestGenerator(seed=4)
    kinds: Counter[str] = Counter()
    async with serving_model() as served:
        while kinds["counted"] < INPUTS:
            body = body_of(generator.body()) | {"max_output_tokens": 1}
            counted = await count_input_tokens(served, body)
            reply = await served.client.post("/v1/responses", json=body)
            assert counted.status_code == reply.status_code, body
            if reply.status_code != 200:
                assert checked_error(counted) == checked_error(reply), body
                kinds["refused"] += 1
                continue
            response = checked_response(reply)
            tokens = response["usage"]["input_tokens"]
            assert counted.json() == {"object": "response.input_tokens", "input_tokens": tokens}, body
            generator.take(response)
            kinds.update(["counted", *body])
    assert kinds["previous_response_id"] > INPUTS / 4
    assert kinds["conversation"] > INPUTS / 4
    assert 0 < kinds["refused"] < INPUTS / 4
