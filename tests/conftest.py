"""Asserts in the modules that tests share say what they compared, as those in the tests do."""

import pytest

pytest.register_assert_rewrite("support")
