"""Makes hostile input out of good input: bytes that are turned, cut and put in, and JSON whose parts change places and kinds.

Knows nothing of what reads it. All chance comes from the generator that is given.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

MOST = 1 << 17  # bytes of one input, about
INTEGERS = tuple(
    number + shift
    for number in (0, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64)
    for shift in (-1, 0, 1)
)
_FLOATS = (float("nan"), float("inf"), float("-inf"), -0.0, 1e38, 1e-45, 3.0)
WORDS = (
    b"\0", b"\xff" * 8, b"\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xef\xbb\xbf", b"\x1b[2J", "\u202e".encode(), b"\r\n",
    b"../../etc/passwd", b"/dev/zero", b"%s%n", b"{{", b"'", b'"', b"\\", b"\\ud800", b"-1", b"1e400", b"NaN",
    b"9" * 5000, b"A" * 5000, b"[" * 2000, b'{"a":' * 2000,
)  # fmt: skip


# --- bytes


def bytes_of(seed: bytes, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return the seed with a few changes; `others` lend parts of themselves, `words` are those of the format."""
    found, changes = bytearray(seed), rng.choice((_CHANGES, _IN_PLACE))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(changes)(found, rng, others, words)
    return bytes(found[:MOST])


def _at(found: bytearray, rng: random.Random) -> int:
    # Heads are short and hold the lengths: half of all changes are near the beginning.
    reach = len(found) if rng.random() < 0.5 else min(len(found), 64)
    return rng.randrange(reach + 1)


def _flip(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    if found:
        found[min(_at(found, rng), len(found) - 1)] ^= 1 << rng.randrange(8)


def _set_byte(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    if found:
        found[min(_at(found, rng), len(found) - 1)] = rng.randrange(256)


def _cut(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    del found[_at(found, rng) :]


def _drop(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _at(found, rng)
    del found[at : at + rng.choice((1, 2, 4, 8, 64))]


def _repeat(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = _at(found, rng)
    part = bytes(found[at : at + rng.choice((1, 8, 64, 512))])
    found[at:at] = part * rng.choice((1, 2, 20))


def _number(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    """Overwrite what may be a length, a count, an offset or a value."""
    size, at = rng.choice((1, 2, 4, 4, 8, 8)), _at(found, rng)
    if rng.random() < 0.15:
        found[at : at + 4] = struct.pack("<f", rng.choice(_FLOATS))
        return
    if rng.random() < 0.5:
        number = rng.choice(INTEGERS)
    else:  # near what stands there
        number = int.from_bytes(found[at : at + size], "little") + rng.choice((-8, -1, 1, 2, 8, 1000))
    found[at : at + size] = (number % (1 << (8 * size))).to_bytes(size, "little")


def _word(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    at, word = _at(found, rng), rng.choice(words if words and rng.random() < 0.6 else WORDS)
    found[at : at + rng.choice((0, len(word)))] = word


def _borrow(found: bytearray, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    other = rng.choice(others) if others else bytes(found)
    begin, size = rng.randrange(len(other) + 1), rng.choice((4, 32, 256))
    at = _at(found, rng)
    found[at : at + rng.choice((0, size))] = other[begin : begin + size]


_IN_PLACE = (_flip, _set_byte, _number, _number)  # whose offsets stay true
_CHANGES = (_flip, _set_byte, _cut, _drop, _repeat, _number, _number, _number, _word, _borrow)


# --- JSON


@dataclass(frozen=True)
class Span:
    """A value in a JSON text: where it stands, where its key begins (its own begin in a list), and the way to it."""

    begin: int
    end: int
    key: int
    path: tuple[str | int, ...]


_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+)', re.DOTALL)


@cache
def spans(text: str) -> tuple[Span, ...]:
    """Return every value of a valid JSON text, outer ones before what is inside them."""
    found: list[Span] = []

    def token(at: int) -> tuple[str, int, int]:
        hit = _TOKEN.match(text, at)
        assert hit is not None
        return hit[1], hit.start(1), hit.end(1)

    def value(at: int, key: int | None, path: tuple[str | int, ...]) -> int:
        word, begin, end = token(at)
        place = len(found)
        found.append(Span(begin, end, begin if key is None else key, path))
        number = 0
        while word in "{[" or number:
            word_next, start, after = token(end)
            if word_next in "}]":
                end = after
                break
            if word_next == ",":
                end = after
                continue
            if word == "{":
                end = value(token(after)[2], start, (*path, json.loads(word_next)))
            else:
                end = value(end, None, (*path, number))
            number += 1
        found[place] = Span(begin, end, begin if key is None else key, path)
        return end

    value(1 if text.startswith("\ufeff") else 0, None, ())
    return tuple(found)


_VALUES = (
    "null", "true", "false", "0", "-1", "1", "-0", "0.5", "1e400", "-1e400", "1E-400", "NaN", "-Infinity", "1.0", "4294967296",
    *map(str, (2**31, 2**31 - 1, -(2**31), 2**53 + 1, 2**63, 2**63 - 1, -(2**63), 2**64, 10**30)), "9" * 400, "9" * 5000,
    '""', '"x"', '"1"', '"\\ud800"', '"\\u0000"', '"\\u001b[31m"', '"\u202e\u2066"', '"../../../etc/passwd"', '"/dev/zero"',
    '"a\\nb"', '"' + "x" * 3000 + '"', "[]", "{}", "[[]]", "[{}]", "[null]", '{"":{}}', '{"a":1,"a":2}', "[1e400]",
    "[" * 40 + "]" * 40, "[" * 900 + "]" * 900, "[" * 50000, '{"a":' * 90 + "1" + "}" * 90, "[" + "0," * 3000 + "0]",
    "{" + ",".join(f'"k{n}":{n}' for n in range(1000)) + "}",
)  # fmt: skip
_BROKEN = (
    "",
    ",",
    "}",
    "]",
    ":",
    "'x'",
    "/* */",
    "0x10",
    "+1",
    "01",
    ".5",
    "tru",
    '"\\x"',
    '"a',
    "\ufeff",
    "\0",
    "undefined",
)


def json_of(seed: bytes, rng: random.Random, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return a JSON text whose values have other kinds, whose keys are doubled, renamed or gone; seldom broken text."""
    if rng.random() < 0.15:
        return bytes_of(seed, rng, others, words)
    text = seed.decode()
    known, end = spans(text), len(text) + 1
    chosen = {rng.choice(known) for _ in range(rng.choice((1, 1, 1, 2, 4)))}
    for span in sorted(chosen, key=lambda one: one.begin, reverse=True):
        if span.end <= end:  # what holds a place that was changed already has moved
            text, end = _changed(text, span, known, rng, words), span.key
    return text.encode("utf-8", "surrogatepass")[:MOST]


def _changed(text: str, span: Span, known: Sequence[Span], rng: random.Random, words: Sequence[bytes]) -> str:
    kind = rng.random()
    if kind < 0.55:
        new = rng.choice(_VALUES)
    elif kind < 0.65:
        other = rng.choice(known)
        new = text[other.begin : other.end]
    elif kind < 0.72 and words:
        new = json.dumps(rng.choice(words).decode("utf-8", "replace"))
    elif kind < 0.76:
        new = rng.choice(_BROKEN)
    else:
        return _rekeyed(text, span, rng)
    return text[: span.begin] + new + text[span.end :]


def _rekeyed(text: str, span: Span, rng: random.Random) -> str:
    """Change what is around a value: its member twice, gone, under another name, or the value in a list."""
    member = text[span.key : span.end]
    how = rng.randrange(4)
    if how == 0:
        return f"{text[: span.key]}{member}, {text[span.key :]}"
    if how == 1:
        after = text[span.end :].lstrip()
        return text[: span.key] + (after[1:] if after.startswith(",") else after)
    if how == 2 and span.key != span.begin:
        name = json.dumps(rng.choice(("", "a", "\0", "\ud800", "rope_theta", "__class__", "x" * 300)))
        return f"{text[: span.key]}{name}: {text[span.begin :]}"
    return f"{text[: span.begin]}[{text[span.begin : span.end]}]{text[span.end :]}"


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """Return a value that JSON holds, of any kind."""
    kind = rng.randrange(8 if depth < 2 else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice(INTEGERS) * rng.choice((1, -1))
    if kind == 2:
        return rng.choice((0.5, -0.0, 1e300, 5e-324, 1.0, 123456.789))
    if kind < 6:
        return "".join(rng.choice('aé"\\\n\t\0\u2028\ud83d漢\U0001f600{}[],:') for _ in range(rng.randrange(6)))
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {f"k{n}": random_value(rng, depth + 1) for n in range(rng.randrange(4))}


Mutate = Callable[[bytes, random.Random, Sequence[bytes], Sequence[bytes]], bytes]
