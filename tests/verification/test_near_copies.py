"""Texts that are not independent: pieces that `split` makes and near copies are one document; other texts stay apart."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ropetool.verification import near_copies
from ropetool.verification.near_copies import independent
from ropetool.verification.session import documents_of
from ropetool.verification.texts import Document, embedded_documents, long_documents, medium_documents


def words(seed: int, count: int = 600) -> list[str]:
    rng = random.Random(seed)
    return [f"word{rng.randrange(2000)}" for _ in range(count)]


def document(name: str, *parts: list[str]) -> Document:
    return Document(name, " ".join(word for part in parts for word in part))


def shared(one: str, other: str) -> float:
    """Return the share of 50-word sequences of the shorter text that the other one has: the oracle, by sets of text."""
    sets = [{tuple(text.split()[i : i + 50]) for i in range(len(text.split()) - 49)} for text in (one, other)]
    return len(sets[0] & sets[1]) / min(map(len, sets))


@pytest.mark.parametrize("changed", [0, 1, 3, 5, 7, 9, 12, 20])
def test_more_than_half_of_the_shingles_make_a_near_copy(changed: int) -> None:
    """Words replaced at even distances; each spoils 50 shingles."""
    text = words(1)
    other = list(text)
    for at in np.linspace(40, 560, changed, dtype=int).tolist():
        other[at] = "x"
    first, second, third = document("first", text), document("second", other), document("third", words(2))
    found, notes = independent([first, third, second, document("fourth", words(3))])
    near = shared(first.text, second.text) > 0.5
    assert [each.name for each in found] == ["first", "third", *([] if near else ["second"]), "fourth"]
    assert bool(notes) == near
    if near:
        assert notes[0].startswith("near copies are left out: second of first; ")


def test_the_longest_of_a_group_stays_and_groups_join() -> None:
    """Each window shares 60 % with the next one, and the first nothing with the last."""
    text = words(4, 3000)
    windows = [document(f"window {i}", text[400 * i : 400 * i + 1000 + i]) for i in range(5)]
    found, (note,) = independent([*windows, document("other", words(5))])
    assert [each.name for each in found] == ["window 4", "other"]
    assert "window 0 of window 4, window 1 of window 4, window 2 of window 4 and 1 more" in note


def test_a_part_of_a_longer_text_is_a_near_copy_and_common_lines_are_not() -> None:
    licence = words(6, 100)
    texts = [document(f"text {i}", licence, words(10 + i, 400)) for i in range(30)]
    assert independent(texts) == (texts, [])
    found, _ = independent([*texts, document("part", words(12, 400)[:200])])
    assert found == texts


def test_many_near_copies_are_one_document() -> None:
    """More than a shingle's neighbours."""
    texts = [document(f"text {i}", words(7), words(100 + i, 20)) for i in range(60)]
    found, (note,) = independent(texts)
    assert len(found) == 1
    assert "and 56 more" in note


def test_a_part_of_the_shingles_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = words(8, 4000)
    texts = [document("one", text), document("two", text[:3000], words(9, 1000)), document("three", words(20, 4000))]
    monkeypatch.setattr(near_copies, "MOST_SHINGLES", 1500)
    found, _ = independent(texts)
    assert [each.name for each in found] == ["one", "three"]


@pytest.mark.parametrize("text", ["a", "...", "one two", "漢字" * 400, "Ⅷ é ß"])
def test_short_and_strange_texts_are_compared_too(text: str) -> None:
    texts = [Document("strange", text), document("other", words(21))]
    assert independent(texts) == (texts, [])
    assert len(independent([*texts, Document("again", f" {text} ")])[0]) == 2


@pytest.mark.parametrize("count", range(1, 24))
def test_texts_of_every_number_of_words_are_compared(count: int) -> None:
    texts = [document("short", words(7, count)), document("other", words(21))]
    assert independent(texts) == (texts, [])


def test_the_texts_of_the_package_are_independent() -> None:
    texts = [*embedded_documents(), *long_documents(), *medium_documents()]
    assert independent(texts) == (texts, [])


@pytest.mark.skipif(shutil.which("split") is None, reason="needs split")
@pytest.mark.parametrize(
    "options",
    [
        ["--lines=40"], ["--line-bytes=2000", "--additional-suffix=.txt"], ["--lines=40", "-d"], ["--lines=40", "-a1"],
        ["--lines=40", "-d", "-a3"], ["--bytes=2000", "-d", "--additional-suffix=.txt"], ["--number=12", "-d", "PREFIX"],
        ["--lines=2", "PREFIX"], ["--lines=3", "-d", "PREFIX"],
    ],
)  # fmt: skip
def test_pieces_of_one_text_are_joined_again(tmp_path: Path, options: list[str]) -> None:
    """The text is cut by the program whose names are read."""
    lines = words(22, 3000)
    whole = "".join(" ".join(lines[at : at + 10]) + "\n" for at in range(0, 3000, 10))
    (tmp_path / "whole.txt").write_text(whole)
    (tmp_path / "cut").mkdir()
    prefix = ["a book, part-"] if options[-1] == "PREFIX" else []
    words_ = [word for word in options if word != "PREFIX"]
    subprocess.run(["split", *words_, tmp_path / "whole.txt", *prefix], cwd=tmp_path / "cut", check=True)
    assert len(list((tmp_path / "cut").iterdir())) > 4
    (tmp_path / "cut" / "other.txt").write_text(" ".join(words(23)))
    notes: list[str] = []
    found = documents_of([tmp_path / "cut"], 100, notes)
    assert sorted(each.text for each in found) == sorted([whole, " ".join(words(23))])
    assert "have names from `split`, so they count as pieces of one document" in notes[0]


def test_pieces_are_joined_up_to_the_limit_of_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [Document(f"xa{letter}", letter * 40) for letter in "abcd"]
    monkeypatch.setattr(near_copies, "MAX_BYTES", 100)
    (found,), (note,) = independent(pieces)
    assert found.text == "a" * 40 + "b" * 40
    assert note.endswith("; the last 2 are left out, because the limit of a document is 100 bytes")


def test_other_names_are_not_those_of_pieces() -> None:
    for names in (["text-0", "text-1"], ["chapter01", "chapter02"], ["xab", "xac"], ["xaa", "xac"], ["xaa", "yab"],
                  ["xaa.txt", "xab.md"], ["a", "b"], ["aa.txt", "ab.txt", "af.txt"],
                  ["text00.txt", "text01.txt", "text02.txt"], ["x08", "x09", "x010"]):  # fmt: skip
        texts = [Document(name, " ".join(words(30 + i)) + "\n") for i, name in enumerate(names)]
        assert independent(texts) == (texts, [])
