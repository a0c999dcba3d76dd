"""ropetool demo."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from ropetool.cli import notes

LENGTHS = [256, 512, 1024, 2048]


@click.command("demo")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path())
def demo_command(directory: str | None) -> int:
    """Extend and verify the embedded demo checkpoint.

    A Llama of 3.5 million parameters that was trained at 256 tokens is unpacked to DIR (a temporary folder without
    it), extended eight times with YaRN, and measured before and after at 256 to 2048 tokens. About a minute on two
    cores.

    \b
    ropetool demo my-demo
    """
    from ropetool.applying import apply
    from ropetool.cli.progress import bar
    from ropetool.errors import OutputError
    from ropetool.planning import make_plan
    from ropetool.report.planned import applied_text
    from ropetool.report.text import verify_table
    from ropetool.verification.checkpoints import verify_checkpoint

    with ExitStack() as stack:
        if directory is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ropetool-demo-")))
        else:
            folder = Path(directory)
            try:
                folder.mkdir()
            except OSError as error:
                raise OutputError(
                    f"it cannot be made ({error.strerror})", where=directory, try_="ropetool demo NEW-FOLDER"
                ) from None
        source = folder / "model"
        shutil.copytree(Path(__file__).parents[1] / "demo" / "model", source)
        plan = make_plan(source, "yarn", factor=8)
        target = plan.output_beside(source)
        click.echo("$ ropetool extend model --method yarn --factor 8")
        click.echo(applied_text(plan, apply(plan, source, target)).replace(f"{folder.resolve()}/", ""))
        notes(plan.notes)
        click.echo(f"$ ropetool verify {target.name} --baseline model --lengths {','.join(map(str, LENGTHS))}")
        with bar() as progress:
            result = verify_checkpoint(target, baseline=source, lengths=LENGTHS, progress=progress)
        click.echo(verify_table(result), nl=False)
        notes(list(result.notes))
        if directory is not None:
            click.echo(f"\nBoth checkpoints are in {folder}.")
    return result.exit_code
