"""The server's settings: one struct, from which flags, variables, ``--help`` and the README table come.

How a field becomes a flag and a variable is told in :mod:`mlxcel_trio.options`.
``python -m mlxcel_trio.settings`` prints the table that README.md holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from msgspec import Struct

from mlxcel_trio.errors import ConfigurationError
from mlxcel_trio.options import (
    Option,
    file_path,
    number,
    one_of,
    option_table,
    parse_options,
    settings_of,
    text,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be configured. Values are checked on construction, wherever they come from.

    :raises ConfigurationError: a value is out of range or of the wrong type; the message names the field.
    """

    host: Annotated[str, Option(text("HOST"), "Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(whole_number(0, 65535), "Port to listen on; 0 picks a free one.")] = 8080
    model: Annotated[
        str | None,
        Option(
            text("MODEL"),
            "Model to serve: an mlx-lm directory, a GGUF file or a hub repo id.",
            when_unset="the demo model",
        ),
    ] = None
    aliases: Annotated[
        tuple[str, ...],
        Option(
            text("NAME"),
            "Further name that requests may use for the model; responses carry the first.",
            when_unset="none",
            flag="--alias",
        ),
    ] = ()
    parallel: Annotated[
        int, Option(whole_number(1), "Responses generated at once; further ones wait.", unit="responses")
    ] = 8
    max_queue_depth: Annotated[
        int,
        Option(
            whole_number(0),
            "Responses that may wait for a slot; beyond that the answer is 503.",
            unit="responses",
        ),
    ] = 128
    ctx_size: Annotated[
        int | None,
        Option(
            whole_number(1),
            "Context window, prompt and answer together.",
            unit="tokens",
            when_unset="the model's own",
        ),
    ] = None
    prefill_chunk_size: Annotated[
        int | None,
        Option(
            whole_number(1),
            "Prompt tokens of a response that are processed at once.",
            unit="tokens",
            when_unset="512, on CPU 128",
        ),
    ] = None
    dtype: Annotated[
        Dtype, Option(one_of(Dtype), "Type of weights and arithmetic; auto picks what the device is good at.")
    ] = "auto"
    temperature: Annotated[
        float | None,
        Option(
            number(0, 2),
            "Default sampling temperature; 0 is greedy.",
            when_unset="the model's generation_config.json, else 1",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Option(
            number(0, 1, above=True),
            "Default share of probability kept when sampling.",
            when_unset="the model's generation_config.json, else 1",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Option(
            whole_number(0),
            "Default number of likeliest tokens kept when sampling; 0 keeps all.",
            unit="tokens",
            when_unset="the model's generation_config.json, else 0",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        Option(
            number(0, 1),
            "Default least probability of a token, relative to the likeliest one.",
            when_unset="the model's generation_config.json, else 0",
        ),
    ] = None
    seed: Annotated[
        int | None,
        Option(
            whole_number(-(2**63), 2**63 - 1),
            "Default sampling seed; the same request then has the same answer.",
            when_unset="every request draws anew",
        ),
    ] = None
    chat_template_file: Annotated[
        Path | None,
        Option(
            file_path(),
            "File with a Jinja chat template to use in place of the model's own.",
            when_unset="the model's own",
        ),
    ] = None
    decode_timeout: Annotated[
        float,
        Option(
            number(0, above=True),
            "Time after which a step of the model counts as hanging and its responses as failed.",
            unit="seconds",
        ),
    ] = 120.0
    sse_ping_interval: Annotated[
        float,
        Option(
            number(0),
            "Silence after which a stream repeats response.in_progress; 0 turns this off.",
            unit="seconds",
        ),
    ] = 15.0
    responses_store_max_entries: Annotated[
        int,
        Option(
            whole_number(0),
            "Responses kept for later requests; 0 keeps none and refuses what needs them.",
            unit="responses",
            variable="LLAMA_ARG_RESPONSES_STORE_MAX_ENTRIES",
        ),
    ] = 1024
    responses_store_max_bytes: Annotated[
        int,
        Option(
            whole_number(0),
            "Approximate memory for kept responses; with 0 each is dropped at once.",
            unit="bytes",
        ),
    ] = 256 * 1024 * 1024
    responses_store_ttl_secs: Annotated[
        int,
        Option(
            whole_number(0),
            "Age at which a kept response is dropped; 0 is none.",
            unit="seconds",
            variable="LLAMA_ARG_RESPONSES_STORE_TTL_SECS",
        ),
    ] = 3600
    responses_background_max_jobs: Annotated[
        int,
        Option(
            whole_number(0),
            "Background responses that may be unfinished at once; 0 turns background mode off.",
            unit="responses",
        ),
    ] = 64
    responses_background_ephemeral_ttl_secs: Annotated[
        int,
        Option(
            whole_number(1),
            "Time for which a finished background response with store: false can be polled.",
            unit="seconds",
        ),
    ] = 600
    conversation_store_max_entries: Annotated[
        int,
        Option(
            whole_number(0),
            "Conversations kept; 0 keeps none and refuses what needs them.",
            unit="conversations",
            variable="LLAMA_ARG_CONVERSATION_STORE_MAX_ENTRIES",
        ),
    ] = 256
    conversation_store_max_bytes: Annotated[
        int,
        Option(
            whole_number(0),
            "Approximate memory for kept conversations; with 0 each is dropped at once.",
            unit="bytes",
        ),
    ] = 64 * 1024 * 1024
    conversation_store_ttl_secs: Annotated[
        int,
        Option(
            whole_number(0),
            "Time after its last turn at which a conversation is dropped; 0 is none.",
            unit="seconds",
            variable="LLAMA_ARG_CONVERSATION_STORE_TTL_SECS",
        ),
    ] = 3600
    graceful_timeout: Annotated[
        float,
        Option(
            number(0), "Time that running responses get to finish after SIGINT or SIGTERM.", unit="seconds"
        ),
    ] = 10.0
    api_keys: Annotated[
        tuple[str, ...],
        Option(
            text("KEY", "visible ASCII characters without spaces", r"[\x21-\x7e]+"),
            "Key that requests must carry one of, as a bearer token.",
            when_unset="none: no key is asked for",
            flag="--api-key",
            secret=True,
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        Option(
            file_path(),
            "File with further keys, one on a line; empty lines and lines that start with # are left out.",
            when_unset="none",
        ),
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...],
        Option(
            text(
                "ORIGIN",
                "an origin such as https://example.org, without a path, or *",
                r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@,]+",
            ),
            "Origin whose browser pages may call the server; * allows all.",
            when_unset="loopback origins",
            flag="--allowed-origin",
        ),
    ] = ()
    max_body_bytes: Annotated[
        int, Option(whole_number(1), "Largest request body, as sent and decompressed.", unit="bytes")
    ] = 16 * 1024 * 1024
    max_connections: Annotated[
        int, Option(whole_number(1), "Connections open at once; further ones wait.", unit="connections")
    ] = 1024
    keep_alive_timeout: Annotated[
        float,
        Option(
            number(0, above=True),
            "Time that a connection may be idle between two requests.",
            unit="seconds",
        ),
    ] = 5.0
    write_timeout: Annotated[
        float,
        Option(
            number(0, above=True),
            "Time after which a client that does not read is disconnected.",
            unit="seconds",
        ),
    ] = 30.0
    log_level: Annotated[LogLevel, Option(one_of(LogLevel), "Least severity that is logged.")] = "info"
    log_format: Annotated[
        LogFormat, Option(one_of(LogFormat), "Log lines for people or as JSON objects, on stderr.")
    ] = "console"

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)):
            setting.check(getattr(self, setting.field), source=f"{type(self).__name__}.{setting.field}")

    def __repr__(self) -> str:
        fields = []
        for setting in settings_of(type(self)):
            value = getattr(self, setting.field)
            fields.append(f"{setting.field}={'...' if setting.option.secret and value else repr(value)}")
        return f"{type(self).__name__}({', '.join(fields)})"


AnySettings = TypeVar("AnySettings", bound=Settings)


def parse_settings(
    argv: Sequence[str], environ: Mapping[str, str], *, prog: str = "mlxcel serve"
) -> Settings:
    """The settings that flags and variables give.

    A command with flags of its own calls :func:`~mlxcel_trio.options.parse_options` with a subclass of
    :class:`Settings` that adds their fields. ``--help`` prints and raises ``SystemExit(0)``.

    :raises ConfigurationError: an unknown flag or a bad value; the message names flag or variable.
    """
    return parse_options(
        Settings, argv, environ, prog=prog, description="Serve the Responses API on a local model."
    )


def read_api_key_file(settings: AnySettings) -> AnySettings:
    """The same settings with the keys of ``api_key_file`` in ``api_keys``; unchanged without such a file.

    :raises ConfigurationError: the file cannot be read, holds no key or a malformed one.
    """
    path = settings.api_key_file
    if path is None:
        return settings
    source = f"--api-key-file {str(path)!r}"
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{source} cannot be read: {reason}.") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigurationError(f"{source} holds no key. Put one on each line.")
    setting = next(setting for setting in settings_of(Settings) if setting.field == "api_keys")
    setting.check(keys, source=f"Every line of {source}")
    return msgspec.structs.replace(settings, api_keys=settings.api_keys + keys, api_key_file=None)


def flag_table() -> str:
    """The Markdown table of README.md."""
    return option_table(Settings)


if __name__ == "__main__":
    print(flag_table(), end="")  # noqa: T201
