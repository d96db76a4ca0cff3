"""Faults reported against servers of this API: each case is played here, and its check says it is absent.

``CHECKS`` has the cases that can be answered today, ``WAITING`` those that ask for something not built yet;
whoever builds it moves its cases over. ``IN_PART`` tells what a case expects beyond its own request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.bug_checks.all_checks import CHECKS, TABLES
from support.case_runner import playing, read_cases

if TYPE_CHECKING:
    from support.case_runner import Case

CASES = {case.id: case for case in read_cases()}

# fmt: off
WAITING: dict[str, str] = {
    **dict.fromkeys(("B003", "B007", "B019", "B035", "B036", "B037", "B038", "B040", "B041"), "tools"),
    **dict.fromkeys(("B044", "B045", "B047", "B052", "B053", "B060"), "tools"),
    **dict.fromkeys(("B057", "B058", "B059"), "tool choice"),
    **dict.fromkeys(("B064", "B067", "B069", "B070", "B071", "B073", "B075", "B076"), "structured output"),
    "B187": "structured output",
    "B080": "tools",
    **dict.fromkeys(("B174", "B195", "B197"), "compaction"),
    "B191": "a timing: benchmarks.serving gives the time to the first token of n streams relative to one",
    "B193": "the prompt cache",
}
# fmt: on

IN_PART: dict[str, str] = {
    "B049": "tools are counted: tools",
    "B083": "cached_tokens: the prompt cache",
    "B086": "tools are of one request: tools",
    "B090": "calls of tools that are declared: tools",
    "B093": "age: tests/core/store; flat memory over 5,000: tests/server/test_store_soak.py",
    "B118": "a call whose tool is declared: tools",
}


def test_every_case_has_a_check_or_waits() -> None:
    assert len(CASES) == 128
    assert CHECKS.keys() | WAITING.keys() == CASES.keys()
    assert not CHECKS.keys() & WAITING.keys()
    assert len(CHECKS) == sum(map(len, TABLES))
    assert IN_PART.keys() <= CHECKS.keys()


@pytest.mark.parametrize("case", [CASES[case_id] for case_id in sorted(CHECKS)], ids=lambda case: case.id)
async def test_case(case: Case) -> None:
    check = CHECKS[case.id]
    async with playing(case, check.setup) as run:
        await check.judge(run)
