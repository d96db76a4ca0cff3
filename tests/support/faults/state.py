"""Faults in what is remembered, for how long, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from msgspec.structs import replace
from support.faults.fault import Faults
from support.wrong_app import WrongServer

from mlxcel_trio.core.dialogue import Dialogue
from mlxcel_trio.core.pagination import PageQuery
from mlxcel_trio.core.stored_items import store_output
from mlxcel_trio.http import response_routes
from mlxcel_trio.protocol.responses import DeletedResponse, Response
from mlxcel_trio.service import stored_responses
from mlxcel_trio.service.responses import Responses
from mlxcel_trio.service.stored_responses import StoredResponses

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from support.published import Json
    from support.wrong_app import Answer

    from mlxcel_trio.http.usecases import PreparedResponse
    from mlxcel_trio.protocol.requests import CreateResponse

FAULTS = Faults()

# What is heard


@FAULTS.hears("B031", "B049", "B077", "B078", "B082", "B083", "B086", "B087", "B092", "B095", "B167")
def chains_are_not_heard(request: Json) -> None:
    request.pop("previous_response_id", None)


@FAULTS.hears("B049", "B169")
def conversations_are_not_heard(request: Json) -> None:
    request.pop("conversation", None)


@FAULTS.hears("B169")
def the_first_of_two_histories_is_taken(request: Json) -> None:
    if "previous_response_id" in request:
        request.pop("conversation", None)


@FAULTS.hears("B032", "B095")
def store_is_not_heard(request: Json) -> None:
    request.pop("store", None)


@FAULTS.hears("B119")
def references_are_skipped(request: Json) -> None:
    if isinstance(request.get("input"), list):
        request["input"] = [item for item in request["input"] if item.get("type") != "item_reference"]


@FAULTS.hears("B077", "B078", "B086")
def instructions_are_one_of_the_items(request: Json) -> None:
    instructions = request.pop("instructions", None)
    if instructions:
        items = request["input"]
        asked = [{"role": "user", "content": items}] if isinstance(items, str) else items
        request["input"] = [{"role": "system", "content": instructions}, *asked]


# What is kept


@FAULTS.does("B077", "B082", "B083", "B086", "B092")
def only_outputs_are_kept() -> AbstractContextManager[object]:
    return mock.patch.object(Dialogue, "turn", lambda self, output: tuple(map(store_output, output)))


@FAULTS.does("B077", "B078", "B082", "B083", "B086", "B092", "B119", "B169")
def only_the_input_is_kept() -> AbstractContextManager[object]:
    return mock.patch.object(Dialogue, "turn", lambda self, _output: self.own)


@FAULTS.does("B077", "B082", "B083", "B086", "B092", "B169")
def every_hop_keeps_its_whole_history() -> AbstractContextManager[object]:
    def turn(self: Dialogue, output: Any) -> Any:
        return (*self.history.all_items(), *self.own, *map(store_output, output))

    return mock.patch.object(Dialogue, "turn", turn)


@FAULTS.does("B086")
def options_are_inherited_once() -> AbstractContextManager[object]:
    prepare = Responses.prepare
    heard: dict[str | None, CreateResponse] = {}

    async def prepare_inheriting(
        self: Responses, request: CreateResponse, owner: str | None
    ) -> PreparedResponse:
        earlier = heard.get(request.previous_response_id)
        metadata = earlier.metadata if earlier and not request.metadata else request.metadata
        prepared = await prepare(self, replace(request, metadata=metadata), owner)
        heard[prepared.response_id] = request
        return prepared

    return mock.patch.object(Responses, "prepare", prepare_inheriting)


@FAULTS.does("B087")
def incomplete_responses_are_not_kept() -> AbstractContextManager[object]:
    keep = StoredResponses.keep

    def keep_complete(*arguments: Any) -> Any:
        (response,) = (argument for argument in arguments if isinstance(argument, Response))
        return None if response.status == "incomplete" else keep(*arguments)

    return mock.patch.object(StoredResponses, "keep", keep_complete)


def _forget_background(request: Json) -> None:
    request.pop("background", None)


FAULTS.append(
    WrongServer(
        "background_is_not_heard",
        ("B093", "B101", "B102", "B104", "B105", "B106", "B108"),
        hear=_forget_background,
        context_window=150,  # endless answers end there
    )
)
FAULTS.append(
    WrongServer(
        "nothing_is_kept",
        ("B008", "B020", "B031", "B032", "B077", "B085", "B092", "B093", "B096", "B119"),
        settings={"responses_store_max_bytes": 0},
    )
)
FAULTS.append(
    WrongServer(
        "everything_is_kept",
        ("B089", "B093"),
        settings={"responses_store_max_entries": 1000, "responses_store_max_bytes": 1_000_000},
    )
)
FAULTS.append(
    WrongServer("memory_has_no_bound", ("B093",), settings={"responses_store_max_bytes": 1_000_000})
)

# What becomes of it


@FAULTS.does("B092")
def nothing_is_deleted() -> AbstractContextManager[object]:
    return mock.patch.object(StoredResponses, "delete", lambda *arguments: DeletedResponse(id=arguments[-1]))


@FAULTS.does("B101", "B102", "B108")
def nothing_is_cancelled() -> AbstractContextManager[object]:
    return mock.patch.object(StoredResponses, "cancel", StoredResponses.retrieve)


@FAULTS.does("B096", "B104")
def streams_are_not_refused() -> AbstractContextManager[object]:
    return mock.patch.object(response_routes, "_check_retrieve_query", return_value=None)


@FAULTS.does("B096")
def pages_are_all_alike() -> AbstractContextManager[object]:
    return mock.patch.object(stored_responses, "read_page_query", return_value=PageQuery())


# What is said


@FAULTS.says("B031")
def the_previous_response_is_not_echoed(answer: Answer) -> None:
    for response in answer.responses():
        response["previous_response_id"] = None


@FAULTS.says("B169")
def the_conversation_is_not_echoed(answer: Answer) -> None:
    for response in answer.responses():
        response["conversation"] = None


@FAULTS.says("B008", "B020", "B085")
def another_response_is_found(answer: Answer) -> None:
    if not answer.frames and (answer.body or {}).get("object") == "response":
        answer.body["id"] = "resp_" + "0" * 48


@FAULTS.says("B092")
def a_deletion_is_not_told(answer: Answer) -> None:
    if "deleted" in (answer.body or {}):
        answer.body = {}


@FAULTS.says("B102", "B106")
def any_cancel_is_fine(answer: Answer) -> None:
    if answer.status == 404:
        answer.status = 200


@FAULTS.says("B049", "B083")
def tokens_are_guessed(answer: Answer) -> None:
    if "input_tokens" in (answer.body or {}):
        answer.body["input_tokens"] += 1
    for response in answer.responses():
        tokens = response["usage"]["input_tokens"]
        response["usage"]["input_tokens"] += tokens
        response["usage"]["total_tokens"] += tokens
