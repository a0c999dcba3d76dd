"""Strings that tokenizers trip over: every script, emoji, runs of spaces, digits, code, special tokens. Seeded."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from settled import Comparison

LAST_LETTER = 0x32000  # beyond it there are no assigned letters but variation selectors and tags
WORDS = """the of and Hello world I'm you're WE'LL don't O'Reilly it's IT'S caf\u00e9 na\u00efve stra\u00dfe 12 2024 3.14 1,000,000
    def return print(x) {} => != :: // #include <vector> for(i=0;i<n;++i) https://example.org/a?b=c&d=%20 user@host""".split()  # noqa: SIM905 (readable, and easy to add to)
SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n  ", "\u00a0", "\u3000", "\u2028", "\v", "\x85")
DIGITS = "0123456789\u0663\u096a\u4e94\u2167\u00bd\u00b2"
MARKS = "!?.,;:'\"-_/\\(){}[]<>=+*&^%$#@~`|\u2026\u2014\u201c\u201d\u00bf\u3002"
EMOJI = (
    "\U0001f600", "\U0001f680", "\u2705", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f\u200d\U0001f525", "\U0001f937\U0001f3fd\u200d\u2640\ufe0f", "\U0001f636\u200d\U0001f32b\ufe0f",
)  # fmt: skip


@cache
def letters() -> tuple[str, ...]:
    """Return every character that Unicode has assigned, as this Python knows it."""
    points = (chr(point) for point in range(LAST_LETTER) if not 0xD800 <= point < 0xE000)
    return tuple(letter for letter in points if unicodedata.category(letter) not in ("Cn", "Co"))


@cache
def scripts() -> tuple[str, ...]:
    """Return the letters of each script, told by the first word of their names."""
    found: dict[str, list[str]] = {}
    for letter in letters():
        found.setdefault(unicodedata.name(letter, "?").partition(" ")[0], []).append(letter)
    return tuple("".join(script) for script in found.values() if len(script) >= 20)


def strings(count: int, special: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Yield strings of up to a dozen parts each; `special` are put in as they are."""
    rng = random.Random(seed)
    for _ in range(count):
        parts = (_part(rng, special) + rng.choice((" ", "", "")) for _ in range(rng.randint(1, 12)))
        yield "".join(parts)


def _part(rng: random.Random, special: Sequence[str]) -> str:
    kind = rng.random()
    if kind < 0.35:
        return "".join(rng.choices(rng.choice(scripts()), k=rng.randint(1, 8)))
    if kind < 0.5:
        return rng.choice(WORDS)
    if kind < 0.7:
        return "".join(rng.choices(SPACES, k=rng.randint(1, 4)))
    if kind < 0.78:
        return "".join(rng.choices(DIGITS, k=rng.randint(1, 9)))
    if kind < 0.86:
        return "".join(rng.choices(EMOJI, k=rng.randint(1, 3)))
    if kind < 0.92:
        return "".join(rng.choices(MARKS, k=rng.randint(1, 5)))
    return rng.choice(letters()) * rng.randint(1, 3) if kind < 0.97 else rng.choice(special)


def compared(name: str, tokenizer: Path, values: Mapping[str, Any]) -> Comparison:
    """Return the comparison of a tokenizer.json with the keys of its export, by the strings of this file."""
    keys = b"".join(key.encode() + bytes([int(value.type)]) + bytes(value.raw) for key, value in sorted(values.items()))
    inputs = {"tokenizer": tokenizer, "keys": keys, "strings": Path(__file__), "letters": "".join(letters()).encode()}
    return Comparison(name, inputs, "tokenizers", "llama-cpp-python")
