"""Asserts in the modules that these tests share say what they compared."""

import pytest

pytest.register_assert_rewrite("support.served", "support.case_runner", "support.bug_checks")
