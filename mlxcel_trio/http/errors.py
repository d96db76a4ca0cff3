"""The one place that turns exceptions into HTTP: status, headers and the error envelope.

Whatever is not an :class:`~mlxcel_trio.errors.ApiError` or an HTTP error of the framework is a fault of ours:
it is logged with its traceback, and the client gets a fixed message.
"""

from __future__ import annotations

from http import HTTPStatus

from msgspec import Struct
from quart_trio.wrappers import TrioResponse as Response
from werkzeug.exceptions import HTTPException, InternalServerError, MethodNotAllowed, NotFound

from mlxcel_trio.errors import (
    ApiError,
    AuthenticationError,
    EngineUnavailableError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    OriginNotAllowedError,
    RateLimitError,
    RequestTooLargeError,
    ServerOverloadedError,
    UnsupportedEncodingError,
)
from mlxcel_trio.log import get_logger
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.errors import ErrorBody, ErrorEnvelope

log = get_logger(__name__)

STATUS: dict[type[ApiError], HTTPStatus] = {
    InvalidRequestError: HTTPStatus.BAD_REQUEST,
    AuthenticationError: HTTPStatus.UNAUTHORIZED,
    OriginNotAllowedError: HTTPStatus.FORBIDDEN,
    NotFoundError: HTTPStatus.NOT_FOUND,
    MethodNotAllowedError: HTTPStatus.METHOD_NOT_ALLOWED,
    RequestTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedEncodingError: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    RateLimitError: HTTPStatus.TOO_MANY_REQUESTS,
    ServerOverloadedError: HTTPStatus.SERVICE_UNAVAILABLE,
    EngineUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Status of each class and its subclasses; what is not listed is a 500."""

HEADERS: dict[type[ApiError], dict[str, str]] = {
    AuthenticationError: {"WWW-Authenticate": "Bearer"},
    RateLimitError: {"Retry-After": "10"},  # seconds; a job has to finish first
    ServerOverloadedError: {"Retry-After": "5"},
}

INTERNAL_ERROR = ErrorBody(
    "The server failed to handle this request. Its log says why; look for the x-request-id of this response.",
    type="server_error",
    param=None,
    code="server_error",
)


class ErrorAnswer(Struct, frozen=True):
    """An HTTP error: the status, the JSON of the envelope and what else goes into the header."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


def error_answer(error: BaseException) -> ErrorAnswer:
    """What the client gets for ``error``. Logs what no client could have caused."""
    match error:
        case ApiError():
            return _api_answer(error)
        case HTTPException(code=int() as code) if code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return _framework_answer(error, code)
        case InternalServerError(original_exception=BaseException() as cause):
            error = cause
    log.error("request_failed", exc_info=error)
    return ErrorAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, encode(ErrorEnvelope(INTERNAL_ERROR)))


def error_response(error: BaseException) -> Response:
    """The same as a response of the app."""
    answer = error_answer(error)
    return Response(answer.body, answer.status, answer.headers, content_type="application/json")


def malformed_answer(status: int) -> ErrorAnswer:
    """What the client gets for bytes that are not an HTTP request; ``status`` is the parser's verdict."""
    message = _MALFORMED.get(status, "The request is not well-formed HTTP/1.1.")
    return ErrorAnswer(status, _envelope(InvalidRequestError(message)))


_MALFORMED: dict[int, str] = {
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "The request's header is over the limit. Send fewer headers.",
    HTTPStatus.NOT_IMPLEMENTED: "The request's transfer-encoding is not supported. Use chunked, or none.",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "Only HTTP/1.0 and HTTP/1.1 are spoken here.",
}


def _api_answer(error: ApiError) -> ErrorAnswer:
    kinds = type(error).__mro__
    status = next((STATUS[kind] for kind in kinds if kind in STATUS), HTTPStatus.INTERNAL_SERVER_ERROR)
    headers = next((HEADERS[kind] for kind in kinds if kind in HEADERS), {})
    return ErrorAnswer(status, _envelope(error), headers)


def _framework_answer(error: HTTPException, code: int) -> ErrorAnswer:
    match error:
        case NotFound():
            return _api_answer(NotFoundError("There is no such path. The API is found under /v1."))
        case MethodNotAllowed(valid_methods=methods):
            allow = ", ".join(sorted(methods or ()))
            refusal = MethodNotAllowedError(f"This path does not take that method. It takes: {allow}.")
            return ErrorAnswer(code, _envelope(refusal), {"Allow": allow})
        case _:
            return ErrorAnswer(code, _envelope(InvalidRequestError(error.description or error.name)))


def _envelope(error: ApiError) -> bytes:
    return encode(ErrorEnvelope(ErrorBody(error.message, error.type, error.param, error.code)))
