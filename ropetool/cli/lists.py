"""ropetool methods, families and runtimes: generated from the code and data that they describe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ropetool.cli import print_result, show, terminal_width
from ropetool.cli.options import FAMILY, METHOD, RUNTIME
from ropetool.errors import UnknownName

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print the list or the explanation as JSON.")


@contextmanager
def _without_option(command: str) -> Iterator[None]:
    """Take from a refusal of a name the option of other commands: here the name is an argument."""
    try:
        yield
    except UnknownName as error:
        raise type(error)(error.message, try_=f"ropetool {command}") from None


@click.command("methods")
@click.argument("name", required=False, type=METHOD)
@as_json_option
def methods_command(name: str | None, as_json: bool) -> None:
    """List the methods, or explain one."""
    from ropetool.report.lists import listed, method_json, method_parts, overview_parts
    from ropetool.rope import methods

    with _without_option("methods"):
        chosen = [methods.get(n) for n in (methods.names() if name is None else [name])]
    rows = [(m.name, m.summary) for m in chosen]
    print_result(
        as_json, lambda: listed("methods", map(method_json, chosen)),
        lambda: overview_parts("methods", rows) if name is None else method_parts(chosen[0]), width=terminal_width(),
    )  # fmt: skip


@click.command("families")
@click.argument("name", required=False, type=FAMILY)
@as_json_option
def families_command(name: str | None, as_json: bool) -> None:
    """List the model families, or explain one."""
    from ropetool import families

    chosen = [families.get(n) for n in (families.names() if name is None else [name])]
    if name is not None and not as_json:
        from ropetool.report.family_details import family_parts
        from ropetool.report.terminal import terminal_text

        show(terminal_text(family_parts(chosen[0]), terminal_width()))
        return
    from ropetool.report.lists import family_json, listed, overview_parts

    rows = [(f.model_type, f"{f.architecture}{f.example and f', for example {f.example}'}") for f in chosen]
    print_result(
        as_json, lambda: listed("families", map(family_json, chosen)), lambda: overview_parts("families", rows),
        width=terminal_width(),
    )  # fmt: skip


@click.command("runtimes")
@click.argument("name", required=False, type=RUNTIME)
@as_json_option
def runtimes_command(name: str | None, as_json: bool) -> None:
    """List the runtimes, or explain one."""
    from ropetool import runtimes
    from ropetool.report.lists import listed, overview_parts, runtime_json, runtime_parts

    with _without_option("runtimes"):
        chosen = [runtimes.get(n) for n in (runtimes.names() if name is None else [name])]
    rows = [(r.name, r.summary) for r in chosen]
    print_result(
        as_json, lambda: listed("runtimes", [runtime_json(one, runtimes.all_of(one.name)) for one in chosen]),
        lambda: overview_parts("runtimes", rows) if name is None else runtime_parts(chosen[0]), width=terminal_width(),
    )  # fmt: skip
