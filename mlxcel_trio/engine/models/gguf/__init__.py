"""GGUF files of the llama architecture become mlx-lm directories.

``reader`` (header and bytes) -> ``llama`` (hyperparameters and weights) and ``tokenizer`` ->
``conversion`` (the files). ``blocks`` knows the quantisation formats. None of it needs mlx.

mlx has a GGUF loader of its own, which this package does without: it opens the file for writing, so
a read-only model store fails, and a damaged header makes it read past its buffer.
"""

from mlxcel_trio.engine.models.gguf.conversion import CONVERTER_VERSION, Conversion, plan_conversion
from mlxcel_trio.engine.models.gguf.reader import GgufFile, open_gguf

__all__ = ["CONVERTER_VERSION", "Conversion", "GgufFile", "open_gguf", "plan_conversion"]
