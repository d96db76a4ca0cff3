"""The checks of the cases meet wrong servers: one that cannot fail is no check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import pytest
import trio
from support.bug_checks.all_checks import CHECKS
from support.case_runner import playing, read_cases
from support.wrong_app import wrong
from support.wrong_servers import ALWAYS, FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.wrong_app import WrongServer

    Verdict = Literal["accepted", "misread", "rejected"]

CASES = {case.id: case for case in read_cases()}
AT_ONCE = 4


async def verdicts(how: WrongServer, case_ids: Iterable[str]) -> dict[str, Verdict]:
    """What becomes of cases on a wrong server, by their ids: the first alone, then a few at once."""
    found: dict[str, Verdict] = {}
    few = trio.CapacityLimiter(AT_ONCE)

    async def play(case_id: str) -> None:
        async with few:
            found[case_id] = await verdict(case_id, how)

    first, *others = case_ids
    with wrong(how):
        await play(first)
        async with trio.open_nursery() as nursery:
            for case_id in others:
                nursery.start_soon(play, case_id)
    return found


async def verdict(case_id: str, how: WrongServer) -> Verdict:
    """How a case fares: ``misread`` where an answer breaks a rule for all, ``rejected`` by its own check.

    A check that stumbles, with any exception but the two that are meant, is an error.
    """
    check = CHECKS[case_id]
    setup = msgspec.structs.replace(
        check.setup,
        context_window=how.context_window or check.setup.context_window,
        settings={**check.setup.settings, **how.settings},
    )
    reached: list[Verdict] = ["misread"]
    try:
        async with playing(CASES[case_id], setup) as run:
            reached.append("rejected")
            await check.judge(run)
            reached.append("accepted")
    except* (AssertionError, ValueError):
        assert reached[-1] != "accepted", "the server was at fault, not its answers"
    return reached[-1]


@pytest.mark.parametrize("always", ALWAYS, ids=lambda server: server.name)
async def test_a_server_that_always_says_the_same(always: WrongServer) -> None:
    found = await verdicts(always, CHECKS)
    assert found.keys() == CHECKS.keys()
    assert not {case_id: said for case_id, said in found.items() if said != "rejected"}, "let through"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda server: server.name)
async def test_our_server_but_for_one_thing(fault: WrongServer) -> None:
    found = await verdicts(fault, fault.cases)
    assert not [case_id for case_id, said in found.items() if said == "accepted"], "let through"


def test_every_check_has_a_fault_to_notice() -> None:
    assert {case_id for fault in FAULTS for case_id in fault.cases} == CHECKS.keys()


async def test_the_server_without_a_fault_is_accepted() -> None:
    harmless = ALWAYS[0]._replace(answer=None)
    changed = harmless._replace(say=lambda _: None, hear=lambda _: None)
    for how in (harmless, changed):
        assert await verdicts(how, ("B005", "B026")) == {"B005": "accepted", "B026": "accepted"}
