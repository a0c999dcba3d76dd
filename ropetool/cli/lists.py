"""ropetool methods, families and runtimes: generated from the code and data that they describe."""

from __future__ import annotations

import click

from ropetool.cli import show


@click.command("methods")
@click.argument("name", required=False)
def methods_command(name: str | None) -> None:
    """List the methods, or explain one."""
    from ropetool import methods
    from ropetool.report.lists import method_text, overview

    rows = [(n, methods.get(n).summary) for n in methods.names()]
    show(overview(rows) if name is None else method_text(methods.get(name)))


@click.command("families")
@click.argument("name", required=False)
def families_command(name: str | None) -> None:
    """List the model families, or explain one."""
    from ropetool import families
    from ropetool.report.lists import family_text, overview

    known = [families.get(n) for n in families.names()]
    rows = [(f.model_type, f"{f.architecture}, for example {f.example}") for f in known]
    show(overview(rows) if name is None else family_text(families.get(name)))


@click.command("runtimes")
@click.argument("name", required=False)
def runtimes_command(name: str | None) -> None:
    """List the runtimes, or explain one."""
    from ropetool import runtimes
    from ropetool.report.lists import overview, runtime_text

    rows = [(n, runtimes.get(n).summary) for n in runtimes.names()]
    show(overview(rows) if name is None else runtime_text(runtimes.get(name)))
