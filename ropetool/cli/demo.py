"""ropetool demo."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import notes, show
from ropetool.escaping import command, escaped

if TYPE_CHECKING:
    from ropetool.verification.results import VerifyResult

LENGTHS = [256, 512, 1024, 2048]
PASSAGE_TOKENS = 1500
LARGE = "research"  # what a factor of 8 costs the demo is too much for more
# The largest factor found that is surely good enough for this grade with these texts; 4 is left undecided.
GRADE, FACTOR, BETA_FAST = "usable", 3, 8.0
SHORTER = [256, 512, 768]


@click.command("demo")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path())
def demo_command(directory: str | None) -> int:
    """Extend, verify and export the embedded checkpoint.

    A Llama of 3.5 million parameters that was trained at 256 tokens is unpacked to DIR (a temporary folder without
    it), extended eight times with YaRN, and measured before and after at 256 to 2048 tokens, for grade research. The
    same follows for the largest factor that is good enough for grade usable. What was extended eight times is then
    exported to GGUF, and where llama.cpp is installed its logits are compared with transformers'. About a minute on
    two cores.

    \b
    ropetool demo my-demo
    """
    with ExitStack() as stack:
        if directory is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ropetool-demo-")))
        else:
            folder = _new_folder(directory)
        source = folder / "model"
        shutil.copytree(Path(__file__).parents[1] / "demo" / "model", source)
        target = _extend(source, 8)
        result = _verify(source, target, kept=directory is not None)
        stricter = _verify_strictly(source, _extend(source, FACTOR, beta_fast=BETA_FAST), result)
        _export(target)
        if directory is not None:
            show(f"\nThe checkpoints and the GGUF file are in {escaped(folder)}.\n")
    return result.exit_code or stricter.exit_code


def _new_folder(directory: str) -> Path:
    from ropetool.errors import OutputError

    folder = Path(directory)
    try:
        folder.mkdir()
    except OSError as error:
        raise OutputError(
            f"it cannot be made ({error.strerror})", where=directory, try_="ropetool demo NEW-FOLDER"
        ) from None
    return folder


def _extend(source: Path, factor: int, **params: float) -> Path:
    from ropetool.plans.applying import apply
    from ropetool.plans.search import make_plan
    from ropetool.report.planned import applied_text

    plan = make_plan(source, "yarn", factor=factor, params=params)
    target = plan.output_beside(source)
    options = [f"--{name.replace('_', '-')} {value:g}" for name, value in params.items()]
    click.echo(" ".join(["$ ropetool extend model --method yarn --factor", str(factor), *options]))
    written = apply(plan, source, target)
    if not params:  # what it prints is seen once
        show(f"{_without(source.parent, applied_text(plan, written))}\n")
        notes(plan.notes)
    return target


def _verify(source: Path, target: Path, *, kept: bool) -> VerifyResult:
    from ropetool.cli.verify import run_verify

    options = ["--suite", "quick", "--lengths", ",".join(map(str, LENGTHS)), "--grade", LARGE]
    click.echo(f"$ {command('ropetool', 'verify', target.name, *options)}")
    again = f"`{command('ropetool', 'verify', target, '--baseline', source, *options, '--resume')}`"
    result = run_verify(
        target, baseline=source, lengths=LENGTHS, suite="quick", grade=LARGE, again=again if kept else ""
    )
    click.echo()
    return result


def _verify_strictly(source: Path, target: Path, larger: VerifyResult) -> VerifyResult:
    from ropetool.cli.verify import measured
    from ropetool.report.demonstrated import stricter_section
    from ropetool.report.terminal import section_text
    from ropetool.report.verdict import summary

    options = ["--suite", "quick", "--lengths", ",".join(map(str, SHORTER)), "--grade", GRADE]
    click.echo(f"$ {command('ropetool', 'verify', target.name, *options)}")
    result = measured(target, baseline=source, lengths=SHORTER, suite="quick", grade=GRADE, again="")
    title = f"yarn, factor {FACTOR} with beta_fast {BETA_FAST:g}, against the unextended model"
    show(f"{escaped(summary(result))}\n{section_text(stricter_section(title, result, larger))}\n")
    return result


def _export(target: Path) -> None:
    from ropetool.cli.export import exported
    from ropetool.report.exported import exported_text

    click.echo(f"$ ropetool export {target.name} --outtype f32")
    written = exported(target, None, outtype="f32", command="")
    show(_without(target.parent, exported_text(written)))
    notes(written.notes)
    show(f"parity: {_parity(target, written.output)}\n")


def _parity(target: Path, exported: Path) -> str:
    from ropetool.errors import MissingDependency
    from ropetool.verification.measures.parity import logit_parity
    from ropetool.verification.texts import embedded_documents

    try:
        found = logit_parity(target, exported, embedded_documents()[0], PASSAGE_TOKENS)
    except MissingDependency as missing:
        return f"not measured, llama-cpp-python is not installed; {missing.try_}"
    return f"largest difference {found.difference:.1e} of the largest logit over {found.tokens} tokens"


def _without(folder: Path, text: str) -> str:
    """Return the text with names inside the folder as seen from there."""
    return text.replace(f"{escaped(folder.resolve())}/", "").replace(f"{escaped(folder)}/", "")
