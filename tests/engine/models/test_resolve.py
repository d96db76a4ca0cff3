"""From a name to a directory: every form that is accepted, and what the others are told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.gguf_files import gguf_bytes, tiny_llama
from support.hub import Files, serve_hub
from support.processes import python, running

from mlxcel_trio.engine.models import DEMO_NAME, ModelSource, resolve_model
from mlxcel_trio.engine.models.demo import DEMO_WHEEL
from mlxcel_trio.engine.models.directory import check_model_directory
from mlxcel_trio.engine.models.gguf import CONVERTER_VERSION, open_gguf, plan_conversion
from mlxcel_trio.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError

TINY = tiny_llama("Q4_1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    with open_gguf(TINY.write(tmp_path / "source.gguf")) as file:
        directory = tmp_path / "models" / "tiny-1B"
        directory.mkdir(parents=True)
        plan_conversion(file).write(directory)
    return directory


def resolve(name: str | None, tmp_path: Path) -> ModelSource:
    return resolve_model(name, cache_dir=tmp_path / "cache", report=lambda line: None)


def test_a_directory_is_used_where_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(model)
    assert resolve(name, tmp_path) == ModelSource(model, name, "tiny-1B", ("tiny-1B", name))
    monkeypatch.chdir(tmp_path)
    assert resolve("models/tiny-1B/", tmp_path) == ModelSource(
        model, "models/tiny-1B/", "tiny-1B", ("tiny-1B", "models/tiny-1B/")
    )
    monkeypatch.chdir(model)
    assert resolve(".", tmp_path).canonical == "tiny-1B"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/models/tiny-1B", tmp_path).directory == model
    assert not (tmp_path / "cache").exists()


def test_a_gguf_file_is_converted_once(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "Tiny-Q4.GGUF")
    lines: list[str] = []
    first = resolve_model(str(path), cache_dir=tmp_path / "cache", report=lines.append)
    check_model_directory(first.directory)
    assert (first.canonical, first.aliases) == ("Tiny-Q4", ("Tiny-Q4", str(path), "Tiny-Q4.GGUF"))
    again = resolve_model(str(path), cache_dir=tmp_path / "cache", report=lines.append)
    assert again == first
    assert [line.split()[0] for line in lines] == ["Converting"]


def test_a_changed_gguf_file_replaces_its_conversion(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "tiny.gguf")
    first = resolve(str(path), tmp_path).directory
    os.utime(path, (1, 1))
    second = resolve(str(path), tmp_path).directory
    assert second != first
    assert [entry.name for entry in second.parent.iterdir()] == [second.name]


def test_two_gguf_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    one = resolve(str(TINY.write(tmp_path / "a" / "tiny.gguf")), tmp_path)
    other = resolve(str(TINY.write(tmp_path / "b" / "tiny.gguf")), tmp_path)
    assert one.directory != other.directory
    assert one.directory.is_dir()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (gguf_bytes(TINY.metadata, TINY.tensors)[:-1], CorruptModelError),
        (b"no model", CorruptModelError),
        (gguf_bytes(TINY.metadata | {"general.architecture": "mamba"}, TINY.tensors), UnsupportedModelError),
    ],
    ids=["cut short", "garbage", "another architecture"],
)
def test_a_bad_gguf_file_leaves_nothing_behind(tmp_path: Path, data: bytes, error: type[Exception]) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(error, match=r"bad\.gguf"):
        resolve(str(path), tmp_path)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", [None, DEMO_NAME, DEMO_NAME.lower()])
def test_the_demo_model_is_meant_by_its_name_and_by_none(tmp_path: Path, name: str | None) -> None:
    ready = tmp_path / "cache" / "models" / DEMO_NAME / f"{DEMO_WHEEL.gguf_sha256[:16]}-{CONVERTER_VERSION}"
    ready.mkdir(parents=True)
    assert resolve(name, tmp_path) == ModelSource(ready, DEMO_NAME, DEMO_NAME, (DEMO_NAME,))


def test_a_directory_with_the_demos_name_comes_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.rename(tmp_path / DEMO_NAME)
    monkeypatch.chdir(tmp_path)
    assert resolve(DEMO_NAME, tmp_path).directory == tmp_path / DEMO_NAME


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing",
        "./absent",
        "a/b/c",
        "/absent/model",
        "absent.gguf",
        "org/absent.gguf",
        "../x/",
        "-x/y",
        "nul\0",
        "x" * 5000,
        "~nobody-at-all/model",
        "org/na me",
        "org/",
    ],
)
def test_other_names_are_told_what_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name, tmp_path)
    message = str(caught.value)
    assert "hub repository (org/name)" in message
    assert "\n" not in message
    assert len(message) < 400


# Resolves each name of the JSON list in the second argument; prints [error class or directory, message].
RESOLVE = """
import json, sys
from pathlib import Path
from mlxcel_trio.engine.models import resolve_model
from mlxcel_trio.errors import MlxcelError

results = []
for name in json.loads(sys.argv[2]):
    try:
        source = resolve_model(name, cache_dir=Path(sys.argv[1]), report=lambda line: None)
        results.append([str(source.directory), " ".join(source.aliases)])
    except MlxcelError as error:
        results.append([type(error).__name__, str(error)])
assert not {"mlx", "mlx_lm", "transformers"} & set(sys.modules)
print(json.dumps(results))
"""


def resolve_elsewhere(tmp_path: Path, names: list[str], environ: dict[str, str]) -> list[list[str]]:
    """In a process of its own, because the hub's client reads its variables once, on import."""
    environ = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*", **environ}
    with running(python(RESOLVE, tmp_path / "cache", json.dumps(names), environ=environ)) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "%" not in errors, "progress bars belong on terminals"
    results: list[list[str]] = json.loads(output)
    assert not [message for _, message in results if "\n" in message]
    return results


def test_hub_repositories(model: Path, tmp_path: Path) -> None:
    whole: Files = {path.name: path.read_bytes() for path in model.iterdir()}
    extra: Files = {"pytorch_model.bin": b"no", "modeling.py": b"no", "README.md": b"no"}
    repositories = {
        "org/tiny": whole | extra,
        "org/torch": {
            "config.json": whole["config.json"],
            "tokenizer.json": b"{}",
            "pytorch_model.bin": b"x",
        },
        "org/cut": whole | {"model.safetensors": whole["model.safetensors"][:-1]},
        "org/files": {"a.gguf": b"x"},
    }
    with serve_hub(repositories) as endpoint:
        names = [*repositories, "org/absent", "org/gated"]
        results = resolve_elsewhere(tmp_path, names, {"HF_ENDPOINT": endpoint})
    (directory, aliases), torch, cut, files, absent, gated = results
    assert sorted(path.name for path in Path(directory).iterdir()) == sorted(whole)
    assert aliases == "tiny org/tiny"
    assert torch[0] == "CorruptModelError"
    assert (cut[0], "bytes instead of" in cut[1]) == ("CorruptModelError", True)
    assert files[0] == "ModelNotFoundError"
    assert (absent[0], "HF_TOKEN" in absent[1]) == ("ModelNotFoundError", True)
    assert (gated[0], "gated" in gated[1]) == ("ModelNotFoundError", True)

    names = ["org/tiny", "org/other"]
    for environ in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": endpoint}):  # by then nobody listens there
        cached, other = resolve_elsewhere(tmp_path, names, environ)
        assert cached == [directory, aliases]
        assert (other[0], "HF_HUB_OFFLINE" in other[1]) == ("DownloadError", True)
