"""What a command shows while it works, on a terminal: one line, whole, and gone at the end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from terminals import Shown, on_terminal

import ropetool

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
BAR = "━"


def well(shown: Shown, code: int = 0, *, bar: bool = True) -> None:
    """Assert that the command ended so, and that its progress was shown in whole lines and is gone."""
    assert shown.code == code, shown.written
    assert "Traceback" not in shown.written
    assert (BAR in shown.written) is bar, shown.drawn
    assert not any(BAR in line for line in (*shown.broken, *shown.screen))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and a copy of it."""
    root = tmp_path_factory.mktemp("terminal")
    for name in ("model", "copy"):
        shutil.copytree(DEMO, root / name)
    return root


@pytest.mark.parametrize("columns", [60, 120])
def test_diff(models: Path, columns: int) -> None:
    shown = on_terminal("diff", "model", "copy", cwd=models, columns=columns)
    well(shown)
    figures = [line for line in shown.drawn if " MB" in line]
    assert figures
    assert all(len(line) <= columns for line in shown.drawn if BAR in line)


NAMED = """
from contextlib import suppress
from ropetool import comparison
def compare(a, b, *, progress):
    import time
    progress({name!r}, 5, 100)
    time.sleep(0.3)
    raise KeyboardInterrupt
comparison.compare = compare
"""


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize(
    ("name", "shown_as"),
    [
        ("[bold]x[/]", "[bold]x[/]"),
        ("[/nothing]", "[/nothing]"),
        ("\x1b[2Jred\r\n\x07", "\\x1b[2Jred\\r\\n\\x07"),
        ("model.layers.0.self_attn.q_proj.weight" * 4, "model.layers"),
        ("重み" * 60, "重み"),
    ],
)
def test_a_name_is_shown_as_it_is(models: Path, columns: int, name: str, shown_as: str) -> None:
    shown = on_terminal("diff", "model", "copy", cwd=models, columns=columns, before=NAMED.format(name=name))
    well(shown, 130)
    assert any(line.startswith(shown_as) for line in shown.drawn)
    assert "".join(shown.screen) == "Interrupted."
