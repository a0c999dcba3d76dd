"""ropetool extend: choose a method, plan the extension, and carry it out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import notes, print_json, show, terminal_width
from ropetool.cli import options as shared
from ropetool.cli.extension import AUTO, ExtensionOptions
from ropetool.cli.next_steps import completed_tries
from ropetool.escaping import command, word

if TYPE_CHECKING:
    from ropetool.cli.apply import PlanOptions
    from ropetool.cli.chain import Chain
    from ropetool.cli.companion import Companion
    from ropetool.cli.method_choice import MethodChoice
    from ropetool.cli.origin import ExtensionSource
    from ropetool.plans.applied import Applied
    from ropetool.plans.plan import Plan

GROUPS = {
    "How far": ("method", "factor", "target_length", "variants", "reading", "params"),
    "Output": ("output", "for_runtimes", "in_place", "dry_run", "as_json"),
}


@click.command("extend", cls=shared.Grouped, groups=GROUPS)
@shared.SOURCE
@click.option(
    "--method", "-m", type=shared.METHOD, metavar="METHOD", callback=shared.checked("ropetool.cli.extension.check_method"),
    help="A method from `ropetool methods`, or auto to measure which one is best. Default: the advice of `ropetool advise`.",
)  # fmt: skip
@click.option(
    "--tune-minutes", type=shared.NUMBER, metavar="MINUTES", callback=shared.checked("ropetool.cli.extension.check_minutes"),
    help="With --method auto: if YaRN wins, tune it for this many minutes. Keep the result only if it is significantly better.",
)  # fmt: skip
@click.option(
    "--factor", type=shared.Factor(),
    help="The new context length as a multiple: 4 or 4x. Multiplies the trained length, or with --from current the current "
    "context length.",
)  # fmt: skip
@shared.target_length("The new context length in tokens, instead of --factor: 131072, 128k or 1M.")
@click.option(
    "--variants", type=shared.LengthList(), metavar="LENGTHS",
    help="Write an output for each length, as 16k,32k,64k, and configs of llama-swap and LiteLLM that send short prompts to "
    "the source. -o names the folder of all files.",
)  # fmt: skip
@click.option("--force-factor", is_flag=True, help="Allow more than 32 times the trained length without training.")
@shared.READING
@click.option(
    "-p", "params", nargs=2, multiple=True, metavar="NAME VALUE",
    help="A parameter of the method (repeatable). `ropetool methods NAME` lists them.",
)  # fmt: skip
@click.option(
    "--attention-factor", default="auto", show_default=True, metavar="auto|none|yarn|logn|X",
    help="The factor on cos and sin: from the method (auto), 1 (none), 0.1 ln(s) + 1 (yarn), sqrt(ln(sL) / ln(L)) (logn), or X. "
    "s is the factor of the extension, L the length before it.",
)  # fmt: skip
@click.option(
    "--temperature-scope", type=click.Choice(["rotary", "score"]),
    help="If only part of a head rotates: multiply the rotary part of the score, or the whole score. Default: score for MLA, "
    "else rotary.",
)  # fmt: skip
@click.option(
    "--beta-fast", type=shared.NUMBER,
    help="For yarn and ntk-by-parts: turns within the trained length above which a pair does not change. "
    "Default: 32, unless the source sets it.",
)  # fmt: skip
@click.option(
    "--beta-slow", type=shared.NUMBER,
    help="For yarn and ntk-by-parts: turns within the trained length below which a pair is fully scaled. "
    "Default: 1, unless the source sets it.",
)  # fmt: skip
@click.option(
    "--native-short", is_flag=True,
    help="Keep the table of the source up to its length, and use the new table only beyond it. transformers switches by the "
    "length of the text, llama.cpp and vLLM by the context that the server allocates.",
)  # fmt: skip
@click.option("--rope-theta", type=shared.NUMBER, help="For abf: the new base.")
@shared.ORIGINAL_LENGTH
@shared.output(
    "The output path. Default: SOURCE-METHOD-FACTORx or SOURCE-METHOD-LENGTH, next to the source, or in the "
    "current folder for a source in the Hub's cache or in Ollama's store."
)
@shared.for_runtimes(
    "A runtime that must read the output correctly (repeatable). Default: transformers, or llama.cpp for GGUF files."
)
@shared.AS
@click.option(
    "--config-style", type=click.Choice(["v4", "v5", "both"]),
    help="rope_scaling (v4), rope_parameters (v5) or both. Default: the style of the source.",
)  # fmt: skip
@click.option(
    "--companion", type=click.Path(), metavar="DRAFT",
    help="A draft model for speculative decoding. Gets the same table, in a separate output next to DRAFT.",
)  # fmt: skip
@shared.in_place
@shared.DRY_RUN
@shared.PLAN_OUT
@shared.COPY
@shared.NO_SIDECARS
@shared.FORCE
@click.option("--verify", is_flag=True, help="Verify the output, and store the result as its certificate.")
@click.option(
    "--suite", type=click.Choice(["quick", "standard", "full"]), help="The suite of the verification. Default: quick."
)
@shared.GRADE
@click.option(
    "--export", type=click.Path(), metavar="FILE.gguf",
    help="Also write the output as a GGUF file, if it passes verification. Implies --verify.",
)  # fmt: skip
@click.option("--allow-unverified", is_flag=True, help="With --export: export without verification.")
@shared.explain(expose_value=False)  # read from the command line when an error is printed
@shared.JSON
@shared.gathered(extension=ExtensionOptions, options="ropetool.cli.apply.PlanOptions", chain="ropetool.cli.chain.Chain")
@completed_tries()
def extend_command(
    source: str, extension: ExtensionOptions, options: PlanOptions, chain: Chain, companion: str | None,
    variants: list[int] | None, as_json: bool,
) -> int:  # fmt: skip
    """Write a copy of a model with a longer context.

    Links the weight files and does not change the source. With --in-place it edits the GGUF file itself. Each runtime of --for
    must read exactly the calculated table from the output. Otherwise extend writes nothing.

    --verify and --export run `ropetool verify` and `ropetool export` on the output. If verification fails, the output stays with
    a failed certificate, ropetool does not export it, and the exit code is 3. If the result is partial or undecided, the exit
    code is 1.

    --method auto runs the model. It compares the methods that `ropetool advise` knows, and keeps the best one at the target
    length whose cost on short texts is within the limit of --grade. It keeps YaRN unless another method is significantly better.

    \b
    ropetool extend model --target-length 131072
    ropetool extend model --method auto --target-length 32k
    ropetool extend model --method yarn --factor 8 --dry-run
    ropetool extend model --method abf --rope-theta 1e6 --target-length 65536
    ropetool extend model --method yarn --factor 4 --companion model-eagle
    ropetool extend model.gguf --variants 16k,32k
    ropetool extend model.gguf --method yarn --factor 4 --in-place
    ropetool extend model --method yarn --factor 8 --verify --export model-yarn-8x.gguf
    """
    from ropetool.cli.method_choice import choose
    from ropetool.cli.origin import ExtensionSource

    if variants is not None:
        from ropetool.cli.variants import extend_variants

        return extend_variants(source, variants, extension, options, as_json)
    _check(extension, options, chain, companion)
    options.check_path(source)
    chain.check_path(source, None if options.in_place else options.output)
    config_is_enough = options.dry_run and options.plan_out is None and extension.method != AUTO
    origin = ExtensionSource.of(source, config_is_enough=config_is_enough)
    chain.check_source(origin.checkpoint)
    if extension.method == AUTO:  # a measurement takes minutes
        _check_places(options, chain, origin.path)
    choice = choose(origin.checkpoint, extension, chain.grade, quiet=as_json)
    planned = _planned(origin, choice, options, companion)
    origin.close()  # an edit in place refuses a file with readers, and a mapped header is one
    with options.saved(planned.plan):
        if options.dry_run:
            _show_plan(planned, options, as_json)
            return 0
        written, drafted = _carried_out(planned, options, chain)
    if not as_json:
        _show(planned, written, drafted)
    code, results = chain.run(written.output, as_json)
    if as_json:
        _print_json(planned, written, drafted, results)
    return code


def _check(extension: ExtensionOptions, options: PlanOptions, chain: Chain, companion: str | None) -> None:
    """Check the options, before a file is opened.

    Raises: click.UsageError for options that exclude each other; ConfigError for a plan file that cannot be written;
    as `ExtensionOptions.check`.
    """
    if companion is not None and options.plan_out is not None:
        raise click.UsageError("--plan-out stores one plan: run a separate command for the plan of the draft model")
    options.check("companion")
    chain.check(measured=extension.method == AUTO)
    if extension.method == AUTO and companion is not None:
        raise click.UsageError("--method auto does not work with --companion: name the method")
    extension.check()


def _check_places(options: PlanOptions, chain: Chain, source: Path) -> None:
    """Refuse an output that cannot be written. Raises: OutputError."""
    from ropetool.files.output import check_output

    if options.output is not None and not options.dry_run:
        check_output(Path(options.output), source, force=options.force, directory=True)
        chain.check_place(source, Path(options.output))


@dataclass(frozen=True)
class _Planned:
    """A planned extension.

    source, target: the files to read, and the path to write.
    drafting: the draft model with its plan, None without --companion.
    flags: command lines that make servers compute the table without a new file, for --dry-run.
    """

    plan: Plan
    source: Path
    target: Path
    drafting: Companion | None
    flags: list[str]


def _planned(origin: ExtensionSource, choice: MethodChoice, options: PlanOptions, companion: str | None) -> _Planned:
    """Plan the extension by the chosen method, and the same for the draft model."""
    from ropetool.plans.search import plan_for

    request = choice.extension.request()
    origin, plan = (origin, choice.plan) if choice.plan else origin.planned(request)
    if choice.why:
        notes((choice.why,))
    drafting = None
    if companion is not None:
        from ropetool.cli.companion import Companion

        length = plan.trained_length if request.original_length is None else request.original_length
        drafting = Companion.of(
            companion, origin.path, plan, request.as_type, origin.opened,
            lambda draft, reading: plan_for(
                origin.opened(draft), replace(request, reading=reading or request.reading, original_length=length)
            ),
        )  # fmt: skip
    flags = _flags(origin, choice, plan) if options.dry_run else []
    return _Planned(plan, origin.path, options.target(plan, origin.path), drafting, flags)


def _flags(origin: ExtensionSource, choice: MethodChoice, plan: Plan) -> list[str]:
    """Return command lines that make servers compute the table of a plan from the source."""
    from ropetool.plans.flags import flag_lines
    from ropetool.plans.search import plan_for

    source = origin.checkpoint
    if plan.bakes and not choice.tuned:  # flags need the factor in the config, where a single runtime reads it
        plan = plan_for(source, replace(choice.extension.request(), for_runtimes=()))
    lines = flag_lines(plan, source)
    return (
        [line.replace(word(origin.path), _for_servers(origin.named)) for line in lines] if origin.config_only else lines
    )


def _show_plan(planned: _Planned, options: PlanOptions, as_json: bool) -> None:
    """Print the plan of --dry-run."""
    from ropetool.cli.apply import place_of
    from ropetool.report.planned import plan_parts, planned_json
    from ropetool.report.terminal import terminal_text

    plan, drafting = planned.plan, planned.drafting
    place, way = place_of(plan, planned.source, planned.target, options)
    if as_json:
        draft = {"companion": planned_json(drafting.plan, drafting.output)} if drafting else {}
        print_json({**planned_json(plan, planned.target), "flags": planned.flags, **draft, **way})
        return
    show(terminal_text(plan_parts(plan, place, planned.flags), terminal_width()))
    notes(plan.notes)
    if drafting:
        show("\n" + terminal_text(plan_parts(drafting.plan, str(drafting.output)), terminal_width()))
        notes([note for note in drafting.plan.notes if note not in plan.notes])


def _carried_out(planned: _Planned, options: PlanOptions, chain: Chain) -> tuple[Applied, Applied | None]:
    """Write the output, and the output of the draft model."""
    from ropetool.cli.apply import applied

    drafting = planned.drafting
    if not options.in_place:
        chain.check_place(planned.source, planned.target)
    if drafting:
        drafting.check_place(planned.source, planned.target, force=options.force)
    written = applied(planned.plan, planned.source, planned.target, options)
    return written, applied(drafting.plan, drafting.source, drafting.output, options) if drafting else None


def _show(planned: _Planned, written: Applied, drafted: Applied | None) -> None:
    """Print the plan and the outputs as text."""
    from ropetool.report.planned import applied_parts
    from ropetool.report.terminal import terminal_text

    show(terminal_text(applied_parts(planned.plan, written)))
    notes((*planned.plan.notes, *written.notes))
    if planned.drafting and drafted:
        plan = planned.drafting.plan
        text = terminal_text(applied_parts(plan, replace(drafted, serving=(), following=None)))
        show(f"\ndraft model, with the same table: {text}")
        notes([note for note in (*plan.notes, *drafted.notes) if note not in planned.plan.notes])


def _print_json(planned: _Planned, written: Applied, drafted: Applied | None, results: dict[str, Any]) -> None:
    """Print the plan and the outputs as JSON. results: the JSON of the verification and the export."""
    from ropetool.report.planned import applied_json

    draft = {"companion": applied_json(planned.drafting.plan, drafted)} if planned.drafting and drafted else {}
    print_json({**applied_json(planned.plan, written), **draft, **results})


def _for_servers(source: str) -> str:
    """Return a checkpoint on the hub as vLLM and SGLang name it."""
    repo, _, revision = source.partition("@")
    return command(repo, "--revision", revision) if revision else repo
