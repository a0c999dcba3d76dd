"""Errors as text: the sentence and the next step, with arguments for Python and with options for the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import run

import ropetool
from ropetool.errors import ConfigError, InvalidRope, RopetoolError, sentence_of

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@pytest.mark.parametrize(
    ("where", "message", "step", "text"),
    [
        ("config.json", "no such key", "", "config.json: no such key"),
        ("", "no such key", "write it", "no such key\nTry: write it"),
        ("--factor", "is 0", "--factor 4", "factor: is 0\nTry: factor=4"),
        ("", "two readings", "--from current", 'two readings\nTry: reading="current"'),
        ("--target-length", "too short", "--target-length 32k", 'target_length: too short\nTry: target_length="32k"'),
        ("--for", "unknown", "--for vllm, or without --for", "for_runtimes: unknown\nTry: for_runtimes vllm, or without for_runtimes"),
        ("m", "no room", "ropetool extend m --factor 4", "m: no room\nTry: ropetool extend m --factor 4"),
        ("a--b", "a name", "", "a--b: a name"),
        ("", "a rule", "-- and --x", "a rule\nTry: -- and --x"),
        ("--text", "too short", "", "texts: too short"),
        ("vLLM", "samples", "for vLLM, --logprobs-mode raw_logprobs", "vLLM: samples\nTry: for vLLM, --logprobs-mode raw_logprobs"),
    ],
)  # fmt: skip
def test_an_error_as_text(where: str, message: str, step: str, text: str) -> None:
    assert str(RopetoolError(message, where=where, try_=step)) == text


def test_the_text_in_another_sentence_has_no_step() -> None:
    error = ConfigError("is wrong", where="config.json", try_="mend it")
    assert sentence_of(error) == "config.json: is wrong"
    assert sentence_of(ValueError("plain")) == "plain"


def test_python_and_the_command_line_name_the_same_thing() -> None:
    with pytest.raises(InvalidRope) as refused:
        ropetool.plan(DEMO, "yarn", factor=0.5)
    done = run("extend", DEMO, "--method", "yarn", "--factor", "0.5", "--dry-run")
    assert "--" in done.err
    assert "--" not in str(refused.value)
    assert refused.value.message in done.err
