"""What must hold for every model: a dialogue is the same, whoever keeps its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.served import reasoning_of, text_of

if TYPE_CHECKING:
    from support.published import Json
    from support.served import ServerClient

Body = dict[str, Any]


class Dialogue:
    """One dialogue, had three times hop by hop: as a chain, as a conversation, and sent whole every time.

    At every hop the answers at temperature 0 and the usage have to be the same.
    """

    def __init__(self, served: ServerClient) -> None:
        self._served = served
        self._said: list[Body] = []
        self.chain: list[Json] = []
        self.turns: list[Json] = []

    async def hop(self, **fields: Any) -> Json:
        """Say ``input`` and compare the answers; returns that of the chain."""
        body = {"temperature": 0} | fields
        previous = self.chain[-1]["id"] if self.chain else None
        chained = await self._served.create(**body, previous_response_id=previous)
        turn = await self._served.create(**body, conversation="talk")
        own = items_of(body["input"])
        whole = await self._served.create(**body | {"input": [*self._said, *own], "store": False})
        place = f"hop {len(self.chain) + 1}: {fields}"
        assert _answer(chained) == _answer(whole), place
        assert _answer(turn) == _answer(whole), place
        self._said += [*own, *whole["output"]]
        self.chain.append(chained)
        self.turns.append(turn)
        return chained


def items_of(sent: str | list[Body]) -> list[Body]:
    """An ``input`` as items."""
    return [{"role": "user", "content": sent}] if isinstance(sent, str) else sent


def _answer(response: Json) -> Body:
    texts = {"reasoning": reasoning_of(response), "text": text_of(response)}
    return {"status": response["status"], "usage": response["usage"]} | texts
