"""Yardsticks by name: defaults by the published rules, and one sentence for what is none."""

from __future__ import annotations

import pytest

from ropetool.errors import ConfigError
from ropetool.lab.yardsticks.named import VARIANTS, parse, yardsticks_named


@pytest.mark.parametrize(
    ("spec", "full"),
    [
        ("rerope", "rerope(2048)"),
        ("rerope(512)", "rerope(512)"),
        (" rerope( 512 ) ", "rerope(512)"),
        ("leaky-rerope", "leaky-rerope(2048,31)"),  # (65536 - 2048) / 2048
        ("leaky-rerope(512,16)", "leaky-rerope(512,16)"),
        ("self-extend", "self-extend(21,1024)"),  # 21 (4096 - 1024) + 1024 is the first to reach 65536
        ("sliding-window", "sliding-window(4096)"),
        ("lambda", "lambda(4096,10)"),  # as convert_llama_model(model, 4096, 10)
        ("rerope(512)+log-n", "rerope(512)+log-n"),
        ("dynamic-yarn", "dynamic-yarn"),
    ],
)
def test_parameters_left_out_come_from_the_lengths(spec: str, full: str) -> None:
    found = parse(spec, 4096, 65536)
    assert found.name == full
    assert parse(full, 4096, 65536).name == full
    assert found.log_n == ("log-n" in spec)


def test_a_list_is_cut_between_yardsticks_alone() -> None:
    found = yardsticks_named("rerope,leaky-rerope(128,16),dynamic-ntk,rerope(128)", 256, 4096)
    assert [each.name for each in found] == ["rerope(128)", "leaky-rerope(128,16)", "dynamic-ntk"]


def test_defaults_of_every_yardstick_are_its_own_parameters() -> None:
    for name, kind in VARIANTS.items():
        numbers = kind.defaults(256, 4096)
        assert len(numbers) == len(kind.parameters)
        assert parse(name, 256, 4096).name.startswith(name)
        assert parse(name, 256, 256).name.startswith(name)  # nothing beyond the trained length is to be reached


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("reropee", "did you mean rerope"),
        ("", "unknown attention variant"),
        ("rerope(", "unknown attention variant"),
        ("rerope+ntk", "unknown attention variant 'ntk'"),
        ("rerope(0)", "needs window, whole numbers of at least 1"),
        ("rerope(1.5)", "needs window"),
        ("rerope(128,4)", "needs window"),
        ("leaky-rerope(128)", "needs window and factor"),
        ("dual-chunk", "unknown attention variant 'dual-chunk'"),
        ("log-n", "unknown attention variant 'log-n'"),
        ("dynamic-ntk(4)", "accepts no parameters"),
        ("dynamic-ntk+log-n", "log-n works only with variants that change distances"),
        ("rerope(257)", "the window of 257 tokens must not exceed the trained length of 256"),
        ("self-extend(65,64)", "must not be larger than the window"),
    ],
)
def test_what_is_no_yardstick_is_said_in_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match="compare_with") as caught:
        parse(spec, 256, 4096)
    assert words in str(caught.value)


def test_a_window_of_the_trained_length_is_no_wider_than_it() -> None:
    assert parse("rerope(256)", 256, 4096).name == "rerope(256)"


def test_who_else_runs_one_is_said_with_its_flags() -> None:
    assert "llama-completion --grp-attn-n 8 --grp-attn-w 64 " in parse("self-extend(8,70)", 256, 4096).served
    assert [name for name in VARIANTS if parse(name, 256, 4096).served] == ["self-extend"]
