"""ropetool demo."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import command_line, notes, show
from ropetool.escaping import command, escaped

if TYPE_CHECKING:
    from ropetool.verification.results import VerifyResult

FACTOR = 8
PASSAGE_TOKENS = 1500


@click.command("demo")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path())
def demo_command(directory: str | None) -> int:
    """Extend, verify and export the embedded checkpoint.

    Unpacks a Llama with 3.5 million parameters, trained at 256 tokens, into the new folder DIR, by default ropetool-demo.
    Extends it eight times with YaRN, verifies the result, and exports it to GGUF. If llama.cpp is installed, the demo
    compares the logits of llama.cpp and transformers. It needs less than a minute on two cores.

    \b
    ropetool demo my-demo
    """
    _check_packages()
    folder = _new_folder(directory)
    source = folder / "model"
    shutil.copytree(Path(__file__).parents[1] / "demo" / "model", source)
    target = _extend(source)
    result = _verify(source, target)
    _export(target)
    show(
        f"\nThe checkpoints and the GGUF file are in {escaped(folder)}. The same for your own model:\n"
        "  ropetool extend MODEL --target-length 32k\n"
    )
    return result.exit_code


def _check_packages() -> None:
    """Return if the packages of `verify` are installed. Raises: MissingDependency."""
    from ropetool.errors import MissingDependency, lacking
    from ropetool.escaping import install_line

    absent = lacking(["torch", "transformers"])
    if absent:
        raise MissingDependency(f"the demo runs a model, and {absent}", try_=install_line("verify"))


def _new_folder(directory: str | None) -> Path:
    from ropetool.errors import OutputError

    names = ("ropetool-demo", *(f"ropetool-demo-{count}" for count in range(2, 100)))
    free = next((name for name in names if not Path(name).exists()), names[0])
    folder = Path(free if directory is None else directory)
    try:
        folder.mkdir()
    except OSError as error:
        raise OutputError(
            f"cannot be created ({error.strerror})", where=str(folder), try_="ropetool demo NEW-FOLDER"
        ) from None
    return folder


def _extend(source: Path) -> Path:
    from ropetool.plans.applying import apply
    from ropetool.plans.search import make_plan
    from ropetool.report.planned import applied_parts
    from ropetool.report.terminal import terminal_text

    plan = make_plan(source, "yarn", factor=FACTOR)
    target = plan.output_beside(source)
    click.echo(f"$ ropetool extend model --method yarn --factor {FACTOR}")
    written = apply(plan, source, target)
    show(f"{_without(source.parent, terminal_text(applied_parts(plan, written)))}\n")
    notes(plan.notes)
    return target


def _verify(source: Path, target: Path) -> VerifyResult:
    from ropetool.cli.runs import run_verify
    from ropetool.verification.options import VerifyOptions
    from ropetool.verification.readback.terms import Terms

    click.echo(f"$ {command('ropetool', 'verify', target.name)}")
    again = f"`{command('ropetool', 'verify', target, '--baseline', source, '--resume')}`"
    options = VerifyOptions(baseline=source, terms=Terms(), command=command_line())
    result = run_verify(target, options, again=again)
    click.echo()
    return result


def _export(target: Path) -> None:
    from ropetool.cli.export import exported
    from ropetool.gguf_export.options import ExportOptions
    from ropetool.report.exported import exported_parts
    from ropetool.report.terminal import terminal_text

    click.echo(f"$ ropetool export {target.name} --outtype f32")
    written = exported(target, None, ExportOptions(outtype="f32"))
    show(_without(target.parent, terminal_text(exported_parts(written))))
    notes(written.notes)
    show(f"parity: {_parity(target, written.output)}\n")


def _parity(target: Path, exported: Path) -> str:
    from ropetool.errors import MissingDependency
    from ropetool.verification.measures.parity import logit_parity
    from ropetool.verification.texts import embedded_documents

    try:
        parity = logit_parity(target, exported, embedded_documents()[0], PASSAGE_TOKENS)
    except MissingDependency as missing:
        return f"not measured: llama-cpp-python is not installed; {missing.try_}"
    return f"largest difference {parity.difference:.1e} of the largest logit over {parity.tokens} tokens"


def _without(folder: Path, text: str) -> str:
    """Return the text with names inside the folder as seen from there."""
    return text.replace(f"{escaped(folder.resolve())}/", "").replace(f"{escaped(folder)}/", "")
