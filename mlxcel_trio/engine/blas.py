"""A fast BLAS for MLX's CPU backend on Linux.

The mlx-cpu wheel is linked to the reference BLAS, which is tens of times slower than OpenBLAS. Symbols
that are global before ``mlx.core`` is imported win over the wheel's own, so OpenBLAS is loaded first, if
it can be found. Builds older than the processor may compute wrong results or crash, so every candidate is
tried in a short process of its own before it enters this one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from mlxcel_trio.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

OVERRIDE = "MLXCEL_OPENBLAS"
"""Environment variable: the OpenBLAS library to load; empty means none."""

_PROBE = Path(__file__).with_name("blas_probe.py")
_PROBE_TIMEOUT_SECONDS = 10.0  # it takes 0.2; a loaded machine may need a while to start Python
_FAST_GFLOPS = 10.0  # the reference BLAS reaches 2 to 4
_KERNELS = "OPENBLAS_CORETYPE"
_COLUMN_MAJOR_KERNELS = ("Haswell", "Zen")
_SYSTEM_DIRECTORIES = ("/usr/lib64", "/usr/lib", "/usr/local/lib")
_INSTALL = {
    "apt-get": "apt-get install libopenblas0-pthread",
    "dnf": "dnf install openblas-threads",
    "pacman": "pacman -S openblas",
    "zypper": "zypper install libopenblas_pthreads0",
}


class BlasReport(Struct, frozen=True):
    """Which BLAS does the matrix products. ``note`` is one line that tells the user what to do.

    ``column_major``: it is faster with weights ``[out, in]`` that are stored column by column.
    """

    name: str
    slow: bool = False
    note: str | None = None
    column_major: bool = False


class Probe(NamedTuple):
    """What MLX with some BLAS does: right results, and at which speed."""

    right: bool
    gflops: float


def load_openblas() -> BlasReport:
    """Load the first OpenBLAS that computes right results on this processor.

    To be called before the first ``import mlx.core``, where that uses the CPU. Takes 0.2 s a candidate.
    ``OPENBLAS_CORETYPE`` is respected when set; when it is not and a library fails, the library is tried
    once more with its well-worn Haswell kernels.

    :raises ConfigurationError: ``MLXCEL_OPENBLAS`` names a file that does not exist.
    """
    libraries = _libraries()
    for library in libraries:
        for settings in _kernel_choices():
            outcome = probe(library, settings)
            if outcome is not None and outcome.right:
                os.environ.update(settings)
                return _load(library)
    return _stock_report(libraries)


def probe(library: str | None, settings: dict[str, str] | None = None) -> Probe | None:
    """Try MLX with ``library`` (``None``: with the BLAS it was built with) in a process of its own.

    ``None`` when that process crashes, hangs or cannot import MLX.
    """
    command = [sys.executable, "-P", str(_PROBE), *([library] if library else [])]
    try:
        answer = subprocess.run(  # noqa: S603
            command,
            env={**os.environ, **(settings or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=True,
        ).stdout.split()
        return Probe(answer[0] == "right", float(answer[1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _stock_report(rejected: list[str]) -> BlasReport:
    outcome = probe(None)
    if outcome is None or outcome.gflops >= _FAST_GFLOPS:
        return BlasReport("as built into MLX")
    if rejected:
        note = (
            f"{rejected[0]} computes wrong results on this processor or cannot be loaded, and MLX's own BLAS "
            f"is ten times slower: install a newer OpenBLAS or name one in {OVERRIDE}"
        )
    else:
        note = f"MLX runs ten times faster on this processor with OpenBLAS: {_install_command()}"
    return BlasReport("reference BLAS", slow=True, note=note)


def _load(library: str) -> BlasReport:
    """Load ``library`` into this process for good."""
    loaded = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    try:
        describe, kernels = loaded.openblas_get_config, loaded.openblas_get_corename
    except AttributeError:  # another BLAS, named by the user
        return BlasReport(Path(library).name)
    describe.restype = kernels.restype = ctypes.c_char_p
    version = " ".join(describe().decode().split()[:2])
    core = kernels().decode()
    return BlasReport(f"{version} ({core})", column_major=core in _COLUMN_MAJOR_KERNELS)


def _kernel_choices() -> list[dict[str, str]]:
    if _KERNELS in os.environ or platform.machine() != "x86_64":
        return [{}]
    return [{}, {_KERNELS: "Haswell"}]


def _libraries() -> list[str]:
    override = os.environ.get(OVERRIDE)
    if override is None:
        return _installed_libraries()
    if override and not Path(override).is_file():
        raise ConfigurationError(f"{OVERRIDE} names {override!r}, which is not a file")
    return [override] if override else []


def _installed_libraries() -> list[str]:
    if found := next(_usual_places(), None):
        return [str(found)]
    by_linker = ctypes.util.find_library("openblas")
    return [by_linker] if by_linker else []


def _usual_places() -> Iterator[Path]:
    """Existing libraries, those with threads first: a plain name may be the serial build (Fedora)."""
    system = Path("/usr/lib", f"{platform.machine()}-linux-gnu")
    directories = (
        Path(sys.prefix, "lib"),
        system,
        Path("/usr/lib64"),
        Path("/usr/lib"),
        Path("/usr/local/lib"),
    )
    names = ("openblas-pthread/libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so.0", "libopenblas.so")
    for directory in directories:
        for name in names:
            if (library := Path(directory, name)).is_file():
                yield library


def _install_command() -> str:
    for tool, command in _INSTALL.items():
        if shutil.which(tool):
            return command
    return "install it with the system's package manager"
