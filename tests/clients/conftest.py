"""Where the clients for Node.js are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def node_lane(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of ``node/`` with the packages installed that its lock file names."""
    directory = tmp_path_factory.mktemp("node") / "lane"
    shutil.copytree(SOURCE, directory, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=directory, check=True)  # noqa: S607
    return directory
