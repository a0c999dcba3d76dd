"""Reading of a JSON object in a file one member at a time, so that only one member is in memory.

This is for the two files that may be large: the header of a safetensors file, and a shard index.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from ropetool.errors import CorruptFile
from ropetool.files.hf.jsontext import unique

MAX_MEMBER = 2 << 20  # characters; the longest known member, a __metadata__, has a tenth of this
MAX_BESIDE = 64  # members besides the requested one; an index has two in total
MAX_NAME = 1 << 10  # characters; the longest known tensor names have a tenth of this
_CHUNK = 1 << 16
_SPACE = re.compile(r"[ \t\n\r]*")
_SPACES = " \t\n\r"
_NAME = re.compile(r'"([^"\\\x00-\x1f]*)":')


class Members:
    """The next `length` bytes of a file as JSON text, read on demand.

    where: the file, for messages.
    what: the start of messages.

    Call `end` to check the end of the text.
    """

    def __init__(self, file: BinaryIO, length: int, where: str, what: str) -> None:
        self._file = file
        self._left = length
        self._where = where
        self._what = what
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        decoder: Any = json.JSONDecoder(object_pairs_hook=lambda pairs: unique(pairs, where))
        self._scan = decoder.scan_once
        self._text = ""
        self._at = 0
        self._passed = 0  # characters dropped before _text

    def begins_with(self, char: str) -> bool:
        """Return whether the text begins with this character."""
        return (bool(self._text) or self._more()) and self._text.startswith(char)

    def members(self) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of the object at this position. The caller checks for duplicate names.

        Raises: CorruptFile.
        """
        for _ in self._opened():
            more = True
            while more:
                name, value, more = self._plain_member() or self._member()
                if len(name) > MAX_NAME:
                    raise self.error(f"has a name of {len(name):,} characters; ropetool reads at most {MAX_NAME:,}")
                yield name, value

    def members_of(self, member: str) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of one member, which is an object, of the object at this position.

        Raises: CorruptFile.
        """
        seen: set[str] = set()
        for _ in self._opened():
            more = True
            while more:
                name = self._name()
                if name in seen:
                    raise self.error(f"names {name!r} twice")
                if len(seen) == MAX_BESIDE:
                    raise self.error(f"has more than {MAX_BESIDE} members besides {member!r}")
                seen.add(name)
                if name == member and self._peek() == "{":
                    yield from self.members()
                else:
                    self._value()
                more = self._ends_with_more()

    def end(self) -> None:
        """Raise CorruptFile if anything other than spaces follows."""
        if self._peek():
            raise self.error(f"has {self._peek()!r} after its object; only spaces may follow")

    def error(self, message: str) -> CorruptFile:
        """Return the error for the last position."""
        return CorruptFile(f"{self._what}{message}, at character {self._passed + self._at}", where=self._where)

    def _opened(self) -> Iterator[None]:
        """Step into an object. Yield once if it has members."""
        self._take("{")
        if self._peek() == "}":
            self._take("}")
        else:
            yield

    def _member(self) -> tuple[str, Any, bool]:
        """Return the next name and value, and True if more members follow."""
        name = self._name()
        return name, self._value(), self._ends_with_more()

    def _plain_member(self) -> tuple[str, Any, bool] | None:
        """Return the same as `_member` in half the time, or None if the loaded text is not plain or not long enough."""
        head = _NAME.match(self._text, self._at)
        if head is None:
            return None
        try:
            value, at = self._scan(self._text, head.end())
        except (ValueError, StopIteration, RecursionError):
            return None
        char = self._text[at : at + 1]
        if char not in (",", "}"):
            return None
        self._at = at + 1
        return head[1], value, char == ","

    def _name(self) -> str:
        if self._peek() != '"':
            raise self.error(f"has {self._peek()!r} instead of a name in quotes")
        name: str = self._value()
        self._take(":")
        return name

    def _ends_with_more(self) -> bool:
        more = self._peek() == ","
        self._take(",}")
        return more

    def _peek(self) -> str:
        """Return the next character that is not a space, or an empty text at the end."""
        while True:
            char = self._text[self._at : self._at + 1]
            if char in _SPACES:  # also at the end, where it is empty
                self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
                char = self._text[self._at : self._at + 1]
            if char or not self._more():
                return char

    def _take(self, allowed: str) -> None:
        char = self._peek()
        if char not in allowed or not char:
            raise self.error(f"has {char!r} where {' or '.join(map(repr, allowed))} belongs")
        self._at += 1

    def _value(self) -> Any:
        """Return the JSON value at this position."""
        self._peek()
        while True:
            try:
                value, at = self._scan(self._text, self._at)
                if at < len(self._text) or not isinstance(value, (int, float)) or not self._more():
                    self._at = at
                    return value  # otherwise a number at the end of the loaded text may continue
            except RecursionError:
                raise self.error("is nested too deeply") from None
            except (ValueError, StopIteration) as error:
                if len(self._text) - self._at >= MAX_MEMBER:
                    raise self.error(f"has an entry of more than {MAX_MEMBER:,} characters, or a broken one") from None
                if not self._more():
                    raise self.error(f"is not valid JSON ({getattr(error, 'msg', 'Expecting value')})") from None

    def _more(self) -> bool:
        if not self._left:
            return False
        waiting = len(self._text) - self._at
        # The size doubles, so that a long entry is parsed only log n times.
        piece = self._file.read(min(self._left, max(_CHUNK, min(waiting, MAX_MEMBER - waiting))))
        self._left = self._left - len(piece) if piece else 0
        try:
            text = self._utf8.decode(piece, final=not self._left)
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 ({error.reason})") from None
        self._passed += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        return True
