"""Text for output: names and values as one visible line, words of a command line, and results in print().

Text from a file, a server or a user is data. A name may contain line ends, colours and quotes.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropetool.errors import InvalidRope, MissingDependency

# C0 and C1; marks and overrides of the writing direction; line and paragraph separators; bytes that are not UTF-8.
_CONTROL = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_DATA = re.compile(f"[{_CONTROL}]")
_IN_LINES = re.compile(f"(?!\n)[{_CONTROL}]")
WHOLE = 1e16  # above this, a float cannot represent every whole number
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(text: object) -> str:
    """Return data as one visible line, with control characters and line ends as escapes."""
    return _IN_DATA.sub(_escape, str(text))


def visible(text: str) -> str:
    """Return lines for a terminal. Line ends stay; all other control characters become escapes."""
    return _IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMED.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def word(value: str | os.PathLike[str]) -> str:
    """Return one word of a command line, quoted for a shell, as one visible line.

    Control characters and bytes that are not UTF-8 become escapes in $'...', which POSIX 2024, bash, zsh and ksh read.
    A Path that begins with a dash gets the prefix ./, so that no program reads it as an option.
    """
    text = os.fspath(value)
    if isinstance(value, Path) and text.startswith("-"):
        text = f"./{text}"
    if not _IN_DATA.search(text):
        return shlex.quote(text)
    spelled = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _IN_DATA.sub(_spell, spelled) + "'"


def _spell(match: re.Match[str]) -> str:
    # Octal has at most three digits, so a digit after the escape does not become a part of it.
    try:
        spelled = match[0].encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON: no file can have such a name
        spelled = match[0].encode("utf-8", "surrogatepass")
    return _NAMED.get(match[0]) or "".join(f"\\{byte:03o}" for byte in spelled)


def command(*words: str | os.PathLike[str]) -> str:
    """Return a command line from these words."""
    return " ".join(map(word, words))


def install_line(extra: str) -> str:
    """Return the command that installs the packages of an extra for this Python.

    The command lists the packages, not `ropetool[EXTRA]`, because an index may have a different project with that name.
    """
    import sys
    from importlib import metadata, util

    try:
        requirements = [line.partition(";") for line in metadata.requires("ropetool") or ()]
    except metadata.PackageNotFoundError:  # ropetool runs from its sources
        return f"install the packages that pyproject.toml lists under the extra {extra}"
    packages = [
        package.strip() for package, _, marker in requirements if f'extra == "{extra}"' in marker.replace("'", '"')
    ]
    if "pipx" in Path(sys.prefix).parts:
        return command("pipx", "inject", "ropetool", *packages)
    if util.find_spec("pip") is None:  # as in the environments of uv
        return command("uv", "pip", "install", "--python", sys.executable, *packages)
    return command(sys.executable, "-m", "pip", "install", *packages)


def number(value: float) -> str:
    """Return a number for a command line, with all its digits. A whole number has no decimal point."""
    whole = float(value).is_integer() and abs(value) < WHOLE
    return str(int(value)) if whole else repr(value)


# A part of a word: in $'...', in quotes, after a backslash, or bare.
_PART = r"""\$'(?:[^'\\]|\\.)*'|'[^']*'|"[^"\\]*"|\\.|[^\s'"\\$]|\$(?!')"""
_WORD = re.compile(rf"\s*((?:{_PART})+)", re.DOTALL)
_ESCAPE = re.compile(r"([^\\]*)(?:\\(?:([0-7]{1,3})|(.))|$)", re.DOTALL)
_BYTES = {"n": b"\n", "r": b"\r", "t": b"\t"}


def words(line: str) -> list[str]:
    """Return the words of a command line from `command`, or of a line with the same quoting.

    Raises: ValueError if the line has other quoting.
    """
    result, end, all_of_it = [], 0, len(line.rstrip())
    while end < all_of_it:
        match = _WORD.match(line, end)
        if match is None:
            raise ValueError(f"no word of a shell at letter {end}")
        result.append("".join(map(_read, re.findall(_PART, match[1], re.DOTALL))))
        end = match.end()
    return result


def with_options(line: Sequence[str], changes: Mapping[str, str | None]) -> list[str]:
    """Return the words of a command line with options of one value each changed, added, or removed by None."""
    kept: list[str] = []
    end = _end_of_options(line)
    following = iter(line[:end])
    for each in following:
        if each in changes:
            next(following, None)  # its value
        elif each.partition("=")[0] not in changes:
            kept.append(each)
    added = [each for name, value in changes.items() if value is not None for each in (name, value)]
    return [*kept, *added, *line[end:]]


def with_flag(line: Sequence[str], flag: str) -> list[str]:
    """Return the words of a command line with one more flag, in front of `--`."""
    end = _end_of_options(line)
    return [*line[:end], flag, *line[end:]]


def _end_of_options(line: Sequence[str]) -> int:
    """Return the index of `--`, after which no word is an option, or the number of words."""
    return line.index("--") if "--" in line else len(line)


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
    """Return the number in a text such as 4, 0.5 or 1e6. Raises: ValueError."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def read_whole(text: str) -> int:
    """Return the whole number in a text such as 32768. Raises: ValueError."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


_LENGTH = re.compile(r"([+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?)([kKmM]?)")
_UNITS = {"": 1, "k": 1024, "m": 1024**2}


def read_length(length: int | str, where: str = "") -> int:
    """Return a number of tokens from a number, or from a text such as 32768, 32k or 1M.

    Raises: InvalidRope for any other text.
    """
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
    """A result that prints as a sentence. In a notebook it shows the output of its command."""

    def __str__(self) -> str:
        return str(_report().sentence(self))

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(_report().text(self))}</pre>"


class Tabular(Shown):
    """A result with a table of figures."""

    def rows(self) -> Iterable[Mapping[str, Any]]:
        """Return the rows of the table, each with its columns as keys."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises: MissingDependency if pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise MissingDependency("pandas is not installed", where="to_pandas", try_=install_line("pandas")) from None
        return pandas.DataFrame(list(self.rows()))


def _report() -> Any:
    """Return the module that describes results in words.

    It is imported when a result is printed, because results are in a lower layer than reports.
    """
    return importlib.import_module("ropetool.report.printed")
