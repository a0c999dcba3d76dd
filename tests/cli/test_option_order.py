"""Options are checked before a file is opened, in the order in which they are typed, and the error names the option."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from running import run

from ropetool.cli import COMMANDS
from ropetool.errors import RopetoolError

# A wrong value, by command line, and the beginning of the error. `nowhere` does not exist.
WRONG = {
    "advise nowhere --target-length 4k --for banana": "--for: no runtime is called 'banana'",
    "extend nowhere -m banana --factor 4": "--method: no method is called 'banana'",
    "extend nowhere -m yarn --factor 0.5": "--factor: 0.5 is not a factor",
    "extend nowhere --factor 0.5": "--factor: 0.5 is not a factor",
    "extend nowhere -m auto --factor 0.5": "--factor: 0.5 is not a factor",
    "extend nowhere -m yarn --factor 1e10": "--factor: 1e+10 tokens is above 2147483648",
    "extend nowhere -m yarn --factor 4 --target-length 4k": "pass exactly one of --factor and --target-length",
    "extend nowhere -m yarn --factor 4 -p beta_fats 3": "-p: yarn has no parameter beta_fats",
    "extend nowhere -m yarn --factor 4 -p beta_fast 3 -p beta_fast 4": "-p beta_fast: given twice",
    "extend nowhere -m longrope --factor 4 -p long_factor [1": "-p long_factor [1: is not valid JSON",
    "extend nowhere -m yarn --factor 4 --attention-factor banana": "--attention-factor: 'banana' must be a number or one of",
    "extend nowhere -m yarn --factor 4 --original-length 0": "--original-length: 0 is not a length",
    "extend nowhere -m yarn --factor 4 --for banana": "--for: no runtime is called 'banana'",
    "extend nowhere -m yarn --factor 4 --plan-out no/plan": "--plan-out no/plan: cannot be written",
    "extend nowhere -m yarn --factor 4 --verify --grade banana": "--grade: 'banana' is not one of",
    "extend nowhere -m auto --factor 4 --tune-minutes 0": "--tune-minutes: the time must be a number of minutes above 0",
    "extend nowhere -m auto": "--method auto requires either --factor or --target-length",
    "extend nowhere -m auto --factor 4 --as llama": "--method auto does not accept --as",
    "extend nowhere --factor 4 --beta-fast 0": "--beta-fast is a parameter of a method",
    "bake nowhere banana": "no bake is called 'banana'",
    "bake nowhere drop-pairs --pairs 3-1": "--pairs: '3-1' is not a list of pairs",
    "bake nowhere drop-pairs --pairs 3 --mode banana": "--mode: 'banana' must be still or mute",
    "bake nowhere attention-factor --side banana": "--side: 'banana' is not one of",
    "bake nowhere attention-factor --to half": "--to: attention-factor does not accept this option",
    "bake nowhere attention-factor --bake-dtype f16": "--bake-dtype: 'f16' is neither f32 nor f64",
    "compare nowhere --methods banana --factors 4": "--methods: no method is called 'banana'",
    "compare nowhere --factors 0.5": "--factors: the factor must be above 1",
    "compare nowhere": "--methods: no candidates to compare",
    "compare nowhere --factors 4 --for banana": "--for: no runtime is called 'banana'",
    "compare nowhere --factors 4 --original-length 0": "--original-length: 0 is not a length",
    "check nowhere --trained-length 0": "--trained-length: must be a whole number of tokens",
    "verify nowhere --trained-length 0": "--trained-length: must be a whole number of tokens",
    "verify nowhere --max-kl 0": "--max-kl: the limit must be finite",
    "verify nowhere --cache-type banana": "--cache-type: 'banana' is not one of",
    "verify nowhere --tensor-parallel-size 0": "--tensor-parallel-size requires --runner vllm",
    "identify --source nowhere --server x:1 --length 0": "Invalid value for '--length': 0 is not in the range",
    "identify --source nowhere --server x:1 --length 1,2": "--length accepts only one number of tokens",
    "tune nowhere --target-length 4k --budget 0": "--budget: the time must be a number of minutes above 0",
    **{
        f"{name} {option}": f"{option.split()[0]}: {message}"
        for name in ("compare nowhere --factors 4", "verify nowhere")
        for option, message in {
            "--lengths 512,256": "lengths must increase", "--suite banana": "'banana' is not one of",
            "--measure banana": "'banana' is not one of", "--grade banana": "'banana' is not one of",
            "--segments 3": "must be a whole number of at least 8", "--trials 0": "must be a whole number of at least 1",
            "--budget 0": "the time must be a number of minutes above 0",
        }.items()
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_value_is_reported_before_a_missing_source(line: str) -> None:
    done = run(*shlex.split(line))
    assert done.code in (1, 2)
    (error,) = (each for each in done.err.splitlines() if each.startswith("Error: "))
    assert error.removeprefix("Error: ").startswith(WRONG[line])
    assert done.out == ""


def test_the_source_is_missing_in_each_of_these_lines() -> None:
    for name in {line.split()[0] for line in WRONG}:
        assert name in COMMANDS
    assert "nowhere: does not exist" in run("extend", "nowhere", "--factor", "4").err
    assert "nowhere: does not exist" in run("verify", "nowhere").err


@pytest.mark.parametrize(
    ("command", "first", "second"),
    [
        ("verify nowhere", "--grade banana", "--budget 0"),
        ("verify nowhere", "--segments 3", "--trained-length 0"),
        ("verify nowhere", "--lengths 2,1", "--cache-type banana"),
        ("compare nowhere --factors 4", "--budget 0", "--suite banana"),
        ("compare nowhere --factors 4", "--trials 0", "--methods banana"),
        ("extend nowhere --factor 4", "--original-length 0", "--for banana"),
        ("extend nowhere --factor 4", "--grade banana", "--method banana"),
    ],
)
def test_the_first_of_two_wrong_values_is_reported(command: str, first: str, second: str) -> None:
    for options in (f"{first} {second}", f"{second} {first}"):
        error = run(*shlex.split(f"{command} {options}")).err
        assert f"Error: {options.split()[0]}: " in error


def test_options_that_exclude_each_other_are_named_in_the_order_of_the_help() -> None:
    line = "bake nowhere attention-factor --in-place --force --copy --check"
    assert "does not accept --check" in run(*line.split()).err
    line = "verify nowhere --server x:1 --judge a --against b"
    assert "--against does not apply to a served model" in run(*line.split()).err


def test_the_grade_of_a_measured_method_needs_no_verification() -> None:
    line = "extend nowhere --method auto --factor 4 --grade research"
    assert "nowhere: does not exist" in run(*line.split()).err
    assert "--grade requires --verify or --export" in run(*line.replace("auto", "yarn").split()).err
    assert "--suite requires --verify or --export" in run(*line.replace("grade research", "suite full").split()).err


def test_the_default_of_an_option_excludes_no_other() -> None:
    line = "verify nowhere --runner vllm --device auto"
    assert "nowhere: does not exist" in run(*line.split()).err


def test_a_value_is_not_checked_during_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    from ropetool.cli import group

    def fail(*_: object) -> None:
        raise RopetoolError("checked")

    monkeypatch.setattr("ropetool.runtimes.all_of", fail)
    command = group.get_command(None, "advise")  # type: ignore[arg-type]
    assert command is not None
    words = ["nowhere", "--target-length", "4k", "--for", "vllm"]
    command.make_context("advise", list(words), resilient_parsing=True)
    with pytest.raises(RopetoolError, match="checked"):
        command.make_context("advise", list(words))
