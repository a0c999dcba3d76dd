"""ropetool doctor."""

from __future__ import annotations

from pathlib import Path

import click

from ropetool.cli import local_source, print_json, show, terminal_width
from ropetool.cli.options import check_in_place, for_runtimes, in_place


@click.command("doctor")
@click.argument("sources", nargs=-1, type=click.Path(), metavar="SOURCE...")
@click.option(
    "--source", "origin", type=click.Path(), metavar="ORIGIN",
    help="The checkpoint that SOURCE was converted from. Reports positions that differ from it.",
)  # fmt: skip
@for_runtimes("A runtime that you use (repeatable). Treats warnings about it as errors, and skips other runtimes.")
@click.option("--only", multiple=True, metavar="RULE", help="Apply only this rule (repeatable).")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules.")
@click.option(
    "--fix",
    is_flag=True,
    help="Write a corrected copy next to the checkpoint, if its own runtime computes the same table from it. Run doctor on the copy again.",
)
@click.option(
    "--output", "-o", type=click.Path(), help="With --fix of one checkpoint: the output path. Default: SOURCE-fixed."
)
@in_place
@click.option(
    "--sarif", "sarif_file", type=click.Path(), metavar="FILE", help="Also write the findings as SARIF 2.1.0."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings, or the rules, as JSON.")
def doctor_command(
    sources: tuple[str, ...],
    origin: str | None,
    for_runtimes: tuple[str, ...],
    only: tuple[str, ...],
    list_rules: bool,
    fix: bool,
    output: str | None,
    in_place: bool,
    copy_if_needed: bool,
    sarif_file: str | None,
    as_json: bool,
) -> int:
    """Find and fix RoPE settings that runtimes misread.

    SOURCE is a model as in the other commands, or a folder of models, searched at any depth. Does not read weights. An
    unreadable checkpoint is a finding, and doctor continues with the others.

    --fix writes copies with the same table in a form that more runtimes read: both styles of config.json, numbers instead of
    strings, and GGUF keys with the types that llama.cpp requires. The format's own runtime reads the same values from the
    copy. With --in-place, --fix edits the GGUF file itself.

    Exit code 3 if there is an error, 1 if all errors are unreadable files or a copy could not be written. With --fix, only the
    remaining errors count. ropetool plans each command that it prints as a fix, so the command works.

    \b
    ropetool doctor model
    ropetool doctor ~/models --sarif findings.sarif
    ropetool doctor model.gguf --source model
    ropetool doctor model --for vllm --for transformers-v4
    ropetool doctor model --fix
    ropetool doctor --rules
    """
    from ropetool.cli.progress import bar
    from ropetool.doctor import examine
    from ropetool.doctor.fixing import Destination, exit_code, repaired
    from ropetool.doctor.rules import chosen
    from ropetool.report import sarif
    from ropetool.report.diagnosed import diagnosis_json, diagnosis_text, rules_json, rules_text

    if list_rules:
        rules = chosen(only)
        if as_json:
            print_json(rules_json(rules))
        else:
            show(rules_text(rules, terminal_width()))
        return 0
    if not sources:
        raise click.UsageError("Missing argument 'SOURCE...'.")
    if output is not None and (not fix or len(sources) != 1):
        raise click.UsageError("--output requires --fix and exactly one SOURCE")
    if in_place and not fix:
        raise click.UsageError("--in-place requires --fix")
    check_in_place(in_place, copy_if_needed, {"--output": output})
    if sarif_file is not None:
        sarif.check_place(Path(sarif_file))
    origin = None if origin is None else str(local_source(origin))
    with bar("checkpoints") as shown:
        found = examine(sources, source=origin, only=only, for_runtimes=for_runtimes, progress=shown)
    if output is not None and len(found.examined) != 1:
        raise click.UsageError("--output writes one copy, but SOURCE contains several checkpoints")
    repairs = (
        repaired(found, Destination(None if output is None else Path(output), in_place, copy_if_needed)) if fix else ()
    )
    if sarif_file is not None:
        sarif.write_sarif(found, Path(sarif_file))
    if as_json:
        print_json(diagnosis_json(found, repairs))
    else:
        show(diagnosis_text(found, terminal_width(), repairs))
    return exit_code(found, repairs)
