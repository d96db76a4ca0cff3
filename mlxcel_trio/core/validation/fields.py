"""The plain fields of a request: numbers, enums, metadata, stop strings, reasoning, template variables."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mlxcel_trio.core.sampling import LogitAdjustments, SamplingDefaults, SamplingParameters
from mlxcel_trio.core.validation.free_form import decode_object, is_null
from mlxcel_trio.core.validation.refusals import check_choice, invalid, shown
from mlxcel_trio.protocol.responses import ReasoningConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcel_trio.protocol.requests import CreateResponse, ReasoningParam

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_LENGTH = 64
MAX_METADATA_VALUE_LENGTH = 512
MAX_STOP_STRINGS = 4
LOGPROBS_INCLUDE = "message.output_text.logprobs"

# Effort has the values of the OpenAI SDK. It is echoed and steers nothing.
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_REASONING_SUMMARIES = ("auto", "concise", "detailed")
_VERBOSITIES = ("low", "medium", "high")


class _Range(Struct, frozen=True):
    """An interval, closed but for an ``open_low`` end. NaN is in none."""

    low: float
    high: float = inf
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.open_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.high == inf:
            return f"at least {self.low}"
        return (
            f"more than {self.low} and at most {self.high}" if self.open_low else f"{self.low} to {self.high}"
        )


_RANGES = {
    "max_output_tokens": _Range(1),
    "max_tool_calls": _Range(1),
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, open_low=True),
    "top_k": _Range(0, 2**31 - 1),
    "min_p": _Range(0, 1),
    "seed": _Range(-(2**63), 2**63 - 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0, 2, open_low=True),
    "top_logprobs": _Range(0, 20),
}
_LOGIT_BIAS_RANGE = _Range(-100, 100)


def check_fields(request: CreateResponse) -> None:
    """Check every plain field that the functions below do not turn into something else.

    :raises InvalidRequestError: a number out of range, an unknown enum value, metadata over its limits.
    """
    for name, accepted in _RANGES.items():
        value = getattr(request, name)
        if value is not None and value not in accepted:
            raise invalid(name, f"{_number(value)} is out of range. Use {accepted}.")
    check_choice("truncation", request.truncation, ("disabled",))
    if request.text is not None:
        check_choice("text.verbosity", request.text.verbosity, _VERBOSITIES)
    _check_logit_bias(request.logit_bias or {})
    check_metadata(request.metadata or {})


def read_sampling(request: CreateResponse, defaults: SamplingDefaults) -> SamplingParameters:
    """What the request asks for, and the defaults where it is silent."""
    return SamplingParameters(
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        top_k=defaults.top_k if request.top_k is None else request.top_k,
        min_p=defaults.min_p if request.min_p is None else request.min_p,
        seed=defaults.seed if request.seed is None else request.seed,
    )


def read_adjustments(request: CreateResponse) -> LogitAdjustments:
    """Penalties and biases, neutral where the request is silent."""
    biases = ((int(token), bias) for token, bias in (request.logit_bias or {}).items())
    return LogitAdjustments(
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=tuple(sorted(biases)),
    )


def wants_logprobs(request: CreateResponse) -> bool:
    """Whether log probabilities are asked for, by ``include`` or by a number of alternatives."""
    return bool(request.top_logprobs) or LOGPROBS_INCLUDE in (request.include or ())


def read_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings, none when absent.

    :raises InvalidRequestError: more than four, or an empty one.
    """
    if isinstance(stop, str):
        if not stop:
            raise invalid("stop", "a stop string may not be empty. Leave the field out to use none.")
        return (stop,)
    strings = tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid("stop", f"{len(strings)} strings are too many. Send at most {MAX_STOP_STRINGS}.")
    for index, string in enumerate(strings):
        if not string:
            raise invalid(f"stop[{index}]", "a stop string may not be empty. Remove it.")
    return strings


def read_reasoning(reasoning: ReasoningParam | None) -> ReasoningConfig | None:
    """The echo of ``reasoning``.

    :raises InvalidRequestError: an unknown effort or summary.
    """
    if reasoning is None:
        return None
    check_choice("reasoning.effort", reasoning.effort, _EFFORTS)
    check_choice("reasoning.summary", reasoning.summary, _REASONING_SUMMARIES)
    return ReasoningConfig(effort=reasoning.effort, summary=reasoning.summary)


def read_template_kwargs(request: CreateResponse) -> dict[str, Any]:
    """Variables for the chat template, none when absent.

    :raises InvalidRequestError: not a JSON object.
    """
    if is_null(request.chat_template_kwargs):
        return {}
    return decode_object(request.chat_template_kwargs, "chat_template_kwargs")


def _number(value: float) -> str:
    # Thousands of digits help nobody.
    text = str(value)
    return text if len(text) <= 24 else f"{text[:8]}... ({len(text)} characters)"


def _check_logit_bias(biases: Mapping[str, float]) -> None:
    for token, bias in biases.items():
        if not (token.isascii() and token.isdecimal()):
            raise invalid("logit_bias", f"the key {shown(token)} is not a token id. Use decimal digits.")
        if bias not in _LOGIT_BIAS_RANGE:
            raise invalid(
                "logit_bias",
                f"the bias {_number(bias)} of token {shown(token)} is out of range. Use {_LOGIT_BIAS_RANGE}.",
            )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Check the number of pairs and the lengths of keys and values.

    :raises InvalidRequestError: a limit is exceeded.
    """
    if len(metadata) > MAX_METADATA_PAIRS:
        raise invalid("metadata", f"{len(metadata)} pairs are too many. Send at most {MAX_METADATA_PAIRS}.")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_LENGTH:
            raise invalid(
                "metadata",
                f"the key {shown(key)} has {len(key)} characters. Use at most {MAX_METADATA_KEY_LENGTH}.",
            )
        if len(value) > MAX_METADATA_VALUE_LENGTH:
            raise invalid(
                "metadata",
                f"the value of {shown(key)} has {len(value)} characters. "
                f"Use at most {MAX_METADATA_VALUE_LENGTH}.",
            )
