"""Keeping what people write apart from what the chat template writes.

A tokenizer recognises its added tokens (``<|im_end|>``, ``<think>``) anywhere in a rendered prompt. In
messages they are only text. So a sentinel goes inside each of them before the template is rendered; the
rendered text is split at the sentinel, and the pieces are encoded one by one. Half a marker is no marker,
neither to the tokenizer nor to a template that searches messages for ``</think>``.
"""

from __future__ import annotations

import re
import secrets
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokenizers import AddedToken, Tokenizer

_SENTINEL_LENGTH = 20

# Enough to tell one marker from another; what begins like a marker for longer than this is split as well.
_COMPARED_LENGTH = 64

# Stand before a piece while it is encoded, so that it is not taken for the beginning of a text. One that
# merges with the piece is no use, hence several.
_ANCHORS = ("\n", "a", ".")


def new_sentinel(haystack: str) -> str:
    """A string that ``haystack`` does not contain, drawn at random.

    Digits pass unchanged through every filter of a template. Only the first is a zero, so the sentinel cannot
    overlap itself, and digits around it cannot form a second one.
    """
    while (
        sentinel := "0" + "".join(secrets.choice("123456789") for _ in range(_SENTINEL_LENGTH - 1))
    ) in haystack:
        pass
    return sentinel


class Markup:
    """The added tokens of a tokenizer and how to write them as text. Any thread may use it.

    Two kinds of added tokens are not markup, for they cannot be anything but text: runs of whitespace, and
    single characters. ``extra`` markers are kept apart too, although the tokenizer does not know them.
    """

    def __init__(self, backend: Tokenizer, *, extra: Iterable[str] = ()) -> None:
        added = {
            token: entry
            for token, entry in backend.get_added_tokens_decoder().items()
            if _is_markup(entry.content)
        }
        markers = {entry.content for entry in added.values()} | set(extra)
        self._backend = backend
        self._first_of_marker = re.compile(_first_character_of(markers))
        self._heads = frozenset(
            _partials(marker[:end] for marker in markers for end in range(1, len(marker)))
        )
        self._tails = frozenset(
            _partials(marker[start:] for marker in markers for start in range(1, len(marker)))
        )
        self._longest = max(map(len, markers), default=1)
        self._cores = frozenset(re.sub(r"^\W+|\W+$", "", marker) for marker in markers)
        self._normalised = _found_after_normalising(backend, added)
        self._adds_prefix = self._ids("a") != self._ids_after_anchor("a")

    def guard(self, text: str, sentinel: str) -> str:
        """``text`` with the sentinel inside every marker, and at an end that could complete one."""
        text = _without_lone_surrogates(text)
        guarded = self._first_of_marker.sub(rf"\g<0>{sentinel}", text)
        if self._normalised:
            guarded = sentinel.join(self._split_normalised(guarded.split(sentinel)))
        # Templates like to trim whitespace, so the outermost other characters count as the ends.
        body = text.strip()
        if any(body[:length] in self._tails for length in range(1, self._longest)):
            indent = len(guarded) - len(guarded.lstrip())
            guarded = guarded[:indent] + sentinel + guarded[indent:]
        if any(body[-length:] in self._heads for length in range(1, self._longest)):
            end = len(guarded.rstrip())
            guarded = guarded[:end] + sentinel + guarded[end:]
        return guarded

    def guard_name(self, name: str, sentinel: str) -> str:
        """Like :meth:`guard`, for a name: templates put it in brackets, and ``think`` becomes ``<think>``."""
        return (sentinel if name in self._cores else "") + self.guard(name, sentinel)

    def guard_data(self, value: Any, sentinel: str) -> Any:
        """Guard all strings of a JSON value; keys are names."""
        match value:
            case str():
                return self.guard(value, sentinel)
            case dict():
                return {
                    self.guard_name(key, sentinel): self.guard_data(item, sentinel)
                    for key, item in value.items()
                }
            case list() | tuple():
                return [self.guard_data(item, sentinel) for item in value]
            case _:
                return value

    def encode(self, rendered: str, sentinel: str) -> list[int]:
        """Token ids of a rendered text, markup recognised, the sentinel gone."""
        first, *others = [piece for piece in rendered.split(sentinel) if piece] or [""]
        ids = self._ids(first)
        for piece in others:
            ids += self._ids_after_anchor(piece) if self._adds_prefix else self._ids(piece)
        return ids

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is markup."""
        sentinel = new_sentinel(text)
        return self.encode(self.guard(text, sentinel), sentinel)

    def _ids(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def _ids_after_anchor(self, piece: str) -> list[int]:
        """Ids of a piece from the middle of a text, without the space that goes before a first word."""
        for anchor in _ANCHORS:
            encoding = self._backend.encode(anchor + piece, add_special_tokens=False)
            ends = [end for _, end in encoding.offsets]
            count = sum(1 for start, _ in encoding.offsets if start < len(anchor))
            if count and ends[count - 1] <= len(anchor):
                return encoding.ids[count:]
        return self._ids(piece)

    def _split_normalised(self, pieces: Iterable[str]) -> Iterator[str]:
        """Split where the tokenizer sees a marker only after normalising (``＜THINK＞`` as ``<think>``)."""
        for piece in pieces:
            encoding = self._backend.encode(piece, add_special_tokens=False)
            cuts = [
                (start + end) // 2
                for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
                if token in self._normalised and end - start > 1
            ]
            if cuts:
                # Whitespace that a marker swallows can hold the cut; then the parts are cut again.
                parts = [piece[start:end] for start, end in pairwise([0, *cuts, len(piece)])]
                yield from self._split_normalised(parts)
            else:
                yield piece


def _without_lone_surrogates(text: str) -> str:
    """JSON can spell half a surrogate pair; a tokenizer takes only what has a UTF-8 form."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _is_markup(content: str) -> bool:
    return len(content) > 1 and not content.replace("▁", " ").isspace()


def _partials(parts: Iterable[str]) -> Iterator[str]:
    """Parts that show that a marker is meant. Letters alone do not: most texts begin with some."""
    return (part for part in parts if not part.isalnum())


def _found_after_normalising(backend: Tokenizer, added: dict[int, AddedToken]) -> frozenset[int]:
    if backend.normalizer is None:
        return frozenset()
    return frozenset(token for token, entry in added.items() if entry.normalized)


def _first_character_of(markers: Iterable[str]) -> str:
    """Pattern of a marker's first character where the rest follows: it also finds overlapping markers."""
    rests: dict[str, list[str]] = {}
    for marker in sorted(markers):
        rests.setdefault(marker[0], []).append(marker[1:_COMPARED_LENGTH])
    return "|".join(f"{re.escape(first)}(?={_any_of(rest)})" for first, rest in rests.items()) or "(?!)"


def _any_of(words: Iterable[str]) -> str:
    """Pattern of any of the words as a tree of characters: thousands of markers cost no more than a few."""
    rests: dict[str, list[str]] = {}
    for word in words:
        if not word:
            return ""
        rests.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(first) + _any_of(rest) for first, rest in rests.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
