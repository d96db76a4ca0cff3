"""From the name that a user gave to a directory that mlx-lm can load."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from mlxcel_trio.engine.models.cache import CacheEntry, Report, find, provide, size_in_words
from mlxcel_trio.engine.models.demo import DEMO_NAME, provide_demo
from mlxcel_trio.engine.models.directory import check_model_directory
from mlxcel_trio.engine.models.gguf import CONVERTER_VERSION, open_gguf, plan_conversion
from mlxcel_trio.engine.models.hub import fetch_repository
from mlxcel_trio.errors import ModelNotFoundError

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ACCEPTED = (
    "name an mlx-lm directory, a .gguf file of the llama architecture, "
    f"a hub repository (org/name), or {DEMO_NAME}"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that is on the disk and complete.

    ``name`` is what the user gave (the demo's name if nothing); ``canonical`` its last component
    without ``.gguf``; ``aliases`` every name that requests may use for it, ``canonical`` first.
    """

    directory: Path
    name: str
    canonical: str
    aliases: tuple[str, ...]


def resolve_model(name: str | None, *, cache_dir: Path, report: Report) -> ModelSource:
    """Find, fetch and convert the model called ``name``; ``None`` is the demo model.

    An existing path comes first, then the demo's name, then a hub repository. ``report`` receives a
    line at each step that may take long. Blocks, for minutes if it has to fetch: call it from a worker
    thread or before the event loop. ``KeyboardInterrupt`` leaves nothing half-made in ``cache_dir``.

    Raises ``ModelNotFoundError``, ``DownloadError``, ``CorruptModelError`` or ``UnsupportedModelError``.
    """
    if name is None or (name.casefold() == DEMO_NAME.casefold() and _existing_path(name) is None):
        return _source(provide_demo(cache_dir, report), DEMO_NAME)
    path = _existing_path(name)
    if path is not None and not path.is_dir():
        return _source(_provide_gguf(path, cache_dir, report), name)
    if path is not None:
        directory = path
    elif _REPO_ID.fullmatch(name) and not name.lower().endswith(".gguf"):
        directory = fetch_repository(name, report)
    else:
        raise ModelNotFoundError(f"there is no model {name[:200]!r}: {_ACCEPTED}")
    check_model_directory(directory)
    return _source(directory, name)


def _existing_path(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # No path on this system: too long, with a NUL, or in an unknown user's home.
        return None


def _source(directory: Path, name: str) -> ModelSource:
    last = Path(name).name or Path(name).resolve().name
    canonical = last[: -len(".gguf")] if last.lower().endswith(".gguf") else last
    return ModelSource(directory.absolute(), name, canonical, tuple(dict.fromkeys((canonical, name, last))))


def _provide_gguf(path: Path, cache_dir: Path, report: Report) -> Path:
    """The converted form of a GGUF file, converted now unless the cache has it.

    The key is path, size and modification time: hashing the content would read gigabytes at every
    start, and like ``make`` it errs only for a file replaced by one of equal size and time. A file that
    changed replaces its earlier conversion.
    """
    real = path.resolve()
    status = real.stat()
    place = hashlib.sha256(bytes(real)).hexdigest()[:12]
    state = f"{status.st_size:x}-{status.st_mtime_ns:x}-{CONVERTER_VERSION}"
    entry = CacheEntry(f"{real.stem[:64]}-{place}", state)
    if (ready := find(cache_dir, entry)) is not None:
        return ready
    with open_gguf(path) as file:
        conversion = plan_conversion(file)
        report(f"Converting {path} ({size_in_words(status.st_size)})")
        return provide(cache_dir, entry, conversion.write, needed_bytes=conversion.nbytes, report=report)
