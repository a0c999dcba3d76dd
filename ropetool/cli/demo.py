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

FACTOR = 8
PASSAGE_TOKENS = 1500


@click.command("demo")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path())
def demo_command(directory: str | None) -> int:
    """Extend, verify and export the embedded checkpoint.

    Unpacks a Llama with 3.5 million parameters, trained at 256 tokens, into the new folder DIR or a temporary folder. Extends
    it eight times with YaRN, verifies the result, and exports it to GGUF. If llama.cpp is installed, the demo compares the
    logits of llama.cpp and transformers. It needs less than a minute on two cores.

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
        target = _extend(source)
        result = _verify(source, target, kept=directory is not None)
        _export(target)
        if directory is not None:
            show(f"\nThe checkpoints and the GGUF file are in {escaped(folder)}.\n")
    return result.exit_code


def _new_folder(directory: str) -> Path:
    from ropetool.errors import OutputError

    folder = Path(directory)
    try:
        folder.mkdir()
    except OSError as error:
        raise OutputError(
            f"cannot be created ({error.strerror})", where=directory, try_="ropetool demo NEW-FOLDER"
        ) from None
    return folder


def _extend(source: Path) -> Path:
    from ropetool.plans.applying import apply
    from ropetool.plans.search import make_plan
    from ropetool.report.planned import applied_text

    plan = make_plan(source, "yarn", factor=FACTOR)
    target = plan.output_beside(source)
    click.echo(f"$ ropetool extend model --method yarn --factor {FACTOR}")
    written = apply(plan, source, target)
    show(f"{_without(source.parent, applied_text(plan, written))}\n")
    notes(plan.notes)
    return target


def _verify(source: Path, target: Path, *, kept: bool) -> VerifyResult:
    from ropetool.cli.verify import run_verify

    click.echo(f"$ {command('ropetool', 'verify', target.name)}")
    again = f"`{command('ropetool', 'verify', target, '--baseline', source, '--resume')}`"
    result = run_verify(target, baseline=source, again=again if kept else "")
    click.echo()
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
        return f"not measured: llama-cpp-python is not installed; {missing.try_}"
    return f"largest difference {found.difference:.1e} of the largest logit over {found.tokens} tokens"


def _without(folder: Path, text: str) -> str:
    """Return the text with names inside the folder as seen from there."""
    return text.replace(f"{escaped(folder.resolve())}/", "").replace(f"{escaped(folder)}/", "")
