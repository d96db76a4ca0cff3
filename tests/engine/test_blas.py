from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mlxcel_trio.engine import blas
from mlxcel_trio.engine.blas import BlasReport, Probe, load_openblas, probe
from mlxcel_trio.errors import ConfigurationError

RIGHT, WRONG = Probe(right=True, gflops=90.0), Probe(right=False, gflops=90.0)
SLOW = Probe(right=True, gflops=3.0)
Outcomes = dict[tuple[str | None, str | None], Probe | None]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The OpenBLAS that the user names; it is never loaded into the test's process."""
    path = tmp_path / "libopenblas.so"
    path.touch()
    monkeypatch.setenv(blas.OVERRIDE, str(path))
    monkeypatch.setattr(blas, "_load", lambda library: BlasReport(f"loaded {Path(library).name}"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    # Set first, so that a change by the code under test is undone afterwards.
    monkeypatch.setenv("OPENBLAS_CORETYPE", "")
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    return str(path)


def expect_probes(monkeypatch: pytest.MonkeyPatch, outcomes: Outcomes) -> None:
    """Answers by (library, kernels); another question fails the test."""

    def answer(library: str | None, settings: dict[str, str] | None = None) -> Probe | None:
        return outcomes[library, (settings or {}).get("OPENBLAS_CORETYPE")]

    monkeypatch.setattr(blas, "probe", answer)


def test_a_library_that_computes_right_is_loaded(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_probes(monkeypatch, {(library, None): RIGHT})
    assert load_openblas() == BlasReport("loaded libopenblas.so", slow=False, note=None)
    assert "OPENBLAS_CORETYPE" not in os.environ


class Named:
    """A loaded OpenBLAS with these kernels."""

    def __init__(self, kernels: bytes) -> None:
        self.openblas_get_config = Answer(b"OpenBLAS 0.3.21 NO_AFFINITY")
        self.openblas_get_corename = Answer(kernels)


class Answer:
    restype: object = None

    def __init__(self, text: bytes) -> None:
        self._text = text

    def __call__(self) -> bytes:
        return self._text


@pytest.mark.parametrize(
    ("kernels", "column_major"), [("Haswell", True), ("Zen", True), ("SkylakeX", False), ("ARMV8", False)]
)
def test_kernels_decide_how_matrices_are_stored(
    monkeypatch: pytest.MonkeyPatch, kernels: str, column_major: bool
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda library, mode: Named(kernels.encode()))
    assert blas._load("a.so") == BlasReport(f"OpenBLAS 0.3.21 ({kernels})", column_major=column_major)


@pytest.mark.parametrize("failure", [WRONG, None])
def test_one_that_fails_is_tried_with_older_kernels(
    library: str, monkeypatch: pytest.MonkeyPatch, failure: Probe | None
) -> None:
    expect_probes(monkeypatch, {(library, None): failure, (library, "Haswell"): RIGHT})
    assert load_openblas().name == "loaded libopenblas.so"
    assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"


def test_kernels_that_the_user_chose_are_left_alone(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Zen")
    expect_probes(monkeypatch, {(library, None): WRONG, (None, None): SLOW})
    assert load_openblas().slow
    assert os.environ["OPENBLAS_CORETYPE"] == "Zen"


def test_one_that_never_computes_right_is_not_loaded_and_named(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_probes(monkeypatch, {(library, None): WRONG, (library, "Haswell"): None, (None, None): SLOW})
    report = load_openblas()
    assert report.slow
    assert report.name == "reference BLAS"
    assert report.note is not None
    assert library in report.note
    assert "MLXCEL_OPENBLAS" in report.note
    assert "\n" not in report.note


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("apt-get", "apt-get install libopenblas0-pthread"),
        ("dnf", "dnf install openblas-threads"),
        ("none", "package manager"),
    ],
)
def test_without_a_library_the_note_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tool: str, command: str
) -> None:
    monkeypatch.setenv(blas.OVERRIDE, "")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == tool else None)
    expect_probes(monkeypatch, {(None, None): SLOW})
    report = load_openblas()
    assert report.slow
    assert report.note is not None
    assert command in report.note


def test_a_fast_blas_of_mlx_itself_needs_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(blas.OVERRIDE, "")
    expect_probes(monkeypatch, {(None, None): RIGHT})
    assert load_openblas() == BlasReport("as built into MLX", slow=False, note=None)


def test_a_missing_file_is_the_users_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(blas.OVERRIDE, str(tmp_path / "nowhere.so"))
    with pytest.raises(ConfigurationError, match=r"MLXCEL_OPENBLAS names .*nowhere\.so"):
        load_openblas()


def test_installed_libraries_with_threads_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("libopenblas.so.0", "libopenblasp.so.0"):
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "lib" / name).touch()
    monkeypatch.delenv(blas.OVERRIDE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert blas._libraries() == [str(tmp_path / "lib" / "libopenblasp.so.0")]


def test_the_linker_is_asked_where_no_usual_place_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(blas.OVERRIDE, raising=False)
    monkeypatch.setattr(blas, "_usual_places", lambda: iter(()))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so.9")
    assert blas._libraries() == ["libopenblas.so.9"]


def test_the_real_probe_finds_mlx_in_order() -> None:
    outcome = probe(None)
    assert outcome is not None
    assert outcome.right
    assert outcome.gflops > 0


def test_a_file_that_is_no_library_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "libopenblas.so"
    path.write_text("no library")
    assert probe(str(path)) is None


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("print('right 80.5')", Probe(right=True, gflops=80.5)),
        ("print('wrong 80.5')", Probe(right=False, gflops=80.5)),
        ("import os; os.abort()", None),
        ("print('right 80.5', flush=True); import os; os.abort()", None),
        ("print('a warning instead')", None),
        ("", None),
        ("import threading; threading.Event().wait()", None),
    ],
)
def test_whatever_a_library_does_to_its_probe_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, outcome: Probe | None
) -> None:
    path = tmp_path / "probe.py"
    path.write_text(script)
    monkeypatch.setattr(blas, "_PROBE", path)
    if "wait()" in script:
        monkeypatch.setattr(blas, "_PROBE_TIMEOUT_SECONDS", 0.3)
    assert probe("libopenblas.so") == outcome


def test_the_probe_tries_the_kernels_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "probe.py"
    path.write_text("import os; print('right', len(os.environ['OPENBLAS_CORETYPE']))")
    monkeypatch.setattr(blas, "_PROBE", path)
    assert probe(None, {"OPENBLAS_CORETYPE": "Haswell"}) == Probe(right=True, gflops=7.0)
