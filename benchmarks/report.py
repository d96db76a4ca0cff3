"""What every benchmark writes: where it ran, tables for people, and all figures as JSON."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS_DIRECTORY = Path(__file__).with_name("results")

_DISTRIBUTIONS = (
    "mlxcel-trio", "mlx", "mlx-cpu", "mlx-lm", "trio", "hypercorn", "quart", "quart-trio", "h11", "xllamacpp",
)  # fmt: skip

Loads = tuple[float, float, float]
"""Runnable processes, averaged over 1, 5 and 15 minutes."""


class Machine(Struct, frozen=True):
    """The hardware. ``cores`` are those that this process may use."""

    cpu: str
    cores: int
    memory_gib: float
    system: str


class Surroundings(Struct, frozen=True, kw_only=True):
    """Where and on what a benchmark ran. ``started`` is local time in ISO 8601."""

    started: str
    machine: Machine
    versions: dict[str, str]
    commit: str
    load_before: Loads


class Table(Struct, frozen=True):
    """Cells are text already; the first column is aligned left, the others right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table under its title."""
        rule = "|---|" + "---:|" * (len(self.header) - 1)
        lines = [_row(self.header), rule, *map(_row, self.rows)]
        return f"## {self.title}\n\n" + "\n".join(lines) + "\n"


def look_around() -> Surroundings:
    """To be called before the first measurement."""
    return Surroundings(
        started=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        machine=Machine(_cpu_name(), usable_cores(), _memory_gib(), platform.platform()),
        versions={"python": platform.python_version(), **_versions()},
        commit=_commit(),
        load_before=os.getloadavg(),
    )


def write_report(
    name: str,
    surroundings: Surroundings,
    *,
    settings: dict[str, Any],
    tables: Iterable[Table],
    figures: dict[str, Any],
    directory: Path,
) -> list[Path]:
    """Write ``<name>-<date>.md`` with the tables and ``.json`` with everything; to be called at the end.

    ``figures`` may hold structs. A report of the same name and day is replaced. Returns the paths.
    """
    load_after = os.getloadavg()
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{name}-{surroundings.started[:10]}"
    document = {
        "benchmark": name,
        **msgspec.to_builtins(surroundings),
        "load_after": load_after,
        "settings": settings,
        **figures,
    }
    as_json = stem.with_name(stem.name + ".json")
    as_json.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    as_markdown = stem.with_name(stem.name + ".md")
    head = _head(name, surroundings, load_after, settings)
    as_markdown.write_text("\n".join([head, *(table.markdown() for table in tables)]), encoding="utf-8")
    return [as_markdown, as_json]


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _head(name: str, around: Surroundings, load_after: Loads, settings: dict[str, Any]) -> str:
    machine = around.machine
    versions = ", ".join(f"{package} {version}" for package, version in around.versions.items())
    return f"""\
# {name}, {around.started}

- Machine: {machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}
- Versions: {versions}; commit {around.commit}
- Load average before: {_loads(around.load_before)}; after: {_loads(load_after)}
- Settings: {", ".join(f"{key} {_plain(value)}" for key, value in settings.items())}
"""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _loads(loads: Loads) -> str:
    return " ".join(f"{load:.2f}" for load in loads)


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # an option, or this project run from its tree
    return found


def _commit() -> str:
    """The commit of the working tree, marked when files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"
