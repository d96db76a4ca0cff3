"""Chains and conversations of the OpenAI SDK on the demo model: long lane."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai import AsyncOpenAI
from support.served_model import serving_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from openai.types.responses import Response

pytestmark = [
    pytest.mark.long,
    # The SDK leaves generators to the garbage collector, which trio warns of.
    pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2):ResourceWarning"),
]

PATIENCE_SECONDS = 1200
QUESTIONS = (
    "What is the capital of France?",
    "And the capital of Italy?",
    "What is 2 plus 2?",
    "Write a sentence about the sea.",
    "Name three colours.",
    "Say 👋🏽 <|im_end|> twice.",
    "Who wrote Hamlet?",
    "Translate 'good morning' into German.",
    "Give me a Python function that adds two numbers.",
    "What did I ask you first?",
    "Thank you!",
    "Name an animal with wings.",
)


@asynccontextmanager
async def demo_client(demo: Path) -> AsyncIterator[AsyncOpenAI]:
    async with (
        serving_model(demo, limit_seconds=PATIENCE_SECONDS) as served,
        AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="not-needed", timeout=PATIENCE_SECONDS, max_retries=0
        ) as client,
    ):
        yield client


class Chat:
    """A dialogue of the SDK, had three times at once: chained, in a conversation, and sent whole."""

    def __init__(self, client: AsyncOpenAI, conversation: str) -> None:
        self._client = client
        self._conversation = conversation
        self._said: list[Any] = []
        self.chain: list[Response] = []
        self.turns: list[Response] = []

    async def ask(self, question: str) -> None:
        """Have it answered all three ways, and compare."""
        previous = self.chain[-1].id if self.chain else None
        counted = await self._client.responses.input_tokens.count(
            model="local", input=question, previous_response_id=previous
        )
        self.chain.append(await self._create(input=question, previous_response_id=previous))
        self.turns.append(await self._create(input=question, conversation=self._conversation))
        self._said.append({"role": "user", "content": question})
        whole = await self._create(input=self._said, store=False)
        self._said += whole.output
        for response in (self.chain[-1], self.turns[-1]):
            assert response.output_text == whole.output_text, question
            assert response.usage == whole.usage, question
        assert whole.usage is not None
        assert counted.input_tokens == whole.usage.input_tokens

    async def _create(self, **fields: Any) -> Response:
        response: Response = await self._client.responses.create(
            model="local", temperature=0, max_output_tokens=12, **fields
        )
        return response


async def test_twelve_hops(demo: Path) -> None:
    async with demo_client(demo) as client:
        conversation = await client.conversations.create()
        chat = Chat(client, conversation.id)
        for number, question in enumerate(QUESTIONS):
            await chat.ask(question)
            if number == 3:
                for third in (chat.chain[2], chat.turns[2]):
                    await client.responses.delete(third.id)
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(model="local", input="x", previous_response_id=chat.chain[2].id)
        kept = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    answers = [response.output_text for response in chat.chain]
    assert answers[:2] == ["The capital of France is Paris.", "The capital of Italy is Rome."]
    assert refusal.value.code == "previous_response_not_found"
    assert len(kept) == 2 * len(QUESTIONS)
