"""GGUF headers: what is read, and that nothing damaged gets through or takes long."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gguf_files import MetadataValue, gguf_bytes, stored, tiny_llama

from mlxcel_trio.engine.models.gguf import open_gguf, plan_conversion
from mlxcel_trio.errors import CorruptModelError, ModelError, ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

TINY = tiny_llama("Q8_0")
TINY_BYTES = gguf_bytes(TINY.metadata, TINY.tensors)
HEADER_SIZE = TINY_BYTES.index(TINY.tensors["token_embd.weight"].data)


def convert(path: Path, data: bytes) -> None:
    """All that happens to a file up to and including its weights."""
    path.write_bytes(data)
    directory = path.with_name("out")
    directory.mkdir(exist_ok=True)
    with open_gguf(path) as file:
        plan_conversion(file).write(directory)


def expect_corrupt(path: Path, data: bytes) -> str:
    with pytest.raises(CorruptModelError) as caught:
        convert(path, data)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_values_of_every_type(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        gguf_bytes(
            {
                "text": "naïve 👋", "flag": True, "integer": 7, "number": 0.5,
                "texts": ["a", ""], "integers": [-1, 2], "numbers": [0.5, -2.0],
            },
            {},
        )
    )  # fmt: skip
    with open_gguf(path) as file:
        assert file.text("text") == "naïve 👋"
        assert file.flag("flag", False) is True
        assert (file.integer("integer"), file.number("number"), file.number("integer")) == (7, 0.5, 7.0)
        assert (file.texts("texts"), file.numbers("integers"), file.numbers("numbers")) == (
            ["a", ""],
            [-1.0, 2.0],
            [0.5, -2.0],
        )
        assert file.integer("absent", 3) == 3
        assert "absent" not in file


@pytest.mark.parametrize(
    ("read", "key"),
    [
        ("text", "integer"),
        ("integer", "text"),
        ("integer", "flag"),
        ("number", "flag"),
        ("number", "nan"),
        ("texts", "integer"),
        ("numbers", "texts"),
        ("texts", "numbers"),
        ("integer", "absent"),
    ],
)
def test_a_value_of_the_wrong_type_is_damage(tmp_path: Path, read: str, key: str) -> None:
    path = tmp_path / "m.gguf"
    metadata: dict[str, MetadataValue] = {
        "text": "a",
        "flag": True,
        "integer": 7,
        "nan": float("nan"),
        "texts": ["a"],
        "numbers": [0.5],
    }
    path.write_bytes(gguf_bytes(metadata, {}))
    with open_gguf(path) as file, pytest.raises(CorruptModelError, match=key):
        getattr(file, read)(key)


def test_tensors_are_found_at_their_alignment(tmp_path: Path) -> None:
    tensors = {
        name: stored(TINY.weights["model.norm.weight"][:size], "F32") for name, size in (("a", 3), ("b", 5))
    }
    for alignment in (8, 32, 256):
        path = tmp_path / "m.gguf"
        path.write_bytes(gguf_bytes({}, tensors, alignment=alignment))
        with open_gguf(path) as file:
            for name, tensor in tensors.items():
                assert file.stored_rows(file.tensors[name], 1).tobytes() == tensor.data


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    """At every byte of the header's structure, then through the weights in strides."""
    cuts = {*range(600), *range(600, HEADER_SIZE, 97), *range(HEADER_SIZE, len(TINY_BYTES), 4001)}
    cuts.add(len(TINY_BYTES) - 1)
    path = tmp_path / "cut.gguf"
    path.write_bytes(TINY_BYTES)
    for cut in sorted(cuts, reverse=True):
        with path.open("r+b") as file:
            file.truncate(cut)
        with pytest.raises(CorruptModelError), open_gguf(path) as file_read:
            plan_conversion(file_read)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_header_ends_in_one_of_our_errors(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes change: it converts, or the error is one line of ours; never another exception."""
    damaged = bytearray(TINY_BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, HEADER_SIZE - 9))
        replacement = data.draw(
            st.binary(min_size=1, max_size=8)
            | st.sampled_from([b"\xff" * 8, b"\x00" * 8, struct.pack("<Q", 2**63), struct.pack("<I", 2**31)])
        )
        damaged[position : position + len(replacement)] = replacement
    message = ""
    try:
        convert(tmp_path / "m.gguf", bytes(damaged))
    except ModelError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    "data",
    [b"", b"GGU", b"GGML" + bytes(100), b"\x00" * 4096, b"PK\x03\x04" + bytes(range(256)) * 8, b"GGUF"],
    ids=["empty", "short", "other magic", "zeros", "a zip", "magic only"],
)
def test_what_is_no_gguf_file(tmp_path: Path, data: bytes) -> None:
    expect_corrupt(tmp_path / "m.gguf", data)


@pytest.mark.parametrize("count", [2**64 - 1, 2**40, 2**20])
@pytest.mark.parametrize("field", [8, 16], ids=["tensors", "keys"])
def test_absurd_counts_end_with_the_file(tmp_path: Path, field: int, count: int) -> None:
    data = bytearray(TINY_BYTES)
    data[field : field + 8] = struct.pack("<Q", count)
    expect_corrupt(tmp_path / "m.gguf", bytes(data))


@pytest.mark.parametrize("kind", [8, 6], ids=["strings", "floats"])
def test_an_absurd_list_length_ends_with_the_file(tmp_path: Path, kind: int) -> None:
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, kind, 2**60)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + bytes(64)
    expect_corrupt(tmp_path / "m.gguf", data)


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (struct.pack("<I", 13), "value type 13"),
        (struct.pack("<IIQ", 9, 9, 1), "list type 9"),
        (struct.pack("<IQ", 8, 2) + b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, tail: bytes, says: str) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + tail + bytes(64)
    assert says in expect_corrupt(tmp_path / "m.gguf", data)


def test_duplicate_names_are_damage(tmp_path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 1)
    twice = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + key + key
    assert "'k' appears twice" in expect_corrupt(tmp_path / "m.gguf", twice)
    tensors_twice = TINY_BYTES.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight")
    assert "'blk.0.attn_k.weight' appears twice" in expect_corrupt(tmp_path / "m.gguf", tensors_twice)


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_other_versions_are_unsupported(tmp_path: Path, version: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"version {version}"):
        convert(tmp_path / "m.gguf", gguf_bytes(TINY.metadata, TINY.tensors, version=version))


def test_version_2_is_read(tmp_path: Path) -> None:
    convert(tmp_path / "m.gguf", gguf_bytes(TINY.metadata, TINY.tensors, version=2))


@pytest.mark.parametrize("alignment", [0, 12])
def test_a_bad_alignment_is_damage(tmp_path: Path, alignment: int) -> None:
    data = gguf_bytes({"general.alignment": alignment, **TINY.metadata}, TINY.tensors)
    assert "alignment" in expect_corrupt(tmp_path / "m.gguf", data)


def test_a_file_that_cannot_be_opened_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="No such file"), open_gguf(tmp_path / "absent.gguf"):
        pass
    with pytest.raises(ModelNotFoundError, match="directory"), open_gguf(tmp_path):
        pass


def test_a_read_only_file_is_enough(tmp_path: Path) -> None:
    path = TINY.write(tmp_path / "m.gguf")
    path.chmod(0o444)
    with open_gguf(path) as file:
        assert file.text("general.architecture") == "llama"
