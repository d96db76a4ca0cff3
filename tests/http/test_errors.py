"""Each exception has its status, headers and envelope; what is not meant for clients stays inside."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs
from werkzeug.exceptions import BadRequest, InternalServerError, MethodNotAllowed, NotFound, RequestTimeout

from mlxcel_trio import errors
from mlxcel_trio.http.errors import error_answer, malformed_answer

CASES = [
    (errors.InvalidRequestError, 400, "invalid_request_error", None, {}),
    (
        errors.AuthenticationError,
        401,
        "invalid_request_error",
        "invalid_api_key",
        {"WWW-Authenticate": "Bearer"},
    ),
    (errors.OriginNotAllowedError, 403, "invalid_request_error", "origin_not_allowed", {}),
    (errors.NotFoundError, 404, "invalid_request_error", None, {}),
    (errors.MethodNotAllowedError, 405, "invalid_request_error", None, {}),
    (errors.RequestTooLargeError, 413, "invalid_request_error", "request_too_large", {}),
    (errors.UnsupportedEncodingError, 415, "invalid_request_error", None, {}),
    (errors.RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded", {"Retry-After": "10"}),
    (errors.ServerOverloadedError, 503, "server_error", "server_overloaded", {"Retry-After": "5"}),
    (errors.EngineUnavailableError, 503, "server_error", "engine_unavailable", {}),
    (errors.EngineFailureError, 500, "server_error", "server_error", {}),
]


@pytest.mark.parametrize(("kind", "status", "type_", "code", "headers"), CASES)
def test_every_api_error(
    kind: type[errors.ApiError], status: int, type_: str, code: str | None, headers: dict[str, str]
) -> None:
    with capture_logs() as logs:
        answer = error_answer(kind("Do this.", param="input[0]"))
    assert (answer.status, answer.headers, logs) == (status, headers, [])
    assert json.loads(answer.body) == {
        "error": {"message": "Do this.", "type": type_, "param": "input[0]", "code": code}
    }


def test_the_cases_cover_the_tree() -> None:
    assert {case[0] for case in CASES} == set(errors.ApiError.__subclasses__())


def test_a_subclass_has_the_status_of_its_parent() -> None:
    class CallLimitError(errors.RateLimitError):
        """A more exact kind."""

    answer = error_answer(CallLimitError("Wait."))
    assert (answer.status, answer.headers) == (429, {"Retry-After": "10"})


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        errors.ConfigurationError("secret"),
        InternalServerError("secret", original_exception=ValueError("secret")),
        ExceptionGroup("secret", [errors.InvalidRequestError("secret"), ValueError("secret")]),
    ],
)
def test_the_unexpected_is_logged_and_not_told(error: Exception) -> None:
    with capture_logs() as logs:
        answer = error_answer(error)
    assert answer.status == 500
    assert (
        json.loads(answer.body)["error"].items() >= {"type": "server_error", "code": "server_error"}.items()
    )
    assert b"secret" not in answer.body
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("request_failed", "error")
    assert "secret" in str(line["exc_info"])


@pytest.mark.parametrize(
    ("error", "status"), [(NotFound(), 404), (RequestTimeout(), 408), (BadRequest("No."), 400)]
)
def test_errors_of_the_framework(error: Exception, status: int) -> None:
    answer = error_answer(error)
    assert answer.status == status
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"


def test_a_wrong_method_is_told_the_right_ones() -> None:
    answer = error_answer(MethodNotAllowed(["POST", "GET"]))
    assert (answer.status, answer.headers) == (405, {"Allow": "GET, POST"})


@pytest.mark.parametrize("status", [400, 431, 501, 505])
def test_malformed_http(status: int) -> None:
    answer = malformed_answer(status)
    assert answer.status == status
    assert json.loads(answer.body)["error"].keys() == {"message", "type", "param", "code"}
