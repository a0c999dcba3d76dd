"""extend --variants: one output for each of several lengths, and routing files for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import notes, print_json, show, terminal_width
from ropetool.cli.extension import AUTO, ExtensionOptions
from ropetool.cli.options import refuse
from ropetool.errors import ConfigError, RopetoolError

if TYPE_CHECKING:
    from ropetool.cli.apply import PlanOptions
    from ropetool.cli.origin import ExtensionSource
    from ropetool.plans.applied import Applied
    from ropetool.plans.variants import Variants

REFUSED = {
    **dict.fromkeys(("factor", "target_length"), "--variants lists the lengths itself and does not accept {}"),
    "native_short": "--variants does not accept {}: the routing files send short prompts to the source",
    **dict.fromkeys(
        ("in_place", "copy_if_needed", "companion", "plan_out"), "--variants writes several outputs and does not accept {}"
    ),
    **dict.fromkeys(
        ("verify", "suite", "grade", "export", "allow_unverified"),
        "--variants does not accept {}: verify or export each output separately",
    ),
}  # fmt: skip


def extend_variants(
    source: str, lengths: list[int], extension: ExtensionOptions, options: PlanOptions, as_json: bool
) -> int:
    """Extend a model to each length, or print the plans of --dry-run. Return the exit code."""
    from ropetool.cli.origin import ExtensionSource

    _check(lengths, extension, options)
    origin = ExtensionSource.of(source, config_is_enough=options.dry_run)
    planned = _planned(origin, sorted(lengths), extension, options)
    if options.dry_run:
        _show_plans(planned, as_json)
        return 0
    planned.check(origin.checkpoint, force=options.force)
    notes([planned.space()])
    written, shared = _carried_out(planned, options)
    _show(planned, written, shared, as_json)
    return 0


def _check(lengths: list[int], extension: ExtensionOptions, options: PlanOptions) -> None:
    """Check the options, before a file is opened.

    Raises: click.UsageError for options that exclude each other; as `ExtensionOptions.check`; OutputError for a folder
    that cannot have outputs.
    """
    from ropetool.files.output import check_place

    refuse(REFUSED)
    if extension.method == AUTO:
        raise click.UsageError("--method auto does not work with --variants: name the method")
    twice = next((length for length in lengths if lengths.count(length) > 1), None)
    if twice is not None:
        raise ConfigError(f"contains {twice} twice", where="--variants", try_="list each length once")
    for length in lengths:
        with _of_length(length):
            replace(extension, target_length=length).check()
    if options.output is not None and not options.dry_run:
        check_place(Path(options.output, "output"), Path(os.devnull))


@contextmanager
def _of_length(length: int) -> Iterator[None]:
    """Name the length in an error about it."""
    try:
        yield
    except RopetoolError as error:
        where = f"--variants {length}"
        if error.where == "--target-length":
            error.try_ = "leave out this length"
        error.where = where if error.where in ("", "--target-length") else f"{where}: {error.where}"
        raise


def _planned(
    origin: ExtensionSource, lengths: list[int], extension: ExtensionOptions, options: PlanOptions
) -> Variants:
    """Plan every length by the same method: by default, the recommended method for the longest length."""
    from ropetool.cli.method_choice import choose
    from ropetool.plans.basis import ORIGINAL
    from ropetool.plans.variants import Variants

    source = origin.checkpoint
    with _of_length(lengths[-1]):
        choice = choose(source, replace(extension, target_length=lengths[-1]), None, quiet=True)
    if choice.why:
        notes([choice.why])
    plans = []
    for length in lengths:
        with _of_length(length):
            origin, plan = origin.planned(replace(choice.extension, target_length=length).request())
            plans.append(plan)
    if plans[0].reading == ORIGINAL:
        notes(
            ["the source is already scaled, which costs quality on short prompts: pass the model without it as SOURCE"]
        )
    folder = None if options.output is None else Path(options.output)
    return Variants.of(origin.checkpoint, plans, folder, copy=options.copy)


def _carried_out(planned: Variants, options: PlanOptions) -> tuple[list[Applied], int]:
    """Write the outputs, and then the routing files. Return the outputs, and the bytes that they share.

    After an error, print the names of the written files.
    """
    from ropetool.cli.apply import applied

    written: list[Applied] = []
    try:
        for variant in planned.variants:
            written.append(applied(variant.plan, planned.source, variant.output, options))
        shared = 0 if options.copy else planned.share_storage()
        notes(planned.write_files(force=options.force))
    except BaseException:
        if written:
            missing = [str(variant.output) for variant in planned.variants[len(written) :]]
            notes([
                f"already written: {', '.join(str(each.output) for each in written)}; not written: "
                f"{', '.join([*missing, *map(str, planned.files.values())])}. To write all of them, run the command again with --force"
            ])  # fmt: skip
        raise
    return written, shared


def _show_plans(planned: Variants, as_json: bool) -> None:
    """Print the plans of --dry-run."""
    from ropetool.report.planned import plan_parts, planned_json
    from ropetool.report.routed import routed_json, routed_parts
    from ropetool.report.terminal import terminal_text

    if as_json:
        plans = [planned_json(variant.plan, variant.output) for variant in planned.variants]
        print_json(routed_json(planned, plans, written=False))
        return
    for variant in planned.variants:
        show(terminal_text(plan_parts(variant.plan, str(variant.output)), terminal_width()) + "\n")
    show(terminal_text(routed_parts(planned), terminal_width()))
    _note_once(planned, [])


def _show(planned: Variants, written: list[Applied], shared: int, as_json: bool) -> None:
    """Print the plans and the outputs. shared: the bytes that the outputs share."""
    from ropetool.report.planned import applied_json, applied_parts
    from ropetool.report.routed import routed_json, routed_parts
    from ropetool.report.terminal import terminal_text

    done = list(zip(planned.variants, written, strict=True))
    if as_json:
        results = [applied_json(variant.plan, output) for variant, output in done]
        print_json(routed_json(planned, results, shared, written=True))
        return
    for variant, output in done:
        bare = replace(output, serving=())  # the routing files contain these lines
        show(terminal_text(applied_parts(variant.plan, bare)) + "\n")
    show(terminal_text(routed_parts(planned, shared)))
    _note_once(planned, written)


def _note_once(planned: Variants, written: list[Applied]) -> None:
    """Print the notes of all plans and outputs, each of them once."""
    every = [note for variant in planned.variants for note in variant.plan.notes]
    notes(dict.fromkeys([*every, *(note for output in written for note in output.notes)]))
