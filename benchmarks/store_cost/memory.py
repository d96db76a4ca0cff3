"""What stored responses take of memory, measured, beside what the store says that they take.

A process of its own, so that nothing else is measured: ``python -m benchmarks.store_cost.memory METER CHAINS
LENGTH TEXT_BYTES`` stores that many chains and prints a :class:`Memory` as JSON.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from benchmarks.store_cost.chains import Chains

if TYPE_CHECKING:
    from collections.abc import Callable

_SMAPS = Path("/proc/self/smaps_rollup")


class Memory(Struct, frozen=True):
    """Bytes for each stored response: as ``meter`` measures it, and as the store counts."""

    meter: str
    length: int
    text_bytes: int
    responses: int
    measured: float
    counted: float


def measure(meter: str, *, responses: int, length: int, text_bytes: int) -> Memory:
    """Store about that many responses in a fresh process, in chains of ``length``."""
    chains = max(1, responses // length)
    arguments = [meter, str(chains), str(length), str(text_bytes)]
    command = [sys.executable, "-m", "benchmarks.store_cost.memory", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Memory)


def allocated_bytes() -> int:
    """What Python has allocated since tracing began."""
    return tracemalloc.get_traced_memory()[0]


def unique_bytes() -> int:
    """Memory of this process that no other one shares (USS)."""
    lines = _SMAPS.read_text(encoding="utf-8").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


_METERS: dict[str, Callable[[], int]] = {"tracemalloc": allocated_bytes, "USS": unique_bytes}


def meters() -> list[str]:
    """Those that this system has: USS is told on Linux only."""
    return [name for name in _METERS if name != "USS" or _SMAPS.exists()]


def _store(meter: str, count: int, length: int, text_bytes: int) -> Memory:
    read = _METERS[meter]
    chains = Chains(text_bytes)
    chains.grow(length)
    if read is allocated_bytes:
        tracemalloc.start()
    gc.collect()
    measured, counted = read(), chains.stored.retained_bytes
    for _ in range(count):
        chains.grow(length)
    gc.collect()
    measured, counted = read() - measured, chains.stored.retained_bytes - counted
    responses = count * length
    return Memory(meter, length, text_bytes, responses, measured / responses, counted / responses)


if __name__ == "__main__":
    print(msgspec.json.encode(_store(sys.argv[1], *map(int, sys.argv[2:]))).decode())
