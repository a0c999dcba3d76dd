"""Text as people see it: names and values as one visible line, words of a command line for a shell, results in print().

Text from a file, a server or a user is data. A name may contain line ends, colours and quotes.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ropetool.errors import InvalidRope, MissingDependency

# C0 and C1; marks and overrides of the writing direction; line and paragraph separators; bytes that were no UTF-8.
_CONTROL = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_DATA = re.compile(f"[{_CONTROL}]")
_IN_LINES = re.compile(f"(?!\n)[{_CONTROL}]")
WHOLE = 1e16  # from here on a float has no digits for the units
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: object) -> str:
    """Return data as it may stand in a line: control characters as escapes, line ends too, all else as it is."""
    return _IN_DATA.sub(_escape, str(text))


def visible(text: str) -> str:
    """Return ready-made lines for a terminal: their line ends stay, any other control character is an escape."""
    return _IN_LINES.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMED.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def word(value: str | os.PathLike[str]) -> str:
    """Return one word of a command line, which a shell takes for exactly this text, on one visible line.

    Control characters, and bytes that are no UTF-8, are spelled in the $'...' of POSIX 2024, bash, zsh and ksh. A path
    that begins with a dash gets ./ in front, so that no program takes it for an option.
    """
    text = os.fspath(value)
    if isinstance(value, Path) and text.startswith("-"):
        text = f"./{text}"
    if not _IN_DATA.search(text):
        return shlex.quote(text)
    spelled = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _IN_DATA.sub(_spell, spelled) + "'"


def _spell(found: re.Match[str]) -> str:
    # Octal has at most three digits, so that a digit behind it is not taken for a part of it.
    try:
        spelled = found[0].encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair, from JSON: no file can have such a name
        spelled = found[0].encode("utf-8", "surrogatepass")
    return _NAMED.get(found[0]) or "".join(f"\\{byte:03o}" for byte in spelled)


def command(*words: str | os.PathLike[str]) -> str:
    """Return a command line of these words."""
    return " ".join(map(word, words))


def install_line(extra: str) -> str:
    """Return the command that installs the packages of an extra for this Python.

    It names the packages and not `ropetool[EXTRA]`: an index may have a different project of that name.
    """
    import sys
    from importlib import metadata, util

    try:
        wanted = [line.partition(";") for line in metadata.requires("ropetool") or ()]
    except metadata.PackageNotFoundError:  # run from its sources
        return f"install the packages that pyproject.toml lists under the extra {extra}"
    packages = [package.strip() for package, _, marker in wanted if f'extra == "{extra}"' in marker.replace("'", '"')]
    if "pipx" in Path(sys.prefix).parts:
        return command("pipx", "inject", "ropetool", *packages)
    if util.find_spec("pip") is None:  # as in the environments of uv
        return command("uv", "pip", "install", "--python", sys.executable, *packages)
    return command(sys.executable, "-m", "pip", "install", *packages)


def number(value: float) -> str:
    """Return a number as a command line takes it, with all its digits; a whole one without a point."""
    whole = float(value).is_integer() and abs(value) < WHOLE
    return str(int(value)) if whole else repr(value)


# A part of a word: in $'...', in quotes, behind a backslash, or bare.
_PART = r"""\$'(?:[^'\\]|\\.)*'|'[^']*'|"[^"\\]*"|\\.|[^\s'"\\$]|\$(?!')"""
_WORD = re.compile(rf"\s*((?:{_PART})+)", re.DOTALL)
_ESCAPE = re.compile(r"([^\\]*)(?:\\(?:([0-7]{1,3})|(.))|$)", re.DOTALL)
_BYTES = {"n": b"\n", "r": b"\r", "t": b"\t"}


def words(line: str) -> list[str]:
    """Return the words of a command line that `command` made, or of one that is quoted like it.

    Raises: ValueError for any other.
    """
    found, end, all_of_it = [], 0, len(line.rstrip())
    while end < all_of_it:
        match = _WORD.match(line, end)
        if match is None:
            raise ValueError(f"no word of a shell at letter {end}")
        found.append("".join(map(_read, re.findall(_PART, match[1], re.DOTALL))))
        end = match.end()
    return found


def _read(part: str) -> str:
    if not part.startswith("$'"):
        return part[1:-1] if part[0] in "'\"" else part[-1]
    raw = b""
    for plain, octal, one in _ESCAPE.findall(part[2:-1]):
        raw += plain.encode("utf-8", "surrogateescape")
        raw += bytes([int(octal, 8)]) if octal else _BYTES.get(one, one.encode())
    return raw.decode("utf-8", "surrogateescape")


# --- numbers in options: ASCII digits without blanks or the underscores of Python
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|nan)")
_WHOLE = re.compile(r"[+-]?[0-9]+")


def read_number(text: str) -> float:
    """Return the number that a text like 4, 0.5 or 1e6 spells. Raises: ValueError."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def read_whole(text: str) -> int:
    """Return the whole number that a text like 32768 spells. Raises: ValueError."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


_LENGTH = re.compile(r"([+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?)([kKmM]?)")
_UNITS = {"": 1, "k": 1024, "m": 1024**2}


def read_length(length: int | str, where: str = "") -> int:
    """Return a number of tokens; a text may be 32768, 32k or 1M. Raises: InvalidRope for another text."""
    from fractions import Fraction

    if not isinstance(length, str):
        return length
    parts = _LENGTH.fullmatch(length.strip(" "))
    tokens = Fraction(parts[1]) * _UNITS[parts[2].lower()] if parts else None
    if tokens is None or tokens.denominator != 1:
        quoted = repr(length if len(length) <= 40 else f"{length[:40]}...")
        raise InvalidRope(
            f"{quoted} is not a length in tokens; write 32768, 32k or 1M, where k is 1024 and M 1024 x 1024",
            where=where,
        )
    return int(tokens)


class Shown:
    """A result that prints as a sentence, and in a notebook as its command prints it."""

    def __str__(self) -> str:
        return str(_report().sentence(self))

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(_report().text(self))}</pre>"


class Tabular(Shown):
    """A result whose figures form a table."""

    def rows(self) -> Iterable[Mapping[str, Any]]:
        """Return the rows of the table; the keys are its columns."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises: MissingDependency without pandas."""
        try:
            import pandas
        except ImportError:
            raise MissingDependency("pandas is not installed", where="to_pandas", try_=install_line("pandas")) from None
        return pandas.DataFrame(list(self.rows()))


def _report() -> Any:
    """Return what words the results. It is loaded when something is printed: results import nothing of reports."""
    return importlib.import_module("ropetool.report.printed")
