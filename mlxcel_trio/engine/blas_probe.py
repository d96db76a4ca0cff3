"""Run as a script, in a process of its own: does MLX compute right, and how fast, with a given BLAS?

``python blas_probe.py [LIBRARY]`` loads LIBRARY ahead of MLX and prints ``right`` or ``wrong`` and the speed
of a float32 product in GFLOP/s. A library that is broken on this processor may also crash or hang here,
instead of in the server.
"""

from __future__ import annotations

import ctypes
import sys
import time

# Odd sizes reach the edges of a blocked kernel, an inner size over 512 more than one block.
_INNER = 601
_SHAPES = ((129, 131), (127, 133), (1, 133))
_TOLERANCE = 0.01
_TIMED = 512


def main(library: str | None) -> None:
    if library is not None:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)

    import mlx.core as mx

    def is_right(rows: int, columns: int, *, transposed: bool) -> bool:
        left = mx.random.normal((rows, _INNER), key=mx.random.key(rows))
        right = mx.random.normal((columns, _INNER), key=mx.random.key(columns))
        operand = right.T if transposed else mx.contiguous(right.T)
        expected = (left[:, None, :] * right[None]).sum(-1)  # no BLAS involved
        error = mx.abs(left @ operand - expected).max().item()
        return isinstance(error, float) and error < _TOLERANCE  # NaN is not

    def speed() -> float:
        square = mx.random.normal((_TIMED, _TIMED), key=mx.random.key(0))
        mx.eval(square)
        started = time.perf_counter()
        mx.eval(square @ square)
        return 2 * _TIMED**3 / (time.perf_counter() - started) / 1e9

    right = all(is_right(*shape, transposed=transposed) for shape in _SHAPES for transposed in (False, True))
    print("right" if right else "wrong", f"{max(speed(), speed()):.1f}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
