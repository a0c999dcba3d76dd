"""docs/yardsticks.md shows the output and the figures that scripts/yardsticks/yardsticks_demo.py recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from loading import script

RECORD = json.loads((Path(__file__).parent / "yardsticks_demo.json").read_text(encoding="utf-8"))
PAGE = " ".join((Path(__file__).parents[2] / "docs" / "yardsticks.md").read_text(encoding="utf-8").split())
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
    assert f"({MINUS}{-within[0]:.3f} ± {within[1]:.3f} nats a token, YaRN {own[0]:+.3f} ± {own[1]:.3f})" in PAGE
    capped, leaky = (mean("m16", name, 4096, "target_minus_this") for name in ("rerope(128)", "leaky-rerope(128,31)"))
    assert (
        f"is {capped[0]:.2f} ± {capped[1]:.2f} nats worse than the one and {leaky[0]:.2f} ± {leaky[1]:.2f} than" in PAGE
    )
    near, far = (ratio("m16", "rerope(128)", length) for length in (1024, 4096))
    assert f"({near:.3f} of the baseline's perplexity) and rises again by 4096 ({far:.2f})" in PAGE
    near, far = (ratio("m16", "rerope(128)+log-n", length) for length in (1024, 4096))
    assert f"it is {near:.3f} at 1024 and {far:.3f} at 4096" in PAGE
    plain, scaled = (ratio("m8", name, 2048) for name in ("rerope(128)", "rerope(128)+log-n"))
    assert f"takes ReRoPE from {plain:.2f} to {scaled:.3f} of the baseline's perplexity" in PAGE


def test_the_page_of_choosing_has_the_same_figures() -> None:
    own = (f"{ratio('m16', 'target', length):.2f}" for length in (256, 4096))
    capped = (ratio("m16", "rerope(128)", length) for length in (256, 4096))
    shown = "{:.3f} and {:.2f}".format(*capped)
    assert f"the demo at 16x: {' and '.join(own)} with `yarn`, {shown} with [ReRoPE]" in CHOOSING
