"""Texts that depend on each other: pieces of one text, and near copies. Each group counts as one document."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ropetool.verification.texts import MAX_BYTES, Document

SHINGLE = 50  # words
SHARED = 0.5  # of the shingles of the shorter text, above which two texts are near copies
MOST_SHINGLES = 2_000_000  # of all texts together; of more words, an even part is compared
CHARACTERS = 5  # of a word, about
NEIGHBOURS = 8  # texts with the same shingle that are paired with each other
FACTOR = 0x9E3779B97F4A7C15  # an odd number, of the hash
MOST_NAMED = 3
WORD = re.compile(r"\w+")
# A name as `split` gives it: prefix, letters or digits that count, and suffix. Without options the prefix is x.
PIECE = re.compile(r"(.*?)([a-z]+|\d+)((?:\.[^.]*)*)", re.DOTALL)
FIRST = re.compile(r"[a-z]*aa|xa|00+")
SURE = 3  # pieces whose letters count from aa, without another sign that they are pieces
Shingles = npt.NDArray[np.uint64]


def independent(documents: Sequence[Document]) -> tuple[list[Document], list[str]]:
    """Return the independent documents, and notes on the others.

    Join the pieces that `split` writes, up to the size limit of a document. Keep the longest of several near copies.
    """
    joined, notes = [], []
    for pieces in _runs(documents):
        sizes = np.cumsum([len(piece.text.encode()) for piece in pieces])
        count = max(1, int((sizes <= MAX_BYTES).sum()))
        joined.append(replace(pieces[0], text="".join(piece.text for piece in pieces[:count])))
        if len(pieces) > 1:
            rest = (
                f"; the last {len(pieces) - count} are left out, because the limit of a document is {MAX_BYTES} bytes"
            )
            notes.append(
                f"{pieces[0].name} to {pieces[-1].name} have names from `split`, so they count as pieces of one "
                f"document{rest if count < len(pieces) else ''}"
            )
    original = _originals(joined)
    copies = [f"{joined[i].name} of {joined[o].name}" for i, o in enumerate(original) if i != o]
    if copies:
        more = f" and {len(copies) - MOST_NAMED} more" if len(copies) > MOST_NAMED else ""
        notes.append(
            f"near copies are left out: {', '.join(copies[:MOST_NAMED])}{more}; they share more than half of their "
            f"{SHINGLE}-word sequences"
        )
    return [document for i, document in enumerate(joined) if original[i] == i], notes


def _runs(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Yield runs of documents: pieces in the order of their names, or a single document."""
    run: list[Document] = []
    for document in documents:
        if run and not _follows(run[-1].name, document.name):
            yield from _joined_or_not(run)
            run = []
        run.append(document)
        first = PIECE.fullmatch(run[0].name)
        if first is None or FIRST.fullmatch(first[2]) is None:
            yield run
            run = []
    yield from _joined_or_not(run)


def _joined_or_not(run: list[Document]) -> Iterator[list[Document]]:
    """Yield documents whose names count as one run if they are pieces of a text, else one by one.

    Numbered files may be independent. They are pieces if the names have no suffix, or if one ends in the middle of a
    line.
    """
    named = PIECE.fullmatch(run[0].name) if run else None
    cut = any(not document.text.endswith("\n") for document in run[:-1])
    if named is not None and (cut or not named[3] or (named[2].isalpha() and len(run) >= SURE)):
        yield run
    else:
        yield from ([document] for document in run)


def _follows(earlier: str, later: str) -> bool:
    """Return whether `split` would create this name next."""
    one, other = PIECE.fullmatch(earlier), PIECE.fullmatch(later)
    if one is None or other is None or (one[1], one[3]) != (other[1], other[3]):
        return False
    if one[2].isdecimal() != other[2].isdecimal():
        return False
    if len(one[2]) == len(other[2]):
        return _number(other[2]) == _number(one[2]) + 1
    # GNU split makes the names longer before they run out: xyz is followed by xzaaa, x89 by x9000.
    low, nearly, high = ("0", "8", "9") if one[2].isdecimal() else ("a", "y", "z")
    highs = len(one[2]) - len(one[2].rstrip(high))
    start = one[2][: -highs - 1]
    return one[2] == start + nearly + high * highs and other[2] == start + high + low * (highs + 2)


def _number(counted: str) -> int:
    """Return the value of digits, or of letters as digits of base 26."""
    if counted.isdecimal():
        return int(counted)
    total = 0
    for letter in counted:
        total = 26 * total + ord(letter) - ord("a")
    return total


def _originals(documents: Sequence[Document]) -> list[int]:
    """Return the index of the longest near copy of each document, or the index of the document."""
    sets = _shingle_sets([document.text for document in documents])
    group = list(range(len(documents)))

    def root(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    for one, other, shared in _pairs(sets):
        if shared > SHARED * min(len(sets[one]), len(sets[other])):
            group[root(one)] = root(other)
    longest: dict[int, int] = {}
    for index, document in enumerate(documents):
        best = longest.setdefault(root(index), index)
        if len(document.text) > len(documents[best].text):
            longest[root(index)] = index
    return [longest[root(index)] for index in range(len(documents))]


def _shingle_sets(texts: Sequence[str]) -> list[Shingles]:
    """Return hashes of the word sequences of each text. Long texts are sampled by the value of the hash."""
    step = np.uint64(1 + sum(map(len, texts)) // CHARACTERS // MOST_SHINGLES)
    return [np.unique(shingles[shingles % step == 0]) for shingles in map(_shingles, texts)]


def _shingles(text: str) -> Shingles:
    """Return a hash of each sequence of `SHINGLE` words, or of all words if the text is shorter."""
    words = (match[0] for match in WORD.finditer(text.lower()))
    total = np.fromiter((zlib.crc32(word.encode()) for word in words), dtype=np.uint64)
    count = len(total)
    size, done, width = min(SHINGLE, count), 0, 1
    shingles = np.zeros(count - size + 1, dtype=np.uint64)
    while width <= size:  # by doubling: the hash of 2 n words combines the hashes of the first n and the last n words
        factor = np.uint64(pow(FACTOR, width, 2**64))
        if size & width:
            shingles = shingles * factor + total[done : done + count - size + 1]
            done += width
        total = total[: max(0, len(total) - width)] * factor + total[width:]
        width *= 2
    # The low bits of a product depend only on the low bits of its factors.
    mixed: Shingles = shingles ^ (shingles >> np.uint64(29))
    return mixed


def _pairs(sets: Sequence[Shingles]) -> Iterator[tuple[int, int, int]]:
    """Yield pairs of texts with the number of shingles that both have.

    If many texts have a shingle, each text is paired with the next `NEIGHBOURS`. That still joins all near copies.
    """
    if not sets:
        return
    hashes = np.concatenate(sets)
    owners = np.repeat(np.arange(len(sets), dtype=np.int64), [len(shingles) for shingles in sets])
    order = np.argsort(hashes, kind="stable")
    hashes, owners = hashes[order], owners[order]
    for distance in range(1, min(NEIGHBOURS, len(sets) - 1) + 1):
        same = hashes[:-distance] == hashes[distance:]
        codes = owners[:-distance][same] * len(sets) + owners[distance:][same]
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            yield int(code) // len(sets), int(code) % len(sets), int(count)
