"""The server as nested lifetimes: engine around HTTP, everything inside one task.

::

    serve
     `- engine nursery - the engine and its thread
         `- http nursery - listeners, connections, requests

Leaving unwinds inside out: HTTP stops first, then the engine thread is joined.
"""

from __future__ import annotations

import os
import time
from functools import partial

import trio
from msgspec import Struct

from mlxcel_trio.core.admission import Admission
from mlxcel_trio.core.ids import IdFactory
from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.engine.api import Engine
from mlxcel_trio.engine.backend import LoadedModel
from mlxcel_trio.engine.mlx_engine import mlx_engine_loader
from mlxcel_trio.engine.models.cache import default_cache_dir
from mlxcel_trio.engine.models.generation_config import sampling_defaults
from mlxcel_trio.engine.models.resolve import ModelSource, resolve_model
from mlxcel_trio.errors import EngineFailureError
from mlxcel_trio.http.app import create_app
from mlxcel_trio.http.worker import WorkerLimits, serve_http
from mlxcel_trio.log import get_logger
from mlxcel_trio.service.admission import Slots
from mlxcel_trio.service.responses import Responses, ServedModel
from mlxcel_trio.settings import Settings

log = get_logger(__name__)

RESERVED_ALIAS = "local"
