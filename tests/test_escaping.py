"""Text of others as one visible line, and as one word of a shell."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ropetool
from ropetool.cli import COMMANDS
from ropetool.escaping import command, escaped, number, visible, word, words

NAMES = (
    "plain.gguf", "with blank", "$(touch x) ;a.gguf", "it's", 'say "a"', "back\\slash", "`touch x`", "*?[a]", "~", "#a", "-o",
    "a\nb", "a\r\tb", "\x1b[31mred\x1b[0m7", "\x9b31m", "a\u202eb\u2066c\u200f", "a\u2028b", "\x7f", "Modèle-日本 👍🏽",
    "'\n'\\n$x", "e\x011",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_data_becomes_one_line_that_a_terminal_only_shows(name: str) -> None:
    shown = escaped(name)
    assert not set(shown) & {*map(chr, range(32)), *map(chr, range(127, 160)), *"\u2028\u2029\u202e\u2066\u200f"}
    assert shown == name or "\\" in shown
    assert escaped(shown) == shown
    assert escaped(Path(name)) == shown


def test_what_is_printable_stays() -> None:
    text = "Modèle-日本 👍🏽 [red] 50 % \\n é שלום नमस्ते"
    assert escaped(text) == visible(text) == text


def test_lines_of_ours_keep_their_ends_and_nothing_else() -> None:
    assert visible("a\n\x1bb\rc\n") == "a\n\\x1bb\\rc\n"
    assert escaped("\n\x1b\u202e\udcff") == "\\n\\x1b\\u202e\\udcff"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_word_is_one_visible_word_for_a_shell(name: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert word(name) == escaped(word(name))
    if escaped(name) == name:
        assert shlex.split(command("x", name, "y")) == ["x", name, "y"]
    assert words(command("x", name, "y")) == ["x", name, "y"]
    if bash is None:
        pytest.skip("no bash here")
    line = f"printf '%s\\0' {command(name, 'y')}"
    done = subprocess.run([bash, "-c", line], capture_output=True, cwd=tmp_path, check=True)
    assert [os.fsdecode(part) for part in done.stdout.split(b"\0")] == [name, "y", ""]
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_no_utf8_reaches_the_shell_as_its_bytes(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    done = subprocess.run(
        [bash, "-c", f"printf %s {word(os.fsdecode(b'a' + bytes([0xFF]) + b'7'))}"], capture_output=True, check=True
    )
    assert done.stdout == b"a\xff7"


def test_half_of_a_surrogate_pair_is_spelled_too() -> None:
    """JSON may hold one; no file can have such a name, but a refusal names it."""
    assert word("a\ud800.safetensors") == "$'a\\355\\240\\200.safetensors'"


def test_a_long_line_is_read_in_linear_time() -> None:
    """Letters that are looked at, by the size of the line: twice for twice as many words."""

    class Counted(str):
        copied = 0

        def __getitem__(self, key: Any) -> str:
            found = super().__getitem__(key)
            Counted.copied += len(found)
            return found

    line = Counted("a " * 20_000)
    assert len(words(line)) == 20_000
    assert Counted.copied <= 2 * len(line)


def test_what_is_no_line_of_a_shell() -> None:
    assert words("") == []
    assert words("a 'b c'\\'d\"e\" $'f\\'\\101\\xg'") == ["a", "b c'de", "f'Axg"]
    for line in ("'a", 'a "b', "$'a\\'"):
        with pytest.raises(ValueError, match="no word"):
            words(line)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4, "4"), (4.0, "4"), (1e6, "1000000"), (0.1 + 0.2, "0.30000000000000004"), (12.3456789, "12.3456789"), (-0.0, "0"),
        (1e18, "1e+18"), (1e-18, "1e-18"), (1e300, "1e+300"), (float("inf"), "inf"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_a_number_keeps_its_digits(value: float, text: str) -> None:
    assert number(value) == text
    assert float(text) == value or value != value


def test_a_path_is_never_taken_for_an_option() -> None:
    assert command("ropetool", "inspect", Path("-o.gguf"), "-o") == "ropetool inspect ./-o.gguf -o"


# --- the code


PROGRAMS = re.compile(
    rf"(ropetool ({'|'.join(COMMANDS)})|mkdir -p|split --[a-z-]+=.*|gunzip|unxz|vllm serve|python -m|llama-[a-z]+) "
)


def bare(source: str) -> list[str]:
    """Return the f-strings that begin like a command line, into which something goes unquoted, and imports of shlex."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name == "shlex" for alias in node.names):
            found.append("shlex")
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            filled = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            quoted = all(isinstance(v, ast.Call) and ast.unparse(v.func) in ("word", "command") for v in filled)
            if PROGRAMS.match(str(node.values[0].value)) and not quoted:
                found.append(ast.unparse(node))
    return found


def test_command_lines_are_made_by_the_one_that_quotes() -> None:
    modules = sorted(Path(ropetool.__file__).parent.rglob("*.py"))
    found = {str(path): bare(path.read_text(encoding="utf-8")) for path in modules if path.name != "escaping.py"}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_bare_command_line_is_seen() -> None:
    assert bare('try_ = f"mkdir -p {parent}"')
    assert bare('f"ropetool inspect {path}, which shows it"')
    assert bare("def f():\n    import shlex")
    assert not bare('f"ropetool inspect {word(path)}"; f"ropetool methods"; command("ropetool", "inspect", path)')
