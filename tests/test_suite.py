"""The tests themselves: what they leave behind, so that two of them can run side by side."""

from __future__ import annotations

import pytest

from ropetool import machine


def test_no_test_writes_into_the_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert machine.cache().is_relative_to(tmp_path_factory.getbasetemp())
