"""Flags and variables declared on the fields of a struct, and the parser and table made from them.

A field ``ctx_size: Annotated[int | None, Option(...)] = None`` is the flag ``--ctx-size`` and the variable
``MLXCEL_CTX_SIZE``, unless its option names others. The flag beats the variable, the variable the default.

A field whose default is a tuple is repeatable: its flag may be given several times, its variable holds a
comma separated list, and flags replace the variable's list. A variable that is set but empty is a bad
value, as an empty flag is: an unset ``$KEY`` in a start script must not open the server.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import msgspec
from msgspec import Struct

from mlxcel_trio.errors import ConfigurationError

AnyStruct = TypeVar("AnyStruct", bound=Struct)


class Kind(Struct, frozen=True):
    """The values that an option takes.

    ``parse`` turns text into a value and raises ``ValueError`` when it cannot; ``accepts`` decides on values.
    ``expectation`` completes "must be ...".
    """

    metavar: str
    expectation: str
    parse: Callable[[str], Any]
    accepts: Callable[[Any], bool]


def whole_number(minimum: int, maximum: int | None = None) -> Kind:
    """Integers from ``minimum`` to ``maximum``, both included."""

    def accepts(value: Any) -> bool:
        return type(value) is int and minimum <= value and (maximum is None or value <= maximum)

    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return Kind("N", f"a whole number {limits}", int, accepts)


def number(minimum: float, maximum: float = math.inf, *, above: bool = False) -> Kind:
    """Finite numbers from ``minimum`` to ``maximum``; ``above`` leaves ``minimum`` itself out."""

    def accepts(value: Any) -> bool:
        return type(value) in (int, float) and math.isfinite(value) and fits(value)

    def fits(value: float) -> bool:
        return (minimum < value if above else minimum <= value) and value <= maximum

    limits = f"above {minimum:g}" if above else f"of at least {minimum:g}"
    if maximum < math.inf:
        limits = f"{limits} and at most {maximum:g}"
    return Kind("X", f"a finite number {limits}", float, accepts)


def one_of(literal: Any) -> Kind:
    """The strings of a ``Literal``."""
    choices = get_args(literal)
    return Kind(f"{{{','.join(choices)}}}", f"one of {', '.join(choices)}", str, choices.__contains__)


def text(metavar: str, expectation: str = "a text that is not empty", pattern: str = r"(?s:.*\S.*)") -> Kind:
    """Strings that match ``pattern`` as a whole."""

    def accepts(value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(pattern, value) is not None

    return Kind(metavar, expectation, str, accepts)


def file_path() -> Kind:
    """Paths; whether there is a file is for the reader to find out."""

    def parse(name: str) -> Path:
        if not name:
            raise ValueError(name)
        return Path(name)

    return Kind("FILE", "the path of a file", parse, lambda value: isinstance(value, Path))


class Option(Struct, frozen=True):
    """How one setting is given and what it means.

    ``when_unset`` says what a default of ``None`` or of no values stands for. A ``secret`` value never
    appears in a message or in the representation of the settings.
    """

    kind: Kind
    help: str
    unit: str | None = None
    when_unset: str | None = None
    flag: str | None = None
    variable: str | None = None
    secret: bool = False


class Setting(Struct, frozen=True):
    """A field of a settings struct together with its option."""

    field: str
    option: Option
    default: Any

    @property
    def flag(self) -> str:
        return self.option.flag or "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        return self.option.variable or "MLXCEL_" + self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def repeatable(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def default_text(self) -> str:
        if self.required:
            return "required"
        return self.option.when_unset or f"{self.default:{'g' if type(self.default) is float else ''}}"

    @property
    def meaning(self) -> str:
        return self.option.help + (" Repeatable." if self.repeatable else "")

    def check(self, value: Any, *, source: str) -> None:
        """:raises ConfigurationError: the field cannot hold ``value``; the message names ``source``."""
        if self.repeatable and not isinstance(value, tuple):
            raise ConfigurationError(f"{source} must be a tuple, not {type(value).__name__}.")
        for element in value if self.repeatable else (value,):
            if not (self.option.kind.accepts(element) or (element is None and self.default is None)):
                raise self._refusal(element, source)

    def read_flags(self, given: Sequence[Any]) -> Any:
        """The value of all the texts that came with the flag; the last one counts unless it is repeatable.

        :raises ConfigurationError: a text is no value; the message names the flag.
        """
        # Before Python 3.13 argparse makes an empty list of the value in "--flag=--".
        texts = ["--" if element == [] else element for element in given]
        if self.repeatable:
            return tuple(self._read_one(element, self.flag) for element in texts)
        return self._read_one(texts[-1], self.flag)

    def read_variable(self, given: str) -> Any:
        """The value that the variable's content spells.

        :raises ConfigurationError: it spells none; the message names the variable.
        """
        if self.repeatable:
            return tuple(self._read_one(element.strip(), self.variable) for element in given.split(","))
        return self._read_one(given, self.variable)

    def _read_one(self, given: str, source: str) -> Any:
        try:
            value = self.option.kind.parse(given)
        except ValueError:
            raise self._refusal(given, source) from None
        if not self.option.kind.accepts(value):
            raise self._refusal(given, source)
        return value

    def _refusal(self, value: object, source: str) -> ConfigurationError:
        found = "" if self.option.secret else f", not {value!r}"
        return ConfigurationError(f"{source} must be {self.option.kind.expectation}{found}.")


@functools.cache
def settings_of(struct_type: type[Struct]) -> tuple[Setting, ...]:
    """The settings that a struct declares, inherited ones first."""
    return tuple(
        Setting(field.name, argument, field.default)
        for field in msgspec.structs.fields(struct_type)
        for argument in get_args(field.type)
        if isinstance(argument, Option)
    )


def parse_options(
    struct_type: type[AnyStruct],
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    prog: str,
    description: str,
) -> AnyStruct:
    """The struct that flags and variables give.

    ``--help`` prints and raises ``SystemExit(0)``.

    :raises ConfigurationError: an unknown flag, a missing or a bad value; the message names flag or variable.
    """
    flags = vars(_parser(struct_type, prog, description).parse_args(argv))
    values: dict[str, Any] = {}
    for setting in settings_of(struct_type):
        if flags[setting.field] is not None:
            values[setting.field] = setting.read_flags(flags[setting.field])
        elif setting.variable in environ:
            values[setting.field] = setting.read_variable(environ[setting.variable])
        elif setting.required:
            raise ConfigurationError(f"{setting.flag} is required.")
    return struct_type(**values)


def option_table(struct_type: type[Struct]) -> str:
    """A Markdown table: every flag with its default, unit, variable and meaning."""
    rows = ["| Flag | Default | Unit | Variable | Meaning |", "|---|---|---|---|---|"]
    for setting in settings_of(struct_type):
        option = setting.option
        cells = (
            f"`{setting.flag} {option.kind.metavar}`",
            setting.default_text if option.when_unset else f"`{setting.default_text}`",
            option.unit or "",
            f"`{setting.variable}`",
            setting.meaning,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


class CommandParser(argparse.ArgumentParser):
    """A parser that takes flags in full only and raises instead of printing its usage and exiting."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """:raises ConfigurationError: always."""
        raise ConfigurationError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")


def _parser(struct_type: type[Struct], prog: str, description: str) -> CommandParser:
    epilog = "A flag beats its variable. Variables of repeatable flags hold a comma separated list."
    parser = CommandParser(prog, description, epilog)
    for setting in settings_of(struct_type):
        unit = f" {setting.option.unit}" if setting.option.unit and not setting.option.when_unset else ""
        notes = f"default: {setting.default_text}{unit}; {setting.variable}"
        parser.add_argument(
            setting.flag,
            dest=setting.field,
            metavar=setting.option.kind.metavar,
            # Texts are collected here and read by Setting, so that flags and variables fail alike.
            action="append",
            help=f"{setting.meaning} ({notes})".replace("%", "%%"),
        )
    return parser
