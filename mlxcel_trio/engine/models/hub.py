"""Models from the Hugging Face hub, in its own cache.

``HF_ENDPOINT``, ``HF_HOME``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` work as everywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcel_trio.errors import DownloadError, MlxcelError, ModelNotFoundError

if TYPE_CHECKING:
    from mlxcel_trio.engine.models.cache import Report

# What mlx-lm loads; no Python files, which would be code from the hub.
_PATTERNS = ["*.json", "model*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken"]


def fetch_repository(repo_id: str, report: Report) -> Path:
    """The newest snapshot of ``repo_id``, fetched as far as the hub's cache lacks it.

    Without a connection the cached snapshot is used when it is complete. Raises ``ModelNotFoundError``
    for a repository that does not exist or is not open to this user, ``DownloadError`` otherwise.
    """
    # Its import takes a third of a second, and most starts do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    report(f"Looking up {repo_id} on the Hugging Face hub")
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_PATTERNS))
    except Exception as error:
        # Its client raises its own classes, those of two HTTP libraries, of the Xet client and of the
        # disk; to the user all are one failed download.
        raise _explained(repo_id, error) from error


def _explained(repo_id: str, error: Exception) -> MlxcelError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ModelNotFoundError(
            f"{repo_id} is gated: accept its terms on the hub, then set HF_TOKEN to a token of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return ModelNotFoundError(
            f"the hub has no repository {repo_id}, or it is private: check the name, or set HF_TOKEN"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return DownloadError(
            f"{repo_id} is not (completely) in the hub's cache, and the hub is out of reach or "
            "HF_HUB_OFFLINE is set: check the network and HF_ENDPOINT, then try again"
        )
    first_line = (str(error).splitlines() or [""])[0]
    return DownloadError(f"fetching {repo_id} from the hub failed ({type(error).__name__}): {first_line}")
