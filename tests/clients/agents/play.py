"""Leads a dialogue with the OpenAI Agents SDK and prints what came of it as JSON.

``python play.py URL SCENARIO TEXT...``, in an environment with ``requirements.txt``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

URL, SCENARIO, *TEXTS = sys.argv[1:]

client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="not-needed", max_retries=0)
agent = Agent(name="test", instructions="Be brief.", model=OpenAIResponsesModel("local", client))


async def chain() -> dict[str, Any]:
    """Each run continues the last response."""
    answers, previous = [], None
    for text in TEXTS:
        result = await Runner.run(agent, text, previous_response_id=previous)
        answers.append(result.final_output)
        previous = result.last_response_id
    return {"answers": answers}


async def conversation() -> dict[str, Any]:
    """Each run is a streamed turn of one conversation."""
    conversation_id = (await client.conversations.create()).id
    answers = []
    for text in TEXTS:
        streamed = Runner.run_streamed(agent, text, conversation_id=conversation_id)
        async for _ in streamed.stream_events():
            pass
        answers.append(streamed.final_output)
    return {"answers": answers, "conversation": conversation_id}


async def session() -> dict[str, Any]:
    """The SDK keeps the items in a conversation and sends them with each run."""
    kept = OpenAIConversationsSession(openai_client=client)
    answers = [(await Runner.run(agent, text, session=kept)).final_output for text in TEXTS]
    played = {"answers": answers, "conversation": kept.session_id, "items": await kept.get_items()}
    played |= {"last": await kept.get_items(limit=2), "popped": await kept.pop_item()}
    played["left"] = await kept.get_items()
    await kept.clear_session()
    return played


async def history() -> dict[str, Any]:
    """The caller keeps the items and sends them with each run."""
    answers: list[str] = []
    items: list[Any] = []
    for text in TEXTS:
        result = await Runner.run(agent, [*items, {"role": "user", "content": text}])
        answers.append(result.final_output)
        items = result.to_input_list()
    return {"answers": answers}


if __name__ == "__main__":
    set_tracing_disabled(True)
    scenarios = {play.__name__: play for play in (chain, conversation, session, history)}
    print(json.dumps(asyncio.run(scenarios[SCENARIO]())))  # noqa: T201
