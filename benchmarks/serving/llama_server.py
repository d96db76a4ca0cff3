"""llama.cpp's own server, out of the package ``xllamacpp``.

A process of its own, started as ``python -m benchmarks.serving.llama_server GGUF PARALLEL CHUNK CONTEXT
THREADS``. It prints its URL and serves until its standard input ends.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Serve."""
    gguf, parallel, chunk_tokens, context_tokens, threads = sys.argv[1], *map(int, sys.argv[2:6])
    llama = importlib.import_module("xllamacpp")  # optional, so unknown to the type checker
    parameters = llama.CommonParams()
    parameters.model.path = gguf
    parameters.n_parallel = parallel
    parameters.n_ctx = parallel * context_tokens
    # A batch carries the next token of every stream and prompt tokens up to its size.
    parameters.n_batch = parameters.n_ubatch = max(chunk_tokens, parallel)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    server = llama.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
