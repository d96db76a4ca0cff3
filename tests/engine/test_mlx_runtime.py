from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from mlxcel_trio.engine import mlx_runtime
from mlxcel_trio.engine.blas import BlasReport
from mlxcel_trio.engine.mlx_runtime import import_mlx, installed_backends
from mlxcel_trio.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def in_new_process(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout.strip()


@pytest.fixture
def on_linux(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The distributions that seem to be installed."""
    installed: set[str] = set()

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return "0.32.4"

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(metadata, "version", version)
    return installed


def test_it_reports_the_same_however_often_it_is_called() -> None:
    report = import_mlx()
    assert import_mlx() is report
    assert "mlx_lm.utils" in sys.modules


@pytest.mark.parametrize("second", ["mlx-cuda-12", "mlx-cuda-13"])
def test_two_backends_are_refused(on_linux: set[str], second: str) -> None:
    on_linux.update({"mlx-cpu", second})
    with pytest.raises(ConfigurationError, match=rf"mlx-cpu and {second} .*fresh environment"):
        mlx_runtime._import_once.__wrapped__()


def test_one_backend_is_fine(on_linux: set[str]) -> None:
    on_linux.add("mlx-cuda-13")
    assert installed_backends() == ["mlx-cuda-13"]
    assert mlx_runtime._choose_blas(installed_backends()) == BlasReport("as built into MLX")


def test_off_linux_there_is_nothing_to_choose(on_linux: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_linux.update({"mlx-cpu", "mlx-cuda-12"})
    monkeypatch.setattr(sys, "platform", "darwin")
    assert installed_backends() == []
    assert mlx_runtime._choose_blas([]) == BlasReport("as built into MLX")


def test_mlx_that_is_already_there_keeps_its_blas(on_linux: set[str]) -> None:
    import_mlx()
    assert mlx_runtime._choose_blas(["mlx-cpu"]) == BlasReport("as loaded before the engine")


def test_no_backend_names_the_extras_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(ConfigurationError) as caught:
        mlx_runtime._import_both()
    assert "pip install 'mlxcel-trio[cpu]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_backend_module_does_not_bring_mlx_along() -> None:
    code = """
import sys
import mlxcel_trio.engine.mlx_backend
print([name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm", "transformers")])
"""
    assert in_new_process(code) == "[]"


def test_the_limit_on_open_files_stays_what_the_operator_set() -> None:
    code = """
import resource
before = (999, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, before)
setter = resource.setrlimit
from mlxcel_trio.engine.mlx_runtime import import_mlx
import_mlx()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == before, resource.setrlimit is setter)
"""
    assert in_new_process(code) == "True True"
