"""docs/measurements.md shows the output and the figures that scripts/yardsticks/yardsticks_demo.py recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from loading import script

RECORD = json.loads((Path(__file__).parent / "yardsticks_demo.json").read_text(encoding="utf-8"))
PAGE = " ".join((Path(__file__).parents[2] / "docs" / "measurements.md").read_text(encoding="utf-8").split())
MINUS = "\N{MINUS SIGN}"
CHOOSING = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")


def ratio(run: str, name: str, length: int) -> float:
    found: float = RECORD[run]["rows"][name][str(length)]["ratio"]
    return found


def mean(run: str, name: str, length: int, key: str) -> tuple[float, float]:
    middle, half = RECORD[run]["rows"][name][str(length)][key]
    return middle, half


@pytest.mark.parametrize("run", RECORD)
def test_the_page_has_the_command_and_what_it_printed(run: str) -> None:
    page = script("yardsticks/yardsticks_page.py")
    assert " ".join(RECORD[run]["text"].split()) in PAGE
    assert f"$ {page.RUNS[run].command(run)} " in PAGE


@pytest.mark.parametrize("run", RECORD)
def test_the_printed_ratios_are_those_of_the_record(run: str) -> None:
    length, seen = 0, 0
    for line in RECORD[run]["text"].partition("retrieval")[0].splitlines():
        found = re.match(r" *(\d+)? +([a-z][\w+(),-]*) +\S+ \(\S+\) +(\S+) ", f"{line} ")
        if found:
            length = int(found[1] or length)
            assert float(found[3]) == pytest.approx(ratio(run, found[2], length), rel=6e-3)
            seen += 1
    assert seen == sum(len(lengths) for lengths in RECORD[run]["rows"].values())


def test_the_sentences_say_what_was_measured() -> None:
    within, own = (mean("m16", name, 256, "regression") for name in ("rerope(128)", "target"))
    assert f"{MINUS}{-within[0]:.3f} ± {within[1]:.3f} nats per token, and YaRN {own[0]:+.3f} ± {own[1]:.3f}." in PAGE
    capped, leaky = (mean("m16", name, 4096, "target_minus_this") for name in ("rerope(128)", "leaky-rerope(128,31)"))
    worse = (f"{mean:.2f} ± {half:.2f} nats worse than" for mean, half in (capped, leaky))
    assert "is {} ReRoPE and {} Leaky ReRoPE".format(*worse) in PAGE
    near, far = (ratio("m16", "rerope(128)", length) for length in (1024, 4096))
    assert f"{near:.3f} times the perplexity of the baseline at 1,024 tokens and {far:.2f} times at 4,096" in PAGE
    near, far = (ratio("m16", "rerope(128)+log-n", length) for length in (1024, 4096))
    assert f"ReRoPE has {near:.3f} times at 1,024 tokens and {far:.3f} times at 4,096" in PAGE
    plain, scaled = (ratio("m8", name, 2048) for name in ("rerope(128)", "rerope(128)+log-n"))
    assert f"lowers ReRoPE from {plain:.2f} to {scaled:.3f} times the perplexity of the baseline" in PAGE


def test_the_page_of_choosing_has_the_same_figures() -> None:
    own = (f"{ratio('m16', 'target', length):.2f}" for length in (256, 4096))
    capped = (ratio("m16", "rerope(128)", length) for length in (256, 4096))
    shown = "{:.3f} and {:.2f}".format(*capped)
    assert f"demo model at 16x: `yarn` {' and '.join(own)}" in CHOOSING
    assert f"No file can store ReRoPE, which reaches {shown} for the demo model at 16x" in " ".join(CHOOSING.split())
