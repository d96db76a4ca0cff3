"""The model's tokenizer and chat template: messages in, token ids out, and text back."""

from __future__ import annotations

import inspect
import logging
import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from mlxcel_trio.engine.chat_template import Notation, arrange, probe
from mlxcel_trio.engine.detokenizer import (
    BytesDetokenizer,
    StreamingDetokenizer,
    TokenBytes,
    WindowDetokenizer,
)
from mlxcel_trio.engine.import_lock import import_lock
from mlxcel_trio.engine.markup import Markup, new_sentinel
from mlxcel_trio.errors import CorruptModelError, InvalidRequestError, UnsupportedModelError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

    from mlxcel_trio.core.messages import ChatMessage

# Ends of a turn, whatever the model's files say: many converted models name only the end of a document. Not
# in the list is <|end|>, which closes a turn in some families and a part of one in others.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<turn|>",
)

# Opening and closing marker of a reasoning block, with the added tokens they are made of.
_REASONING_MARKERS = (
    ("<think>", "</think>", ("<think>", "</think>")),
    ("<longcat_think>", "</longcat_think>", ("<longcat_think>", "</longcat_think>")),
    ("<seed:think>", "</seed:think>", ("<seed:think>", "</seed:think>")),
    ("<|think:start|>", "<|think:end|>", ("<|think:start|>", "<|think:end|>")),
    ("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_THINKING|>", "<|END_THINKING|>")),
    ("[THINK]", "[/THINK]", ("[THINK]", "[/THINK]")),
    ("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>")),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>", ("<|open|>", "<|close|>", "<|sep|>")),
)

# What a template reads besides the client's variables; the names of special tokens come from the tokenizer.
_RESERVED_VARIABLES = frozenset({"messages", "conversations", "conversation", "self", "chat"})


class RenderedPrompt(Struct, frozen=True):
    """A dialogue as the model reads it. ``opens_reasoning``: it ends inside an open reasoning block."""

    tokens: tuple[int, ...]
    opens_reasoning: bool


class ChatTokenizer:
    """Tokenizer and chat template of one model.

    Synchronous; every method may be called from any number of threads at once, without a lock: after
    ``load`` nothing is changed. (Of the libraries underneath, only truncation and padding settings are
    mutable, and both are switched off for good.)
    """

    def __init__(self, pretrained: Any, *, extra_end_tokens: frozenset[int] = frozenset()) -> None:
        """Wrap a fast transformers tokenizer that has a chat template; see :meth:`load` for errors."""
        backend: Tokenizer = pretrained.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        template, tool_template = _templates(pretrained)
        self.vocabulary_size: int = max(vocabulary.values()) + 1
        """One more than the highest token id."""
        self.reasoning_markers: tuple[str, str] | None = _reasoning_markers(vocabulary, template)
        """Opening and closing text of a reasoning block, for a model that writes them."""
        self.end_tokens: frozenset[int] = extra_end_tokens | _turn_ends(backend, pretrained.eos_token_id)
        """Ids that end an answer: all that the model's files name, and the usual ends of a turn."""
        self._backend = backend
        self._token_bytes = TokenBytes.of(backend)
        self._markup = Markup(backend, extra=self.reasoning_markers or ())
        self._reserved = _RESERVED_VARIABLES | _variable_names(pretrained)
        self._render_text = partial(_apply_template, pretrained)
        self._template, self._tool_template = template, tool_template
        self._traits = {template: probe(partial(self._render_text, template))}
        if tool_template != template:
            self._traits[tool_template] = probe(partial(self._render_text, tool_template), for_tools=True)

    @classmethod
    def load(cls, directory: Path, *, chat_template: str | None = None) -> Self:
        """Read a model's tokenizer; nothing is fetched and no code of the model is run. Takes seconds.

        ``chat_template`` is Jinja source that replaces the model's own.

        :raises CorruptModelError: the files are missing or damaged.
        :raises UnsupportedModelError: no fast tokenizer, no chat template, or one that does not work.
        """
        settings = {
            name: _read_settings(directory / name) for name in ("config.json", "generation_config.json")
        }
        pretrained = _read_pretrained(directory)
        if not hasattr(pretrained, "backend_tokenizer"):
            raise UnsupportedModelError(
                f"The tokenizer in {directory} has no fast form. "
                "Use a model that comes with a tokenizer.json."
            )
        if chat_template is not None:
            pretrained.chat_template = chat_template
        ends = frozenset(token for values in settings.values() for token in _end_tokens(values))
        return cls(pretrained, extra_end_tokens=ends)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The prompt of a dialogue, up to where the assistant's next turn begins.

        All system text stands in one leading message. ``tools`` are functions, flat or nested, with plain
        JSON values. Nothing in messages, tools or ``template_kwargs`` is read as markup.

        :raises InvalidRequestError: the template refuses the dialogue, or a variable may not be set.
        """
        variables = dict(template_kwargs or {})
        self._refuse_reserved(variables)
        sentinel = new_sentinel(repr((messages, tools, variables)))
        template = self._tool_template if tools else self._template
        traits = self._traits[template]
        notation = Notation(traits, self._markup, sentinel)
        try:
            turns = notation.messages(arrange(messages, traits))
            text = self._render_text(
                template, turns, notation.tools(tools) or None, notation.variables(variables)
            )
        except Exception as error:  # a template is somebody's program and may raise anything
            raise InvalidRequestError(
                f"The model's chat template refuses this conversation: {one_line(error, without=sentinel)}."
            ) from None
        tokens = tuple(self._markup.encode(text, sentinel))
        if not tokens:
            raise InvalidRequestError("The model's chat template renders this conversation to nothing.")
        return RenderedPrompt(tokens, opens_reasoning=self._ends_with_reasoning_marker(text))

    def detokenizer(self) -> StreamingDetokenizer:
        """A fresh detokenizer for one sequence, to be used by one thread at a time."""
        if self._token_bytes is not None:
            return BytesDetokenizer(self._token_bytes)
        return WindowDetokenizer(self._decode_whole)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a sequence, special tokens included: exactly what a detokenizer yields for it."""
        detokenizer = self.detokenizer()
        return "".join([*map(detokenizer.feed, tokens), detokenizer.finish()])

    def encode_text(self, text: str) -> list[int]:
        """Token ids of ``text`` alone; what looks like a marker in it is text."""
        return self._markup.encode_text(text)

    def encode_markup(self, text: str) -> list[int]:
        """Token ids of ``text`` in which markers are markers, as in a rendered prompt."""
        return self._markup.encode(text, new_sentinel(text))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token's text, which may be part of a character; empty for an unknown id."""
        if self._token_bytes is not None:
            return self._token_bytes[token]
        return self._decode_whole([token]).encode()

    def token_text(self, token: int) -> str:
        """The text of one token, U+FFFD for partial characters; empty for an unknown id."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def _decode_whole(self, tokens: Sequence[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=False)

    def _ends_with_reasoning_marker(self, text: str) -> bool:
        return self.reasoning_markers is not None and text.rstrip().endswith(self.reasoning_markers[0])

    def _refuse_reserved(self, variables: Mapping[str, Any]) -> None:
        for name in variables:
            if name in self._reserved:
                raise InvalidRequestError(
                    f"'{name}' cannot be set in chat_template_kwargs: the server sets it. Leave it out.",
                    param="chat_template_kwargs",
                )


def _read_pretrained(directory: Path) -> Any:
    # transformers warns that it has no PyTorch, which it has no use for here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with import_lock:
        from transformers import AutoTokenizer  # takes seconds and is of no use before a model is loaded

    try:
        with _warnings_kept_back():
            return AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # the libraries underneath raise bare exceptions
        if "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"The tokenizer in {directory} is a program of its own, which is not run. "
                "Use a model that comes with a tokenizer.json."
            ) from None
        if not (directory / "tokenizer.json").exists():
            raise CorruptModelError(f"{directory} has no tokenizer.json. Download the model again.") from None
        raise CorruptModelError(
            f"The tokenizer in {directory} cannot be read: {one_line(error)}. Download the model again."
        ) from None


@contextmanager
def _warnings_kept_back() -> Iterator[None]:
    """transformers warns of model types it does not know; whether the engine does, the engine will say."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CorruptModelError(
            f"{path} cannot be read: {one_line(error)}. Download the model again."
        ) from None


def _end_tokens(settings: Mapping[str, Any]) -> set[int]:
    """``eos_token_id`` of a model's settings, a number or a list; models of several parts nest it."""
    nested = settings.get("text_config")
    named = settings.get("eos_token_id")
    tokens = named if isinstance(named, list) else [named]
    ends = {token for token in tokens if type(token) is int}
    return ends | (_end_tokens(nested) if isinstance(nested, dict) else set())


def _turn_ends(backend: Tokenizer, eos_token: int | None) -> frozenset[int]:
    ends = {
        token
        for token, added in backend.get_added_tokens_decoder().items()
        if added.special and added.content in _TURN_ENDS
    }
    return frozenset(ends if eos_token is None else ends | {eos_token})


def _reasoning_markers(vocabulary: Mapping[str, int], template: str) -> tuple[str, str] | None:
    for opening, closing, tokens in _REASONING_MARKERS:
        if all(token in vocabulary for token in tokens) or (opening in template and closing in template):
            return opening, closing
    return None


def _templates(pretrained: Any) -> tuple[str, str]:
    """The template of dialogues without tools and that of dialogues with tools, mostly one and the same."""
    try:
        return pretrained.get_chat_template(), pretrained.get_chat_template(tools=[])
    except ValueError:  # there is none, or there are several and none is the default
        raise UnsupportedModelError(
            f"The model in {pretrained.name_or_path} has no chat template, or no default among several. "
            "Pass one with --chat-template-file."
        ) from None


def _variable_names(pretrained: Any) -> frozenset[str]:
    """Parameters of the library's rendering function and variables that hold special tokens."""
    parameters = inspect.signature(pretrained.apply_chat_template).parameters
    return frozenset({*parameters, *pretrained.SPECIAL_TOKENS_ATTRIBUTES, *pretrained.special_tokens_map})


def _apply_template(
    pretrained: Any,
    template: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: Mapping[str, Any],
) -> str:
    """Render in the library's sandbox; raises whatever the template raises."""
    text: str = pretrained.apply_chat_template(
        messages,
        tools=tools,
        chat_template=template,
        add_generation_prompt=True,
        tokenize=False,
        **variables,
    )
    return text
