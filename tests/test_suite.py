"""The tests themselves: what they leave behind, so that two of them can run side by side, and which of them are long."""

from __future__ import annotations

from pathlib import Path

import pytest
import slow

from ropetool import machine

TESTS = Path(__file__).parent


def test_no_test_writes_into_the_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert machine.cache().is_relative_to(tmp_path_factory.getbasetemp())


def test_every_test_of_the_oracles_has_their_marker(request: pytest.FixtureRequest) -> None:
    for path in (TESTS / "oracle").rglob("test_*.py"):
        assert "oracle" in slow.markers(f"{path.relative_to(TESTS).as_posix()}::test_x"), path
    for item in request.session.items:
        assert item.path.parent != TESTS / "oracle" or item.get_closest_marker("oracle"), item.nodeid


def test_what_is_marked_is_there() -> None:
    for places in slow.LONG.values():
        for place in places:
            file, _, name = place.partition("::")
            assert (TESTS / file).exists(), place
            assert not name or f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8"), place


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cli/test_a.py::test_x[b/c::d]", ["kill"]), ("cli/test_a.py::test_xy", []), ("cli/test_ab.py::test_x", []),
        ("formats/test_b.py::test_x", ["engine"]), ("oracle/test_b.py::test_x", ["oracle"]), ("oracles/test_b.py::test_x", []),
    ],
)  # fmt: skip
def test_a_marker_belongs_to_a_folder_a_file_or_a_test(
    name: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"oracle": ("oracle",), "kill": ("cli/test_a.py::test_x",), "engine": ("formats/test_b.py",)}
    monkeypatch.setattr(slow, "LONG", places)
    assert list(slow.markers(name)) == expected
