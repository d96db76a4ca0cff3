"""The checks of all cases, by case id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.bug_checks import chains, generation, jobs, requests, responses, stores, streams

if TYPE_CHECKING:
    from support.bug_checks.check import Check

TABLES = (
    streams.CHECKS,
    responses.CHECKS,
    requests.CHECKS,
    generation.CHECKS,
    chains.CHECKS,
    stores.CHECKS,
    jobs.CHECKS,
)
CHECKS: dict[str, Check] = {case_id: check for table in TABLES for case_id, check in table.items()}
