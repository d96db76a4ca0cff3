"""Items with nothing but what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.published import Json


def dialogue(*said: str, answer: str) -> list[Json]:
    """A user says these texts, and is given ``answer`` each time but the last."""
    items: list[Json] = []
    for text in said:
        items += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return items[:-1]


def plain(item: Json) -> Json:
    """A message, a call or an output with nothing but what it says."""
    match item.get("type", "message"):
        case "message":
            return {"role": item["role"], "content": joined(item["content"])}
        case "function_call":
            return {key: item[key] for key in ("type", "call_id", "name", "arguments")}
        case "function_call_output":
            return {"type": item["type"], "call_id": item["call_id"], "output": joined(item["output"])}
    raise ValueError(f"no plain item: {item}")


def joined(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
