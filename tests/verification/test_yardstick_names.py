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
        ("yarn", "yarn(16)"),
        ("ntk(4)+temperature", "ntk(4)+temperature"),
        ("string", "string(1365,128)"),
        ("dpe", "dpe(512,4,4,2,16,32,32,16,128)"),  # as published for 16 times the length
        ("nbce", "nbce(1024)"),
        ("bases", "bases(4,16)"),
    ],
)
def test_parameters_left_out_come_from_the_lengths(spec: str, full: str) -> None:
    found = parse(spec, 4096, 65536)
    assert found.name == full
    assert parse(full, 4096, 65536).name == full
    assert found.scale == spec.partition("+")[2]


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
        ("rerope+ntk", "unknown scale 'ntk'"),
        ("rerope(0)", "needs window, whole numbers of at least 1"),
        ("rerope(1.5)", "needs window"),
        ("rerope(128,4)", "needs window"),
        ("leaky-rerope(128)", "needs window and factor"),
        ("dual-chunk", "unknown attention variant 'dual-chunk'"),
        ("log-n", "unknown attention variant 'log-n'"),
        ("dynamic-ntk(4)", "accepts no parameters"),
        ("dynamic-ntk+log-n", "log-n works only with variants that change distances"),
        ("nbce+log-n", "log-n works only with variants that change distances"),
        ("yarn(8)+logn", "unknown scale 'logn' (did you mean log-n?)"),
        ("yarn(8)+", "unknown scale ''"),
        ("dpe(64,1,2)", "needs window and group1"),
        ("dpe(64,1,1,1,1,1,1,1,65)", "a group must not be larger than the window"),
        ("string(300,8)", "the shift of 300 tokens must not exceed the trained length of 256"),
        ("string(64,65)", "the window must not be larger than the shift"),
        ("nbce(256)", "the tail of 256 tokens must be shorter than the trained length of 256"),
        ("bases(1,8)", "needs at least 2 bases"),
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
