"""Reading of the mapped start of a file in steps. Each step is checked against the end of the file."""

from __future__ import annotations

import struct
from pathlib import Path

from ropetool.errors import CorruptFile

I32 = struct.Struct("<i")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
I64 = struct.Struct("<q")

MAX_STRINGS = 1 << 22  # in all lists of a file, because each takes a step; the largest known tokenizers have 800,000
AGAIN = "download or convert the file again"


class HeaderGoesOn(CorruptFile):
    """The header does not end within the given bytes, but the file has more."""


class Cursor:
    """A position in `view`, the first bytes of a file of `file_size`."""

    def __init__(self, view: memoryview, file_size: int, path: Path) -> None:
        self.view = view
        self.position = 0
        self._file_size = file_size
        self._path = path
        self._place = "the header"
        self._place_at = 0
        self._strings = 0

    def enter(self, place: str, at: int) -> None:
        """Name the part of the header that is read next, for error messages."""
        self._place = place
        self._place_at = at

    def error(self, message: str, *, try_: str = "") -> CorruptFile:
        """Return the error for the current part of the header."""
        return CorruptFile(f"{self._place} at byte {self._place_at} {message}", where=str(self._path), try_=try_)

    def number(self, packing: struct.Struct) -> int:
        """Return the next integer of this packing."""
        number: int = packing.unpack_from(self.view, self.skip(packing.size))[0]
        return number

    def skip(self, nbytes: int, what: str = "") -> int:
        """Skip some bytes and return their start. If they exceed the file, the error message contains `what`."""
        start = self.position
        if nbytes > len(self.view) - start:
            raise self.beyond(start + nbytes, what)
        self.position = start + nbytes
        return start

    def text(self, longest: int, rule: str) -> str:
        """Return the next string as a name of at most `longest` bytes. `rule` ends the message about a longer one."""
        length = self.number(U64)
        what = f"has a name of {length} bytes"
        if length > self._file_size:
            raise self.beyond(length, what)
        if length > longest:
            raise self.error(f"{what}; {rule}")
        start = self.skip(length, what)
        return str(self.view[start : self.position], "utf-8", "surrogateescape")

    def skip_strings(self, count: int) -> None:
        """Skip strings by their lengths. Creating an object for each would take ten times as long."""
        self._strings += count if self.position + 8 * count <= len(self.view) else 0  # else the loop ends soon
        if self._strings > MAX_STRINGS:
            raise self.error(f"has {count:,} strings; ropetool reads at most {MAX_STRINGS:,} per file")
        length_at, view, position, fitting = U64.unpack_from, self.view, self.position, 0
        try:
            for fitting in range(count):  # noqa: B007 (used after the loop)
                position += 8 + length_at(view, position)[0]
            fitting = count
        except (struct.error, OverflowError):  # the position is beyond the view
            position += 8
        if position > len(view):
            raise self.beyond(position, f"has {count} strings, at most {fitting} complete")
        self.position = position

    def beyond(self, end: int, what: str = "") -> CorruptFile:
        """Return the error for bytes that reach to `end`, which is beyond the view."""
        if end <= self._file_size:
            message = f"{self._place} at byte {self._place_at} does not end within {len(self.view)} bytes"
            return HeaderGoesOn(f"{message}, more than any model needs", where=str(self._path))
        ends = f"the file ends at byte {self._file_size}"
        return self.error(f"{what}, but {ends}" if what else f"is cut off: {ends}", try_=AGAIN)
