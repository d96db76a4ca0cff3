"""Validation driven as the server drives it: from the bytes of a body."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.core.validation import ValidationContext, not_yet, validate_create
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import decode
from mlxcel_trio.protocol.requests import CreateResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_trio.core.plan import CreatePlan


@pytest.fixture
def context() -> ValidationContext:
    return ValidationContext(
        names={"local": "tiny", "tiny": "tiny", "org/tiny": "tiny"},
        sampling=SamplingDefaults(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05),
        store_enabled=True,
        conversations_enabled=True,
        background_enabled=True,
    )


@pytest.fixture
def validate_as_built(context: ValidationContext) -> Callable[..., CreatePlan]:
    """``validate(field=value)``: a minimal body with these fields, what is not built yet refused."""

    def validate(**fields: Any) -> CreatePlan:
        body = {"model": "local", "input": "hi"} | fields
        return validate_create(decode(json.dumps(body).encode(), CreateResponse), context)

    return validate


@pytest.fixture
def validate(
    validate_as_built: Callable[..., CreatePlan], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CreatePlan]:
    """The same with every feature counted as built, so that nothing but the API's own limits refuses."""
    monkeypatch.setattr(not_yet, "_NOT_YET", ())
    return validate_as_built


@pytest.fixture
def refusal(validate: Callable[..., CreatePlan]) -> Callable[..., InvalidRequestError]:
    """The error that the same call raises."""

    def refusal(**fields: Any) -> InvalidRequestError:
        with pytest.raises(InvalidRequestError) as caught:
            validate(**fields)
        assert "\n" not in caught.value.message
        return caught.value

    return refusal
