"""`ropetool inspect --html`: a page of wavelengths, runtimes and ways, and never in the place of somebody's file."""

from __future__ import annotations

import math
import re
from html import unescape
from pathlib import Path

import configs
import pytest
from models import write_config, write_model
from running import refused, run, snapshot

pytestmark = pytest.mark.usefixtures("here")


def cells(page: str) -> list[list[str]]:
    """Return all rows of all tables, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)]
        for row in rows
    ]


def test_wavelengths_stand_beside_those_of_what_is_advised() -> None:
    write_model(Path("model"), configs.config("llama", "v4"))
    before = snapshot(Path("model"))
    done = run("inspect", "model", "--target-length", "4096", "--html", "page.html")
    assert (done.code, done.err) == (0, "Note: drawn: page.html\n")
    assert snapshot(Path("model")) == before
    page = Path("page.html").read_text(encoding="utf-8")
    pairs = [row for row in cells(page) if len(row) == 4 and row[0].isdigit()]
    assert [row[0] for row in pairs] == [str(pair) for pair in range(16)]
    for pair, (_, own, extended, stretch) in enumerate(pairs):  # of base 10,000 and 32 channels
        assert float(own) == pytest.approx(2 * math.pi * 10_000 ** (2 * pair / 32), rel=6e-3)  # shown with three digits
        assert float(extended) / float(own) == pytest.approx(float(stretch), rel=0.012)
    # YaRN leaves the fastest pair as it is, and gives the slowest all of the 8 times.
    assert (pairs[0][3], pairs[-1][3]) == ("1.00", "8.00")
    assert page.count("<img ") == 1
    assert ["yarn", "reaches 4096 tokens", "ropetool extend model --method yarn --target-length 4096"] in cells(page)
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page.partition("<body>")[2])  # it loads nothing


def test_what_a_runtime_would_compute_otherwise_is_told() -> None:
    write_config(Path("windowed"), {**configs.config("mistral", "v4"), "sliding_window": 64})
    assert run("inspect", "windowed", "--html", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    told = [row for row in cells(page) if len(row) == 3 and "llama.cpp" in row[0]]
    assert told[0][1] == "DIFFERS"
    assert "window" in told[0][2]
    assert '<h1 class="bad">' in page


def test_a_page_is_replaced_and_nothing_else() -> None:
    write_config(Path("model"), configs.config("llama", "v4"))
    for _ in range(2):
        assert run("inspect", "model", "--html", "page.html").code == 0
    Path("mine.html").write_text("<!DOCTYPE html><title>mine</title>")
    refused(
        Path(), "mine.html: exists already and is not a page of ropetool, so ropetool does not replace it",
        "pass another --html, or move the existing output away",
        "inspect", "model", "--html", "mine.html",
    )  # fmt: skip
    refused(
        Path(), "nowhere/page.html: the directory nowhere does not exist", "mkdir -p nowhere",
        "inspect", "model", "--html", "nowhere/page.html",
    )  # fmt: skip


def test_without_a_rotation_there_is_nothing_to_draw() -> None:
    write_config(Path("model"), {"model_type": "nobody-knows-it"})
    refused(
        Path(), "model: its RoPE settings cannot be decoded, so there is nothing to draw", "leave out --html",
        "inspect", "model", "--html", "page.html",
    )  # fmt: skip
    assert not Path("page.html").exists()
