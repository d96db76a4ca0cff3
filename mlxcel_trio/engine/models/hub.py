"""Models from the Hugging Face hub, in its own cache.

``HF_ENDPOINT``, ``HF_HOME``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` work as everywhere.
"""

from __future__ import annotations

import fcntl
import sys
from contextlib import suppress
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
    _remove_leftovers(repo_id)
    report(f"Looking up {repo_id} on the Hugging Face hub")
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_PATTERNS))
    except Exception as error:
        # Its client raises its own classes, those of two HTTP libraries, of the Xet client and of the
        # disk; to the user all are one failed download.
        raise _explained(repo_id, error) from error


def _remove_leftovers(repo_id: str) -> None:
    """Remove the half files of killed downloads, which the hub's client neither resumes nor removes.

    It writes ``blobs/<etag>.<8 random characters>.incomplete`` while it holds ``.locks/.../<etag>.lock``.
    """
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    cache, folder = Path(HF_HUB_CACHE), repo_folder_name(repo_id=repo_id, repo_type="model")
    # A list, for files that come later have owners that lock later.
    for half_file in list((cache / folder / "blobs").glob("*.????????.incomplete")):
        etag = half_file.name.rsplit(".", 2)[0]
        # Another process is at work on it, it has finished just now, or the cache is not this user's.
        with suppress(OSError), (cache / ".locks" / folder / f"{etag}.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            half_file.unlink()


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
