"""Where models come from: the demo model, GGUF files, mlx-lm directories, the Hugging Face hub.

Synchronous, and free of mlx: it can run before the engine decides how to load mlx.
"""

from mlxcel_trio.engine.models.cache import cache_directory
from mlxcel_trio.engine.models.demo import DEMO_NAME
from mlxcel_trio.engine.models.generation_config import sampling_defaults
from mlxcel_trio.engine.models.resolve import ModelSource, resolve_model

__all__ = ["DEMO_NAME", "ModelSource", "cache_directory", "resolve_model", "sampling_defaults"]
