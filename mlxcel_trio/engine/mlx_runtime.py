"""The one door to MLX: everything in this package that needs it calls :func:`import_mlx` first.

Importing is not innocent: OpenBLAS must be loaded before MLX, MLX without a backend fails with a loader
error, two backends in one environment overwrite each other's files, and mlx-lm changes the limits of the
process.
"""

from __future__ import annotations

import functools
import resource
import sys
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from mlxcel_trio.engine.blas import BlasReport, load_openblas
from mlxcel_trio.engine.import_lock import import_lock
from mlxcel_trio.errors import ConfigurationError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINUX_BACKENDS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")
_EXTRAS = "pip install 'mlxcel-trio[cpu]' (or [cuda12], [cuda13])"


def import_mlx() -> BlasReport:
    """Import MLX and mlx-lm, in the order that makes them fast. Takes seconds the first time.

    May be called from any thread, any number of times.

    :raises ConfigurationError: no MLX backend is installed, or more than one.
    """
    with import_lock:
        return _import_once()


@functools.cache
def _import_once() -> BlasReport:
    backends = installed_backends()
    if len(backends) > 1:
        raise ConfigurationError(
            f"{' and '.join(backends)} are both installed and overwrite each other: "
            f"use a fresh environment with one of them, {_EXTRAS}"
        )
    report = _choose_blas(backends)
    _import_both()
    return report


def installed_backends() -> list[str]:
    """The MLX backends installed in this environment. Off Linux there is no choice, and the list is empty."""
    return [name for name in _LINUX_BACKENDS if _is_installed(name)] if sys.platform == "linux" else []


def on_cpu() -> bool:
    """Whether MLX computes on the CPU."""
    import mlx.core as mx

    return mx.default_device().type == mx.DeviceType.cpu


def device_name() -> str:
    """``cpu`` or ``gpu``, and which."""
    import mlx.core as mx

    return f"{mx.default_device().type.name} ({mx.device_info().get('device_name', 'unknown')})"


def free_unused_memory() -> None:
    """Give memory that no array uses any more back to the system."""
    import mlx.core as mx

    mx.clear_cache()


class WiredMemory:
    """Keeps what Metal recommends of a GPU's memory from being swapped out, until it is released."""

    def __init__(self) -> None:
        import mlx.core as mx

        recommended = mx.device_info().get("max_recommended_working_set_size")
        self._limit_before = None if recommended is None else mx.set_wired_limit(int(recommended))

    def release(self) -> None:
        """Wait for the device, which may still compute a step, and set the limit that was there before."""
        import mlx.core as mx

        if self._limit_before is not None:
            mx.synchronize()
            mx.set_wired_limit(self._limit_before)
            self._limit_before = None


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _choose_blas(backends: list[str]) -> BlasReport:
    if sys.platform != "linux" or any("cuda" in name for name in backends):
        return BlasReport("as built into MLX")
    if "mlx.core" in sys.modules:
        return BlasReport("as loaded before the engine")
    return load_openblas()


def _import_both() -> None:
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"MLX has no usable backend ({one_line(error)}): {_EXTRAS}") from error
    with _open_file_limit_kept():
        import mlx_lm.utils  # noqa: F401


@contextmanager
def _open_file_limit_kept() -> Iterator[None]:
    """Importing mlx-lm lowers the limit on open files, for good where root does not run the server."""
    original = resource.setrlimit

    def set_other_limits(which: int, limits: tuple[int, int]) -> None:
        if which != resource.RLIMIT_NOFILE:
            original(which, limits)

    resource.setrlimit = set_other_limits
    try:
        yield
    finally:
        resource.setrlimit = original
