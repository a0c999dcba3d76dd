"""Numbers in options are ASCII digits, as the contract writes them: Python reads more than that as a number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from running import run

import ropetool
from ropetool.cli import group
from ropetool.cli.options import Factor, Length, LengthList, Number, Whole, WholeRange

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
# Python's int and float take all of these.
ODD = ("1_024", "\uff14", "\u0664", "4\n", "\t4", "\u00a04")


def options(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from options(found, f"{path} {name}")
    else:
        yield from ((path, parameter) for parameter in command.params)


def test_every_number_option_has_a_type_that_reads_ascii_digits_alone() -> None:
    numeric = (click.types.IntParamType, click.types.FloatParamType)
    found = [(path, one.name, one.type) for path, one in options(group) if isinstance(one.type, numeric)]
    assert len(found) > 15
    assert [each for each in found if not isinstance(each[2], (Whole, WholeRange, Number))] == []


@pytest.mark.parametrize(
    "kind",
    [Whole(), WholeRange(1, 4096), Number(), Factor(), Length(), LengthList()],
    ids=lambda kind: type(kind).__name__,
)
def test_a_type_takes_no_other_spelling(kind: click.ParamType) -> None:
    for text in ODD:
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
    assert kind.convert("4", None, None) in (4, [4])


def test_what_the_contract_writes_is_taken() -> None:
    assert [Factor().convert(text, None, None) for text in ("4", "4x", "4X", "2.5", "1e1")] == [4, 4, 4, 2.5, 10]
    assert [Length().convert(text, None, None) for text in ("32768", "32k", "1M")] == [32768, 32768, 1 << 20]
    assert LengthList().convert("256, 4k", None, None) == [256, 4096]
    assert [Number().convert(text, None, None) for text in ("1e6", "-.5", "+2.")] == [1e6, -0.5, 2.0]


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize(
    "words",
    [("--method", "yarn", "-p", "beta_fast"), ("--method", "abf", "-p", "rope_theta"), ("--method", "yarn", "--attention-factor")],
    ids="-".join,
)  # fmt: skip
def test_parameters_take_no_other_spelling(words: tuple[str, ...], text: str) -> None:
    done = run("extend", str(DEMO), "--factor", "2", "--dry-run", *words, text)
    assert done.code in (1, 2)
    assert done.err.startswith(("Error: ", "Usage: "))
    assert "Traceback" not in done.err


def test_a_parameter_with_an_exponent_is_taken() -> None:
    done = run("extend", str(DEMO), "--method", "abf", "-p", "rope_theta", "1e5", "--target-length", "512", "--dry-run")
    assert done.code == 0, done.err
