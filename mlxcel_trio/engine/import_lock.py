"""One lock around the import of heavy libraries.

transformers fills its modules in while it is imported: a second thread that imports it at the same moment
finds names missing. Engines that start together do that.
"""

from __future__ import annotations

import threading

import_lock = threading.Lock()
