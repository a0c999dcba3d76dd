"""Edits of JSON as text. All characters outside an edit stay unchanged."""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, Final

from ropetool.errors import CorruptFile, PlanMismatch

MAX_DEPTH = 100

BOM = "\ufeff"
_SPACE = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,?[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder()


class _Absent(Enum):
    """The type of ABSENT. As an Enum with one member, copies and pickles of it stay the same object."""

    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT


@dataclass(frozen=True)
class JsonLimits:
    """The limits of a JSON file, so that a hostile file cannot use much memory or time.

    chars: the number of characters.
    values: the number of values.
    """

    chars: int
    values: int


# A config has a few kilobytes. Refusing the worst text of this size takes at most 200 MB of memory and 2 seconds.
SMALL = JsonLimits(8 << 20, 200_000)
# The index of 250,000 tensors, the limit, has 27 MB. Only edits of an index read it as text.
LARGE = JsonLimits(48_000_000, 600_000)


@dataclass(frozen=True)
class Edit:
    """A change of one key.

    path: the keys that lead to the value.
    old: the value before; ABSENT adds the key.
    new: the value after; ABSENT removes the key.
    after: the existing key to insert a new key after; None means the last one.
    """

    path: tuple[str, ...]
    old: Any
    new: Any
    after: str | None = None


def parse_object(text: str, where: str, limits: JsonLimits = SMALL) -> dict[str, Any]:
    """Return the object in a JSON text. A byte order mark at its start is allowed.

    Raises: CorruptFile if the text is malformed, has a key twice, is not an object or exceeds a limit.
    """
    openers = check_size(text, where, limits)
    try:
        value = json.loads(text.removeprefix(BOM), object_pairs_hook=lambda pairs: unique(pairs, where))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise CorruptFile(f"is not valid JSON: {error.msg} at {place}", where=where) from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError:  # Python's own limit, against quadratic conversion
        raise CorruptFile("contains an integer with too many digits", where=where) from None
    if not isinstance(value, dict):
        raise CorruptFile(f"contains {shown(value)} instead of a JSON object", where=where)
    if openers > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise _too_deep(where)
    return value


def check_size(text: str, where: str, limits: JsonLimits) -> int:
    """Return the number of opening brackets in a text. Raises: CorruptFile if the text exceeds the limits."""
    if len(text) > limits.chars:
        raise CorruptFile(f"has {len(text):,} characters; ropetool reads at most {limits.chars:,}", where=where)
    # Each comma and bracket starts at most one value. Commas in strings also count, but the limit is generous.
    openers = text.count("{") + text.count("[")
    if openers + text.count(",") > limits.values:
        raise CorruptFile(f"contains more than {limits.values:,} values", where=where)
    return openers


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector in the body.

    It would scan a million small objects repeatedly, which takes a third of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return the pairs as a dict.

    Raises: CorruptFile if a key occurs twice, because readers differ in the value that they use.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        raise twice(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1), where)
    return members


def twice(key: str, where: str) -> CorruptFile:
    """Return the error about a key that occurs twice in one object."""
    return CorruptFile(f"contains the key {key!r} twice in one object", where=where)


def _too_deep(where: str) -> CorruptFile:
    return CorruptFile(f"is nested more than {MAX_DEPTH} levels deep", where=where)


_NESTED = frozenset({dict, list})  # the types of parsed JSON that contain other values


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value] if type(value) in _NESTED else []
    for _ in range(limit):
        nested = chain.from_iterable(node.values() if type(node) is dict else node for node in level)
        level = [child for child in nested if type(child) in _NESTED]
        if not level:
            return False
    return True


def apply_edits(text: str, edits: Iterable[Edit], where: str, limits: JsonLimits = SMALL) -> str:
    """Return the text after the edits, in this order.

    Raises: PlanMismatch if a value is not the `old` of its edit; CorruptFile if the text is not a JSON object.
    """
    parse_object(text, where, limits)
    for edit in edits:
        text = _apply(text, edit, where)
    return text


def _apply(text: str, edit: Edit, where: str) -> str:
    if not edit.path:
        raise _mismatch("an edit does not name a key", where)
    place = f"{where}: {'.'.join(edit.path)}"
    root = _root(text)
    holder = _locate(text, root, edit.path[:-1], place)
    key = edit.path[-1]
    member = holder.get(key)
    current = ABSENT if member is None else member.value
    if not same(current, edit.old):
        raise _mismatch(f"is {shown(current)}, but the plan was made for {shown(edit.old)}", place)
    if same(edit.new, edit.old):
        return text  # a number keeps its spelling
    style = _Style.of(text, root)
    if member is None:
        return _inserted(text, holder, edit, style, place)
    if edit.new is ABSENT:
        return _removed(text, holder, member)
    return _replaced(text, holder, member, edit.new, style)


def same(left: Any, right: Any) -> bool:
    """Return whether two parsed values are the same JSON. 1, 1.0 and true differ; the order of keys does not matter."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)  # so that NaN equals NaN, and -0.0 differs from 0.0
    return bool(left == right)


def _mismatch(message: str, place: str) -> PlanMismatch:
    return PlanMismatch(message, where=place, try_="make the plan again from this file")


def is_text(value: Any) -> bool:
    """Return whether this is text that a file can store.

    JSON can escape half of a surrogate pair, which a file cannot store.
    """
    return isinstance(value, str) and (value.isascii() or _SURROGATE.search(value) is None)


def shown(value: Any) -> str:
    """Return a value as text for a message, with at most 80 characters."""
    if value is ABSENT:
        return "absent"
    if _deeper_than(value, 4):
        return "deeply nested"
    text = json.dumps(value, default=repr)  # an answer of vLLM in Python may contain other values
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- positions in the text


@dataclass(frozen=True)
class _Member:
    key: str
    start: int  # of the key
    colon: str  # from the end of the key to the value
    begin: int  # of the value
    end: int  # of the value
    value: Any


@dataclass(frozen=True)
class _Object:
    begin: int
    end: int
    members: Sequence[_Member]

    def get(self, key: str) -> _Member | None:
        return next((member for member in self.members if member.key == key), None)


def _behind(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


def _scan(text: str, begin: int) -> _Object:
    """Return the members of the object that starts at `begin`. The text must be valid JSON."""
    members = []
    at = _behind(_SPACE, text, begin + 1)
    while text[at] != "}":
        key, key_end = _DECODER.raw_decode(text, at)
        value_at = _behind(_COLON, text, key_end)
        value, end = _DECODER.raw_decode(text, value_at)
        members.append(_Member(key, at, text[key_end:value_at], value_at, end, value))
        at = _behind(_COMMA, text, end)
    return _Object(begin, at + 1, members)


def _root(text: str) -> _Object:
    return _scan(text, _behind(_SPACE, text, len(BOM) if text.startswith(BOM) else 0))


def _locate(text: str, root: _Object, path: tuple[str, ...], place: str) -> _Object:
    holder = root
    for depth, key in enumerate(path, 1):
        member = holder.get(key)
        value = ABSENT if member is None else member.value
        if member is None or not isinstance(value, dict):
            raise _mismatch(f"{'.'.join(path[:depth])} is {shown(value)}, but the plan was made for an object", place)
        holder = _scan(text, member.begin)
    return holder


# --- writing


@dataclass(frozen=True)
class _Style:
    """The format of the file, from its outermost object. Inner objects may differ.

    newline: the line end.
    unit: one step of indentation; None for a file on one line.
    colon: the text between a key and its value.
    ascii_only: whether other characters are escaped.
    """

    newline: str
    unit: str | None  # one step of indentation; None where the file is on one line
    colon: str
    ascii_only: bool

    @classmethod
    def of(cls, text: str, root: _Object) -> _Style:
        first = text[root.begin + 1 : root.members[0].start if root.members else root.end - 1]
        colon = root.members[0].colon if root.members else ": "
        return cls(
            newline="\r\n" if "\r\n" in text else "\n",
            unit=(first.rpartition("\n")[2] if root.members else "  ") if "\n" in first else None,
            colon=colon if "\n" not in colon else ": ",
            ascii_only=text.removeprefix(BOM).isascii(),
        )

    def render(self, value: Any, indent: str, *, one_line: bool) -> str:
        """Return `value` as text for a line with this indentation."""
        # A lone surrogate has no UTF-8 form; it can only be written as an escape.
        ascii_only = self.ascii_only or _SURROGATE.search(json.dumps(value, ensure_ascii=False)) is not None
        if one_line:
            return json.dumps(value, ensure_ascii=ascii_only, separators=("," + self.gap, self.colon))
        unit = "  " if self.unit is None else self.unit
        lines = json.dumps(value, ensure_ascii=ascii_only, indent=unit, separators=(",", self.colon))
        return lines.replace("\n", self.newline + indent)  # a JSON string never contains a line end

    @property
    def gap(self) -> str:
        """Return the text after a comma within a line."""
        return " " if self.colon.endswith(" ") else ""


def _gap_before(text: str, member: _Member) -> str:
    bare = text[: member.start].rstrip(" \t\r\n")
    return text[len(bare) : member.start]


def _indent_at(text: str, at: int) -> str:
    line = text.rfind("\n", 0, at) + 1
    return re.match(r"[ \t]*", text[line:at]).group()  # type: ignore[union-attr]


def _replaced(text: str, holder: _Object, member: _Member, new: Any, style: _Style) -> str:
    old = text[member.begin : member.end]
    # A list or object keeps its own form. Other values get the form of the object around them.
    around = (
        old if isinstance(member.value, dict | list) and member.value else text[holder.begin : holder.members[0].start]
    )
    rendered = style.render(new, _indent_at(text, member.start), one_line="\n" not in around)
    return text[: member.begin] + rendered + text[member.end :]


def _inserted(text: str, holder: _Object, edit: Edit, style: _Style, place: str) -> str:
    key = edit.path[-1]
    anchor = _anchor(holder, edit.after, place)
    if anchor is None:
        return _filled(text, holder, {key: edit.new}, style)
    gap = _gap_after(text, holder, anchor, style)
    on_own_line = "\n" in gap
    indent = gap.rpartition("\n")[2] if on_own_line else _indent_at(text, anchor.start)
    colon = anchor.colon if "\n" not in anchor.colon else style.colon
    name = style.render(key, indent, one_line=True)
    value = style.render(edit.new, indent, one_line=not on_own_line)
    return text[: anchor.end] + "," + gap + name + colon + value + text[anchor.end :]


def _anchor(holder: _Object, after: str | None, place: str) -> _Member | None:
    """Return the member to insert a new key after, or None for an empty object."""
    if after is None:
        return holder.members[-1] if holder.members else None
    anchor = holder.get(after)
    if anchor is None:
        raise _mismatch(f"must follow {after!r}, which is missing", place)
    return anchor


def _filled(text: str, holder: _Object, members: dict[str, Any], style: _Style) -> str:
    """Return `text` with `members` in an empty object."""
    rendered = style.render(members, _indent_at(text, holder.begin), one_line=style.unit is None)
    return text[: holder.begin] + rendered + text[holder.end :]


def _gap_after(text: str, holder: _Object, anchor: _Member, style: _Style) -> str:
    """Return the space between the comma after `anchor` and a new key."""
    position = holder.members.index(anchor)
    # The space before a first key belongs to the brace, as in { "a": 1,"b": 2}.
    model = holder.members[1] if position == 0 and len(holder.members) > 1 else anchor
    gap = _gap_before(text, model)
    if "\n" in gap:  # one line end, also if there are blank lines
        return ("\r\n" if "\r\n" in gap else "\n") + gap.rpartition("\n")[2]
    return style.gap if model is holder.members[0] else gap


def _removed(text: str, holder: _Object, member: _Member) -> str:
    position = holder.members.index(member)
    if len(holder.members) == 1:
        return text[: holder.begin] + "{}" + text[holder.end :]
    if position == 0:
        return text[: member.start] + text[holder.members[1].start :]
    return text[: holder.members[position - 1].end] + text[member.end :]
