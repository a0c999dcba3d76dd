"""Every option that cannot be met: the text of the error, its code, and that nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import configs
import pytest
from models import write_config
from running import refused, run, snapshot

EXTEND = ("--method", "yarn", "--factor", "4")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
C = "{m}/config.json"


MORE = "--factor: {} is not a factor; a factor is a finite number of at least 1"
NO_LENGTH = "--original-length: {} is not a length; it is a whole number of tokens from 2 to 2147483648"
BEYOND = "tokens is above 2147483648, the most that runtimes support"

# name -> options; the error; the next step; the exit code.
OPTIONS: dict[str, tuple[tuple[str, ...], str, str, int]] = {
    "neither length": ((), "pass exactly one of --factor and --target-length", "--factor 4", 1),
    "both lengths": (
        ("--factor", "4", "--target-length", "2048"), "pass exactly one of --factor and --target-length", "--factor 4", 1,
    ),
    "factor below 1": (("--factor", "0.5"), MORE.format("0.5"), "", 1),
    "factor 0": (("--factor", "0"), MORE.format("0.0"), "", 1),
    "factor negative": (("--factor", "-2"), MORE.format("-2.0"), "", 1),
    "factor NaN": (("--factor", "nan"), MORE.format("nan"), "", 1),
    "factor infinite": (("--factor", "inf"), MORE.format("inf"), "", 1),
    "factor absurd": (("--factor", "1e7"), f"--factor: 1e+07 times 512 {BEYOND}", "", 1),
    "factor beyond all": (("--factor", "1e300"), f"--factor: 1e+300 {BEYOND}", "", 1),
    "a target below": (
        ("--target-length", "511"),
        "--target-length: 511 is below the 512 tokens of the trained length; there is nothing to extend",
        "a target length of at least 512", 1,
    ),
    "crossed betas": (
        ("--factor", "4", "--beta-fast", "1", "--beta-slow", "32"),
        ("--beta-fast: beta_fast 1 is below beta_slow 32; pairs with more turns than beta_fast are kept, with "
"fewer than beta_slow divided"),
        "--beta-fast 32 --beta-slow 1", 1,
    ),
    "a negative beta": (
        ("--factor", "4", "--beta-slow", "-1"), "--beta-slow: beta_slow is -1.0; it counts turns and must be from 1e-06 to 1e+09", "", 1,
    ),
    "a negative attention factor": (
        ("--factor", "4", "--attention-factor", "-1"),
        "--attention-factor: -1.0 multiplies cos and sin and must be a finite number above 0", "", 1,
    ),
    "an attention factor NaN": (
        ("--factor", "4", "--attention-factor", "nan"),
        "--attention-factor: nan multiplies cos and sin and must be a finite number above 0", "", 1,
    ),
    "an unknown preset": (
        ("--factor", "4", "--attention-factor", "hot"),
        "--attention-factor: 'hot' must be a number or one of auto, none, yarn, logn", "", 1,
    ),
    "an original length of 0": (("--factor", "4", "--original-length", "0"), NO_LENGTH.format(0), "", 1),
    "an original length beyond": (
        ("--factor", "4", "--original-length", "4294967296"), NO_LENGTH.format(4294967296), "", 1,
    ),
    "an unknown method": (
        ("--method", "yarm", "--factor", "4"),
        "--method: no method is called 'yarm' (did you mean yarn?); known: "
        "abf, attention, dynamic, length, linear, llama3, longrope, mixed-ntk, ntk, "
        "ntk-by-parts, yarn", "ropetool methods", 2,
    ),
    "an unknown parameter": (
        ("--factor", "4", "-p", "beta", "1"),
        "-p: yarn has no parameter beta (did you mean beta_slow or beta_fast?); it has: "
        "beta_fast, beta_slow, truncate, ramp", "ropetool methods yarn", 2,
    ),
    "a parameter of another kind": (
        ("--factor", "4", "-p", "truncate", "maybe"), "yarn -p truncate: 'maybe' is not true or false", "", 2,
    ),
    "a parameter twice": (("--factor", "4", "-p", "beta_fast", "8", "--beta-fast", "8"), "-p beta_fast: given twice", "", 2),
    "an unknown ramp": (("--factor", "4", "-p", "ramp", "x"), "-p ramp: 'x' is not a ramp; pass dims or turns", "", 1),
    "no base": (("-m", "abf", "--factor", "4"), "--rope-theta: abf needs the new base", "--rope-theta 1e6", 1),
    "a base of 1": (
        ("-m", "abf", "--factor", "4", "--rope-theta", "1"), "--rope-theta: 1 is not a base; a base is a finite number above 1", "", 1,
    ),
    "no divisors": (
        ("-m", "longrope", "--factor", "4"), "-p long_factor: longrope needs a list of divisors, and the source does not have one",
        "-p long_factor FILE.json, a JSON list of one number per rotary pair", 1,
    ),
    "divisors too few": (
        ("-m", "longrope", "--factor", "4", "-p", "long_factor", "[1, 2]"),
        "-p long_factor: long_factor has 2 entries; the model has 16 rotary pairs", "", 1,
    ),
    "a divisor of 0": (
        ("-m", "longrope", "--factor", "4", "-p", "long_factor", json.dumps([1] * 15 + [0])),
        "-p long_factor: long_factor[15] is 0.0; a divisor is a finite number above 0", "", 1,
    ),
    "a divisor NaN": (
        ("-m", "longrope", "--factor", "4", "-p", "long_factor", "[NaN" + ", 1" * 15 + "]"),
        "-p long_factor: long_factor[0] is nan; a divisor is a finite number above 0", "", 1,
    ),
    "divisors as text": (
        ("-m", "longrope", "--factor", "4", "-p", "long_factor", '["1"'), "-p long_factor [\"1\": is not valid JSON: "
        "Expecting ',' delimiter at line 1, column 21", "", 1,
    ),
    "divisors in a file that is not there": (
        ("-m", "longrope", "--factor", "4", "-p", "long_factor", "/nowhere.json"),
        "-p long_factor /nowhere.json: is neither a JSON list nor a file of at most 4,194,304 bytes", "", 1,
    ),
    "divisors from a device": (
        ("-m", "longrope", "--factor", "4", "-p", "long_factor", "/dev/zero"),
        "-p long_factor /dev/zero: is neither a JSON list nor a file of at most 4,194,304 bytes", "", 1,
    ),
    "divisors under another name": (
        ("-m", "longrope", "--factor", "4", "-p", "short_factor", "{m}/config.json"),
        "-p short_factor {m}/config.json: does not contain a list short_factor", "", 1,
    ),
    "a freeze within the trained length": (
        ("-m", "dynamic", "--factor", "4", "-p", "freeze", "100"),
        "-p freeze: 100 must be from the trained length, 512, to 2147483648 tokens", "", 1,
    ),
    "a style that the runtime does not read": (
        ("--factor", "4", "--config-style", "v5", "--for", "transformers-v4"),
        f"{C}: yarn cannot be written in v5 style for transformers-v4: transformers-v4 ignores rope_parameters",
        "ropetool extend {m} --method yarn --factor 4 --for transformers-v4 --config-style both", 1,
    ),
    "a style that the runtime does not read, explained": (
        ("--factor", "4", "--config-style", "v5", "--for", "transformers-v4", "--explain"),
        f"{C}: yarn cannot be written in v5 style for transformers-v4: yarn keys, yarn keys in full, a full table as "
        "longrope lists: transformers-v4: table: 14 of 16 pairs differ: distances look up to 4x longer; attention factor 1 "
        "instead of 1.13863: scores of the rotated channels times 0.771321; with the rest in the weights: transformers-v4: "
        "table: 14 of 16 pairs differ: distances look up to 4x longer",
        "ropetool extend {m} --method yarn --factor 4 --for transformers-v4 --config-style both", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_that_cannot_be_met(case: str, model: Path, tmp_path: Path) -> None:
    options, error, try_, code = OPTIONS[case]
    options = tuple(option.replace("{m}", str(model)) for option in options)
    method = () if {"-m", "--method"} & set(options) else ("--method", "yarn")
    refused(tmp_path, error, try_, "extend", model, *method, *options, code=code)


def test_a_runtime_that_is_not_known(model: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    done = run("extend", model, *EXTEND, "--for", "vlm", "--json")
    assert (done.code, done.json["error"]["type"], done.json["error"]["where"]) == (2, "UnknownRuntime", "--for")
    assert done.json["error"]["message"].startswith(
        "no runtime is called 'vlm' (did you mean vllm or mlx-vlm?); known: "
    )
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "options",
    [("--factor", "x"), ("--target-length", "2e3"), ("--target-length", "0"), ("--target-length", "-1"),
     ("--from", "x"), ("--config-style", "v6"), ("-p", "beta_fast")],
)  # fmt: skip
def test_wrong_usage(options: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    done = run("extend", model, "--method", "yarn", *options)
    assert (done.code, done.out) == (2, "")
    assert "Error: " in done.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("length", ["nan", "inf", "0.5", "1e300"])
def test_a_scaled_source_does_not_hide_a_wrong_factor(length: str, tmp_path: Path) -> None:
    """The refusal that spells out two readings would have to multiply by it."""
    model = write_config(tmp_path / "model", {**configs.config("llama", "v4"), "rope_scaling": YARN})
    done = run("extend", model, "--method", "yarn", "--factor", length)
    assert (done.code, done.err[:15]) == (1, "Error: --factor")
