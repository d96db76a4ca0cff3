"""From token ids to text, one token at a time.

Most tokenizers spell each token as bytes that do not depend on its neighbours: byte-level BPE and
SentencePiece with byte fallback. Their text is the UTF-8 decoding of those bytes in a row. For any other
kind the tokenizer itself decodes a window of tokens that moves along, which is slower.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_FUSE = {"type": "Fuse"}
_STRIP_FIRST_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class StreamingDetokenizer(Protocol):
    """Turns the token ids of one sequence into text. Not for use by two threads at once."""

    def feed(self, token: int) -> str:
        """The text that is final now; often empty, never half a character. Ids without text add none."""
        ...

    def finish(self) -> str:
        """What was held back: bytes that never became a character, as U+FFFD."""
        ...


class TokenBytes(dict[int, bytes]):
    """Token id -> the bytes of its text; empty for an id that is not in the vocabulary.

    Filled on first use, which any number of threads may do at once. ``strips_leading_space`` tells that
    the first byte of a whole text is dropped if it is a space.
    """

    def __init__(self, spell: Callable[[int], bytes], *, strips_leading_space: bool) -> None:
        super().__init__()
        self._spell = spell
        self.strips_leading_space = strips_leading_space

    @classmethod
    def of(cls, backend: Tokenizer) -> TokenBytes | None:
        """The table of a tokenizer; ``None`` when its tokens have no bytes of their own."""
        steps = list(_decoder_steps(backend))
        if [step["type"] for step in steps] == ["ByteLevel"]:
            return cls(_byte_level_spelling(backend), strips_leading_space=False)
        return _sentencepiece_bytes(backend, steps)

    def __missing__(self, token: int) -> bytes:
        spelled = self[token] = self._spell(token)
        return spelled


class BytesDetokenizer:
    """A detokenizer over :class:`TokenBytes`."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_space = token_bytes.strips_leading_space

    def feed(self, token: int) -> str:
        """See :class:`StreamingDetokenizer`."""
        spelled = self._token_bytes[token]
        if self._strips_space and spelled:
            self._strips_space = False
            spelled = spelled.removeprefix(b" ")
        return self._decoder.decode(spelled)

    def finish(self) -> str:
        """See :class:`StreamingDetokenizer`."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """A detokenizer for tokens whose text depends on their neighbours.

    The window holds the tokens passed on last, as context, and those held back. New text is what the
    window says beyond its context.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._context = 0  # how many tokens of the window have been passed on
        self._known = ""  # their text

    def feed(self, token: int) -> str:
        """See :class:`StreamingDetokenizer`."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._known) or not text.startswith(self._known):
            return ""
        new = text[len(self._known) :]
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._known = self._decode(self._window)
        return new

    def finish(self) -> str:
        """See :class:`StreamingDetokenizer`."""
        return self._decode(self._window)[len(self._known) :]


def _decoder_steps(backend: Tokenizer) -> Iterator[dict[str, Any]]:
    """The decoder of ``tokenizer.json``, with nested sequences laid out flat."""
    if backend.decoder is None:
        return
    pending: list[dict[str, Any]] = [msgspec.json.decode(backend.decoder.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = [*step["decoders"], *pending]
        else:
            yield step


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes: printable Latin-1 as itself, the others from U+0100 upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + position): byte for position, byte in enumerate(others)})
    return alphabet


def _byte_level_spelling(backend: Tokenizer) -> Callable[[int], bytes]:
    alphabet = _byte_alphabet()
    # Added tokens are matched in plain text, so they are not spelled in the alphabet.
    literal = {token: added.content.encode() for token, added in backend.get_added_tokens_decoder().items()}

    def spell(token: int) -> bytes:
        if token in literal:
            return literal[token]
        spelled = backend.id_to_token(token) or ""
        try:
            return bytes([alphabet[character] for character in spelled])
        except KeyError:
            return spelled.encode()

    return spell


def _sentencepiece_bytes(backend: Tokenizer, steps: Sequence[dict[str, Any]]) -> TokenBytes | None:
    # The first steps look at one token at a time, in this order: replacements, then byte tokens. What
    # follows Fuse sees the whole text.
    rest = list(steps)
    replacements: list[tuple[str, str]] = []
    strips = False
    while rest and (replacement := _replacement(rest[0])):
        replacements.append(replacement)
        strips = strips or rest.pop(0).get("prepend_scheme", "never") != "never"
    byte_fallback = rest[:1] == [{"type": "ByteFallback"}]
    whole_text = rest[byte_fallback:]
    if whole_text == [_FUSE, _STRIP_FIRST_SPACE] and not strips:
        strips = True
    elif not steps or whole_text not in ([], [_FUSE]):
        return None

    def spell(token: int) -> bytes:
        spelled = backend.id_to_token(token) or ""
        for old, new in replacements:
            spelled = spelled.replace(old, new)
        if byte_fallback and (match := _BYTE_TOKEN.fullmatch(spelled)):
            return bytes.fromhex(match[1])
        return spelled.encode()

    return TokenBytes(spell, strips_leading_space=strips)


def _replacement(step: dict[str, Any]) -> tuple[str, str] | None:
    match step:
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return old, new
        case {"type": "Metaspace", "replacement": old}:
            return old, " "
        case _:
            return None
