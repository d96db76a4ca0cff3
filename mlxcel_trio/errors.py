"""Every exception this package raises on purpose.

::

    MlxcelError
    ├── ConfigurationError          a flag, a variable or the installation is wrong
    ├── ModelError                  the model cannot be had or used
    │   ├── ModelNotFoundError      nothing usable under that name
    │   ├── DownloadError           fetching or writing it failed; trying again may help
    │   ├── CorruptModelError       its files are damaged or incomplete
    │   └── UnsupportedModelError   well-formed, but of a kind this engine does not run
    └── ApiError                    has a place in the API: carries type, code, param
        ├── InvalidRequestError     the request can never succeed as it stands
        ├── AuthenticationError     no or a wrong API key
        ├── OriginNotAllowedError   a browser origin that may not call this server
        ├── NotFoundError           no such response, conversation, model or path
        ├── MethodNotAllowedError   the path exists, the method does not
        ├── RequestTooLargeError    the body is over the limit
        ├── UnsupportedEncodingError  a content-encoding the server does not read
        ├── RateLimitError          a cap on background work; try again later
        ├── ServerOverloadedError   the generation queue is full; try again later
        ├── EngineUnavailableError  the engine is loading or has stopped
        └── EngineFailureError      generation of this response failed

No class knows HTTP: ``mlxcel_trio.http.errors`` maps the tree to status codes.
"""

from __future__ import annotations


class MlxcelError(Exception):
    """Base of the tree. ``str(error)`` is one line meant for the user."""


class ConfigurationError(MlxcelError):
    """A flag, an environment variable or the installation is wrong; the message names it."""


class ModelError(MlxcelError):
    """The model cannot be had or used."""


class ModelNotFoundError(ModelError):
    """Nothing usable was found under the name that was given."""


class DownloadError(ModelError):
    """Fetching or writing model files failed. Nothing half-made is left behind."""


class CorruptModelError(ModelError):
    """Model files are damaged, incomplete or not what they claim to be."""


class UnsupportedModelError(ModelError):
    """The files are well-formed, but the engine does not run this kind of model."""


class ApiError(MlxcelError):
    """An error with a place in the API's error envelope.

    ``param`` names the offending field as a path (``input[2].content[0].type``), ``code`` is the
    machine-readable reason; both may be ``None``.
    """

    type = "server_error"
    default_code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code


class InvalidRequestError(ApiError):
    """The request can never succeed as it stands; sending it again changes nothing."""

    type = "invalid_request_error"


class AuthenticationError(ApiError):
    """API keys are configured and the request carries none of them."""

    type = "invalid_request_error"
    default_code = "invalid_api_key"


class OriginNotAllowedError(ApiError):
    """A browser page from an origin that may not call this server."""

    type = "invalid_request_error"
    default_code = "origin_not_allowed"


class NotFoundError(ApiError):
    """No such response, conversation, model or path."""

    type = "invalid_request_error"


class MethodNotAllowedError(ApiError):
    """The path exists, but not for this method."""

    type = "invalid_request_error"


class RequestTooLargeError(ApiError):
    """The body, as sent or decompressed, is over the limit."""

    type = "invalid_request_error"
    default_code = "request_too_large"


class UnsupportedEncodingError(ApiError):
    """The body has a content-encoding that the server does not read."""

    type = "invalid_request_error"


class RateLimitError(ApiError):
    """A cap on background work is reached; it frees up when a job finishes."""

    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class ServerOverloadedError(ApiError):
    """The generation queue is full."""

    default_code = "server_overloaded"


class EngineUnavailableError(ApiError):
    """The engine is still loading, or it has stopped and will not come back."""

    default_code = "engine_unavailable"


class EngineFailureError(ApiError):
    """Generating this response failed. Other responses are not affected."""

    default_code = "server_error"


def one_line(error: object, *, without: str = "") -> str:
    """The message of any exception, fit to stand inside a sentence; every ``without`` is taken out of it."""
    text = " ".join(str(error).replace(without, "").split()) or type(error).__name__
    return (text if len(text) <= 300 else text[:299] + "…").rstrip(".")
