"""MLX is imported the way the engine does it, before a test module can import it otherwise."""

from mlxcel_trio.engine.mlx_runtime import import_mlx

import_mlx()
