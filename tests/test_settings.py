"""Every setting x default, variable, flag, both, bad value; the key file; the table of README.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxcel_trio.errors import ConfigurationError
from mlxcel_trio.options import Option, Setting, option_table, parse_options, settings_of, text, whole_number
from mlxcel_trio.settings import Settings, flag_table, parse_settings, read_api_key_file

ROOT = Path(__file__).parent.parent


class Case(msgspec.Struct, frozen=True):
    """A setting as the specification has it, two texts with their values, and texts that are refused."""

    flag: str
    variable: str
    default: Any
    first: tuple[str, Any]
    second: tuple[str, Any]
    bad: tuple[str, ...]


NOT_WHOLE = ("", "x", "1.5", "1e3", "nan", "None")
NOT_FINITE = ("", "x", "nan", "inf", "-inf", "1e400", "1,5")

CASES = {
    "host": Case("--host", "MLXCEL_HOST", "127.0.0.1", ("0.0.0.0", "0.0.0.0"), ("::1", "::1"), ("", " ")),  # noqa: S104
    "port": Case(
        "--port", "MLXCEL_PORT", 8080, ("0", 0), ("65535", 65535), (*NOT_WHOLE, "-1", "65536", "http")
    ),
    "model": Case("--model", "MLXCEL_MODEL", None, ("/m", "/m"), ("org/name", "org/name"), ("", "  ")),
    "aliases": Case("--alias", "MLXCEL_ALIAS", (), ("a", ("a",)), ("b/c", ("b/c",)), ("", " ")),
    "parallel": Case("--parallel", "MLXCEL_PARALLEL", 8, ("1", 1), ("16", 16), (*NOT_WHOLE, "0", "-1")),
    "max_queue_depth": Case(
        "--max-queue-depth", "MLXCEL_MAX_QUEUE_DEPTH", 128, ("0", 0), ("9", 9), (*NOT_WHOLE, "-1")
    ),
    "ctx_size": Case(
        "--ctx-size", "MLXCEL_CTX_SIZE", None, ("1", 1), ("8192", 8192), (*NOT_WHOLE, "0", "-1")
    ),
    "prefill_chunk_size": Case(
        "--prefill-chunk-size",
        "MLXCEL_PREFILL_CHUNK_SIZE",
        None,
        ("1", 1),
        ("256", 256),
        (*NOT_WHOLE, "0", "-1"),
    ),
    "dtype": Case(
        "--dtype",
        "MLXCEL_DTYPE",
        "auto",
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("", "fp32", "Auto", "auto "),
    ),
    "temperature": Case(
        "--temperature", "MLXCEL_TEMPERATURE", None, ("0", 0.0), ("2", 2.0), (*NOT_FINITE, "-0.1", "2.1")
    ),
    "top_p": Case("--top-p", "MLXCEL_TOP_P", None, ("0.5", 0.5), ("1", 1.0), (*NOT_FINITE, "0", "1.1")),
    "top_k": Case("--top-k", "MLXCEL_TOP_K", None, ("0", 0), ("40", 40), (*NOT_WHOLE, "-1")),
    "min_p": Case("--min-p", "MLXCEL_MIN_P", None, ("0", 0.0), ("1", 1.0), (*NOT_FINITE, "-0.1", "1.1")),
    "seed": Case("--seed", "MLXCEL_SEED", None, ("7", 7), ("-7", -7), (*NOT_WHOLE, str(2**63))),
    "chat_template_file": Case(
        "--chat-template-file",
        "MLXCEL_CHAT_TEMPLATE_FILE",
        None,
        ("/t", Path("/t")),
        ("t.jinja", Path("t.jinja")),
        ("",),
    ),
    "decode_timeout": Case(
        "--decode-timeout",
        "MLXCEL_DECODE_TIMEOUT",
        120.0,
        ("0.1", 0.1),
        ("60", 60.0),
        (*NOT_FINITE, "0", "-1"),
    ),
    "sse_ping_interval": Case(
        "--sse-ping-interval",
        "MLXCEL_SSE_PING_INTERVAL",
        15.0,
        ("0", 0.0),
        ("0.25", 0.25),
        (*NOT_FINITE, "-1"),
    ),
    "responses_store_max_entries": Case(
        "--responses-store-max-entries",
        "LLAMA_ARG_RESPONSES_STORE_MAX_ENTRIES",
        1024,
        ("0", 0),
        ("9", 9),
        (*NOT_WHOLE, "-1"),
    ),
    "responses_store_max_bytes": Case(
        "--responses-store-max-bytes",
        "MLXCEL_RESPONSES_STORE_MAX_BYTES",
        268435456,
        ("0", 0),
        ("4096", 4096),
        (*NOT_WHOLE, "-1", "256MiB"),
    ),
    "responses_store_ttl_secs": Case(
        "--responses-store-ttl-secs",
        "LLAMA_ARG_RESPONSES_STORE_TTL_SECS",
        3600,
        ("0", 0),
        ("60", 60),
        (*NOT_WHOLE, "-1"),
    ),
    "responses_background_max_jobs": Case(
        "--responses-background-max-jobs",
        "MLXCEL_RESPONSES_BACKGROUND_MAX_JOBS",
        64,
        ("0", 0),
        ("9", 9),
        (*NOT_WHOLE, "-1"),
    ),
    "responses_background_ephemeral_ttl_secs": Case(
        "--responses-background-ephemeral-ttl-secs",
        "MLXCEL_RESPONSES_BACKGROUND_EPHEMERAL_TTL_SECS",
        600,
        ("1", 1),
        ("60", 60),
        (*NOT_WHOLE, "0", "-1"),
    ),
    "conversation_store_max_entries": Case(
        "--conversation-store-max-entries",
        "LLAMA_ARG_CONVERSATION_STORE_MAX_ENTRIES",
        256,
        ("0", 0),
        ("9", 9),
        (*NOT_WHOLE, "-1"),
    ),
    "conversation_store_max_bytes": Case(
        "--conversation-store-max-bytes",
        "MLXCEL_CONVERSATION_STORE_MAX_BYTES",
        67108864,
        ("0", 0),
        ("4096", 4096),
        (*NOT_WHOLE, "-1", "64MiB"),
    ),
    "conversation_store_ttl_secs": Case(
        "--conversation-store-ttl-secs",
        "LLAMA_ARG_CONVERSATION_STORE_TTL_SECS",
        3600,
        ("0", 0),
        ("60", 60),
        (*NOT_WHOLE, "-1"),
    ),
    "graceful_timeout": Case(
        "--graceful-timeout", "MLXCEL_GRACEFUL_TIMEOUT", 10.0, ("0", 0.0), ("2.5", 2.5), (*NOT_FINITE, "-1")
    ),
    "api_keys": Case(
        "--api-key", "MLXCEL_API_KEY", (), ("sk-1", ("sk-1",)), ("k=2", ("k=2",)), ("", "a b", "clé", "a\n")
    ),
    "api_key_file": Case(
        "--api-key-file", "MLXCEL_API_KEY_FILE", None, ("/k", Path("/k")), ("k.txt", Path("k.txt")), ("",)
    ),
    "allowed_origins": Case(
        "--allowed-origin",
        "MLXCEL_ALLOWED_ORIGIN",
        (),
        ("https://a.example", ("https://a.example",)),
        ("*", ("*",)),
        ("", "a.example", "https://a.example/", "https://a.example/path", "https://u@a.example", "null"),
    ),
    "max_body_bytes": Case(
        "--max-body-bytes",
        "MLXCEL_MAX_BODY_BYTES",
        16777216,
        ("1", 1),
        ("1024", 1024),
        (*NOT_WHOLE, "0", "16MiB"),
    ),
    "max_connections": Case(
        "--max-connections", "MLXCEL_MAX_CONNECTIONS", 1024, ("1", 1), ("99", 99), (*NOT_WHOLE, "0", "-1")
    ),
    "keep_alive_timeout": Case(
        "--keep-alive-timeout",
        "MLXCEL_KEEP_ALIVE_TIMEOUT",
        5.0,
        ("0.1", 0.1),
        ("60", 60.0),
        (*NOT_FINITE, "0", "-1"),
    ),
    "write_timeout": Case(
        "--write-timeout", "MLXCEL_WRITE_TIMEOUT", 30.0, ("0.1", 0.1), ("60", 60.0), (*NOT_FINITE, "0", "-1")
    ),
    "log_level": Case(
        "--log-level", "MLXCEL_LOG_LEVEL", "info", ("debug", "debug"), ("error", "error"), ("", "INFO", "10")
    ),
    "log_format": Case(
        "--log-format", "MLXCEL_LOG_FORMAT", "console", ("json", "json"), ("console", "console"), ("", "text")
    ),
}

each_setting = pytest.mark.parametrize("field", CASES)
each_bad_text = pytest.mark.parametrize(
    ("field", "given"), [(field, given) for field, case in CASES.items() for given in case.bad]
)


def refusal(argv: list[str], environ: dict[str, str]) -> str:
    """The message with which these flags and variables are refused; it is one line."""
    with pytest.raises(ConfigurationError) as caught:
        parse_settings(argv, environ)
    message = str(caught.value)
    assert message.isprintable()
    return message


def construct(fields: dict[str, Any]) -> Settings:
    """Settings as a program makes them, which no type checker looked at."""
    return Settings(**fields)


def test_the_cases_are_the_settings() -> None:
    assert list(CASES) == [setting.field for setting in settings_of(Settings)]
    assert list(CASES) == list(Settings.__struct_fields__)


@each_setting
def test_flag_and_variable_have_their_names(field: str) -> None:
    setting = next(setting for setting in settings_of(Settings) if setting.field == field)
    assert (setting.flag, setting.variable) == (CASES[field].flag, CASES[field].variable)


@each_setting
def test_default(field: str) -> None:
    assert (
        getattr(parse_settings([], {"HOME": "/root", "MLXCEL_CACHE_DIR": "/c"}), field)
        == CASES[field].default
    )


@each_setting
def test_variable_beats_default(field: str) -> None:
    case = CASES[field]
    for spelt, value in (case.first, case.second):
        assert getattr(parse_settings([], {case.variable: spelt}), field) == value


@each_setting
def test_flag_beats_default(field: str) -> None:
    case = CASES[field]
    for spelt, value in (case.first, case.second):
        for argv in ([case.flag, spelt], [f"{case.flag}={spelt}"]):
            settings = parse_settings(argv, {})
            assert getattr(settings, field) == value
            others = {name for name in CASES if getattr(settings, name) != CASES[name].default}
            assert others <= {field}


@each_setting
def test_flag_beats_variable(field: str) -> None:
    case = CASES[field]
    settings = parse_settings([case.flag, case.first[0]], {case.variable: case.second[0]})
    assert getattr(settings, field) == case.first[1]


@each_setting
def test_flag_beats_a_bad_variable(field: str) -> None:
    case = CASES[field]
    settings = parse_settings([case.flag, case.first[0]], {case.variable: case.bad[0]})
    assert getattr(settings, field) == case.first[1]


@each_bad_text
def test_bad_flag_is_named(field: str, given: str) -> None:
    case = CASES[field]
    assert refusal([f"{case.flag}={given}"], {case.variable: case.first[0]}).startswith(
        f"{case.flag} must be "
    )


@each_bad_text
def test_bad_variable_is_named(field: str, given: str) -> None:
    case = CASES[field]
    # In a list blanks around an element are no part of it.
    if field == "api_keys" and given.strip() != given:
        given = f"{given}b"
    assert refusal([], {case.variable: given}).startswith(f"{case.variable} must be ")


@each_setting
def test_a_flag_without_its_value_is_named(field: str) -> None:
    flag = CASES[field].flag
    assert refusal([flag], {}) == f"{flag}: expected one argument (see mlxcel serve --help)"


@pytest.mark.parametrize(
    "argv", [["--por", "1"], ["--responses-store-max-entrie", "1"], ["-p", "1"], ["model"], ["--", "x"]]
)
def test_unknown_arguments_are_refused(argv: list[str]) -> None:
    assert refusal(argv, {}).startswith("unrecognized arguments: ")


def test_messages_say_what_is_expected() -> None:
    assert refusal(["--port", "http"], {}) == "--port must be a whole number from 0 to 65535, not 'http'."
    assert refusal([], {"MLXCEL_TOP_P": "0"}) == (
        "MLXCEL_TOP_P must be a finite number above 0 and at most 1, not '0'."
    )
    assert refusal(["--log-format", "x"], {}) == "--log-format must be one of console, json, not 'x'."


@pytest.mark.parametrize("setting", [s for s in settings_of(Settings) if s.repeatable], ids=lambda s: s.field)
def test_repeatable(setting: Setting) -> None:
    case = CASES[setting.field]
    both = (*case.first[1], *case.second[1])
    argv = [case.flag, case.first[0], case.flag, case.second[0]]
    assert getattr(parse_settings(argv, {}), setting.field) == both
    listed = {case.variable: f"{case.first[0]} , {case.second[0]}"}
    assert getattr(parse_settings([], listed), setting.field) == both
    # Flags replace the variable's list.
    assert getattr(parse_settings(argv[:2], listed), setting.field) == case.first[1]
    assert case.variable in refusal([], {case.variable: f"{case.first[0]},"})


def test_the_last_of_equal_flags_wins() -> None:
    assert parse_settings(["--port", "1", "--port", "2"], {}).port == 2


@given(st.integers())
def test_port_takes_exactly_the_ports(port: int) -> None:
    if 0 <= port <= 65535:
        assert parse_settings([f"--port={port}"], {}).port == port
    else:
        assert "--port" in refusal([f"--port={port}"], {})


@given(st.sampled_from(list(CASES)), st.text())
@example("aliases", "--")
@example("port", "--")
def test_any_text_is_a_value_or_one_clear_line(field: str, spelt: str) -> None:
    case = CASES[field]
    for source, argv, environ in (
        (case.flag, [f"{case.flag}={spelt}"], {}),
        (case.variable, [], {case.variable: spelt}),
    ):
        try:
            parse_settings(argv, environ)
        except ConfigurationError:
            assert refusal(argv, environ).startswith(f"{source} must be ")


@each_bad_text
def test_construction_checks_what_texts_stand_for(field: str, given: str) -> None:
    setting = next(setting for setting in settings_of(Settings) if setting.field == field)
    try:
        value = setting.option.kind.parse(given)
    except ValueError:
        value = given
    with pytest.raises(ConfigurationError, match=rf"^Settings\.{field} must be "):
        construct({field: (value,) if setting.repeatable else value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("port", True), ("port", "80"), ("port", None), ("top_p", "1"), ("aliases", "a"), ("aliases", ["a"])],
)
def test_construction_refuses_other_types(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Settings\.{field} must be "):
        construct({field: value})


def test_whole_numbers_do_for_durations() -> None:
    assert Settings(graceful_timeout=3).graceful_timeout == 3


@pytest.mark.parametrize("argv", [["--api-key", "sécrét"], ["--api-key", "sec ret"]])
def test_no_message_tells_a_key(argv: list[str]) -> None:
    assert argv[1] not in refusal(argv, {})
    assert argv[1] not in refusal([], {"MLXCEL_API_KEY": argv[1]})


def test_the_representation_tells_no_key() -> None:
    shown = repr(Settings(api_keys=("sk-secret",), port=0))
    assert "sk-secret" not in shown
    assert "api_keys=..., " in shown
    assert "port=0, " in shown
    assert "api_keys=(), " in repr(Settings())


def test_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes("\ufeffone\r\n\n# two was revoked\n three \n".encode())
    settings = read_api_key_file(Settings(api_keys=("zero",), api_key_file=path, port=1))
    assert settings == Settings(api_keys=("zero", "one", "three"), port=1)
    assert read_api_key_file(settings) is settings


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no key"),
        (b"\n# nothing\n", "holds no key"),
        (b"a b\n", "must be visible ASCII"),
        ("good\nclé\n".encode(), "must be visible ASCII"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (None, "No such file"),
    ],
)
def test_bad_key_files_are_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read_api_key_file(Settings(api_key_file=path))
    assert f"--api-key-file '{path}'" in str(caught.value)
    assert "clé" not in str(caught.value)


class MoreSettings(Settings, frozen=True, kw_only=True):
    """What a command with flags of its own does."""

    script: Annotated[str, Option(text("FILE"), "Script to play, 100% of it.")]
    entries: Annotated[int, Option(whole_number(0), "Entries kept.", variable="LLAMA_ARG_ENTRIES")] = 4


def parse_more(argv: list[str], environ: dict[str, str]) -> MoreSettings:
    return parse_options(MoreSettings, argv, environ, prog="more", description="More.")


def test_a_subclass_adds_flags() -> None:
    settings = parse_more(
        ["--script", "s", "--port", "1"], {"LLAMA_ARG_ENTRIES": "7", "MLXCEL_PARALLEL": "2"}
    )
    assert (settings.script, settings.entries, settings.port, settings.parallel) == ("s", 7, 1, 2)
    assert parse_more([], {"MLXCEL_SCRIPT": "t"}).script == "t"


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        ([], {}, "--script is required."),
        (["--script", "s"], {"LLAMA_ARG_ENTRIES": "-1"}, "LLAMA_ARG_ENTRIES must be "),
        (["--script", "s", "--nope"], {}, r"unrecognized arguments: --nope \(see more --help\)"),
    ],
)
def test_a_subclass_fails_like_its_base(argv: list[str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        parse_more(argv, environ)


def test_help_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_more(["--help"], {})
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "100% of it" in shown
    for setting in settings_of(MoreSettings):
        assert setting.flag in shown
        assert setting.variable in shown


def test_table_has_a_row_for_each_setting() -> None:
    rows = option_table(MoreSettings).splitlines()[2:]
    assert len(rows) == len(CASES) + 2
    for setting, row in zip(settings_of(MoreSettings), rows, strict=True):
        flag, default, unit, variable, meaning = (cell.strip() for cell in row.strip("|").split("|"))
        assert flag == f"`{setting.flag} {setting.option.kind.metavar}`"
        assert setting.default_text in default
        assert (unit, variable) == (setting.option.unit or "", f"`{setting.variable}`")
        assert meaning.startswith(setting.option.help)


def test_the_module_prints_the_table() -> None:
    command = [sys.executable, "-m", "mlxcel_trio.settings"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (printed.stdout, printed.stderr) == (flag_table(), "")


def test_readme_holds_the_table() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    _, opened, rest = readme.partition("<!-- flags -->\n")
    table, closed, _ = rest.partition("<!-- /flags -->")
    assert opened
    assert closed
    assert table.strip() == flag_table().strip(), "run: python -m mlxcel_trio.settings"
