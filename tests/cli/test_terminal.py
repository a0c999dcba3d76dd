"""What a command shows while it works, on a terminal: one line, whole, and gone at the end."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from models import write_config
from running import run
from terminals import Shown, on_terminal
from verifying import with_these_texts

import ropetool
from ropetool.cli import notes, terminal_width

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


class Sizeless(io.StringIO):
    """A terminal whose size was never set, such as a serial line: Python 3.10 says that it has 0 columns."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_without_a_size_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Sizeless())
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((0, 0)))
    assert terminal_width() == 80
    notes(["a word " * 40])
    lines = str(sys.stderr.getvalue()).splitlines()  # type: ignore[attr-defined]
    assert (len(lines), max(map(len, lines)) <= 80) == (4, True)


@pytest.mark.parametrize("columns", [60, 120])
def test_diff(models: Path, columns: int) -> None:
    shown = on_terminal("diff", "model", "copy", cwd=models, columns=columns)
    well(shown)
    figures = [line for line in shown.drawn if " MB" in line]
    assert figures
    assert all(len(line) <= columns for line in shown.drawn if BAR in line)


@pytest.fixture(scope="module")
def extended(models: Path) -> Path:
    """Return the same folder with the model extended, and a plan of it."""
    plan = ["--dry-run", "--plan-out", models / "plan.json"]
    for more in (plan, ["-o", models / "extended"]):
        assert run("extend", models / "model", "--method", "yarn", "--factor", "4", *more).code == 0
    return models


EXTEND = ["extend", "model", "--method", "yarn", "--factor", "4", "--copy"]
WRITES = [EXTEND, ["apply", "model", "plan.json", "--copy"], ["bake", "extended", "attention-factor"]]


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize("arguments", WRITES)
def test_what_writes_counts_bytes(extended: Path, tmp_path: Path, arguments: list[str], columns: int) -> None:
    shown = on_terminal(*arguments, "-o", tmp_path / "output", cwd=extended, columns=columns)
    well(shown)
    assert any(line.startswith("model.safetensors ") and " MB" in line for line in shown.drawn)
    assert any(line.startswith("flushing to disk") for line in shown.drawn)


@pytest.mark.parametrize("columns", [60, 120])
def test_export_shows_the_check_after_writing(models: Path, tmp_path: Path, columns: int) -> None:
    shown = on_terminal("export", "model", "-o", tmp_path / "x.gguf", cwd=models, columns=columns)
    well(shown)
    drawn = dict.fromkeys(line.partition(" ━")[0].rstrip() for line in shown.drawn if BAR in line)
    stages = [stage for stage in drawn if not stage.endswith("…")]  # which gives way to a rate, on a slow machine
    assert any(line.startswith("token_embd.weight") and " MB" in line for line in shown.drawn)
    pytest.importorskip("llama_cpp")
    assert stages[-3:] == ["loading the checkpoint", "loading the file", "comparing the logits"]
    assert any(line.startswith("comparing the logits") and " tokens" in line for line in shown.drawn)


SUITE = ["--suite", "quick", "--lengths", "64,1024", "--segments", "8", "--grade", "research"]


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [(["verify", "extended", *SUITE], 60), ([*EXTEND, "--verify", "--grade", "research", "-o"], 120)],
)
def test_verify(extended: Path, tmp_path: Path, arguments: list[str], columns: int, short_texts: None) -> None:
    output = [tmp_path / "output"] if arguments[-1] == "-o" else []
    plain = {"NO_COLOR": "1"} if columns == 60 else {}
    shown = on_terminal(
        *arguments, *output, cwd=extended, columns=columns, environment=plain, before=with_these_texts("")
    )
    well(shown)
    assert ("\x1b[1;32mpass\x1b[0m: " in shown.written) == (not plain)
    assert any("─" * 20 in line for line in shown.screen)
    assert not any(mark in line for line in shown.broken for mark in ("─", "pass", "length", "│", "Trained"))
    rate = r"\d+/s" if columns == 60 else r"\d+ tokens/s"  # a narrow line names the unit once
    assert any(re.match(rf"target\S* .*/\d+ tokens +{rate} ", line) for line in shown.drawn)


def test_the_demo_as_quickstart_runs_it() -> None:
    """Extended, verified and exported, once, as a user sees it: with a note above the progress."""
    shown = on_terminal("demo", columns=120)
    well(shown)
    assert any(line.startswith("Note: certificate: ") for line in shown.screen)
    assert any(line.startswith("parity: ") for line in shown.screen)
    assert re.search(r"\n.*(keep|works|costs).*: model-yarn-8x: perplexity [+-]", shown.written)
    assert any("Is the file correct?" in line for line in shown.screen)
    assert any(line.startswith(("text ", "timing the model")) for line in shown.drawn)


NOTED = """
from ropetool import comparison
compare = comparison.compare
def noted(*arguments, **options):
    from ropetool.cli import notes
    options["progress"]("one", 1, 2)
    notes(["[bold]a note[/] " + "which is long " * 20])
    return compare(*arguments, **options)
comparison.compare = noted
"""


@pytest.mark.parametrize("columns", [60, 120])
def test_a_note_stands_above_the_progress(models: Path, columns: int) -> None:
    shown = on_terminal("diff", "model", "copy", cwd=models, columns=columns, before=NOTED)
    well(shown)
    assert shown.screen[0].startswith("Note: [bold]a note[/] which is long")
    assert "".join(shown.screen).count("which") == 20


@pytest.mark.parametrize("columns", [60, 120])
def test_the_command_of_a_note_can_be_copied(tmp_path: Path, columns: int) -> None:
    folder = write_config(tmp_path / "pickles only", (DEMO / "config.json").read_text())
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    shown = on_terminal("inspect", folder, columns=columns)
    found = re.search("safetensors:\\s+`(.+)`", shown.written)
    assert found is not None
    program, option, code, source, output = shlex.split(found[1])
    assert (program, option, source, output) == ("python", "-c", str(folder), "pickles only-safetensors")
    compile(code, "the note", "exec")


@pytest.mark.parametrize("arguments", [["diff", "model", "copy"], [*EXTEND, "-o"]])
def test_a_terminal_without_colours_or_without_a_cursor(models: Path, tmp_path: Path, arguments: list[str]) -> None:
    output = [tmp_path / "a", tmp_path / "b"] if arguments[-1] == "-o" else []
    plain = on_terminal(*arguments, *output[:1], cwd=models, environment={"NO_COLOR": "1"})
    well(plain)
    assert "\x1b[3" not in plain.written
    dumb = on_terminal(*arguments, *output[1:], cwd=models, environment={"TERM": "dumb"})
    well(dumb, bar=False)
    assert "\x1b" not in dumb.written


def test_work_of_under_a_second_shows_nothing(models: Path) -> None:
    shown = on_terminal("diff", "model", "copy", cwd=models, before="progress.DELAY = 600\nprogress.Timer = Timer")
    well(shown, bar=False)
    assert "\x1b" not in shown.written


# The work stops half done, for as long as it takes the keyboard.
STOPPED = """
import threading
from ropetool.files import linking
from ropetool.gguf_export import comparing
def stopped(*_, **__):
    print("half done", file=sys.stderr, flush=True)
    threading.Event().wait()
linking.carry = comparing.same_tables = stopped
"""


@pytest.mark.parametrize("arguments", [EXTEND, ["export", "model"]])
def test_ctrl_c_leaves_nothing(tmp_path: Path, arguments: list[str]) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    shown = on_terminal(*arguments, cwd=tmp_path, before=STOPPED, interrupt_at="half done")
    well(shown, 130)
    assert [line for line in shown.screen if line][-1] == "Interrupted."
    assert os.listdir(tmp_path) == ["model"]


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
