"""ropetool extend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import config_alone, local_source, notes, print_json, show, terminal_width
from ropetool.cli.chain import Chain
from ropetool.cli.companion import Companion
from ropetool.cli.options import (
    AS,
    EXPLAIN,
    GRADE,
    METHOD,
    NUMBER,
    READING,
    Factor,
    Grouped,
    Length,
    check_in_place,
    check_new,
    for_runtimes,
    in_place,
    naming_a_smaller_run,
    target_length,
    written_beside,
)
from ropetool.cli.retrying import OPENED, collected, completed_tries, number_or_name
from ropetool.cli.wording import in_own_words
from ropetool.escaping import command, word

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.plans.plan import Plan

AUTO = "auto"  # no method, but the one that serves the model best
OF_A_METHOD = ("beta_fast", "beta_slow", "rope_theta", "temperature_scope")


GROUPS = {
    "How far": ("method", "factor", "target_length", "reading", "params"),
    "Output": ("output", "for_runtimes", "in_place", "dry_run", "as_json"),
}


@click.command("extend", cls=Grouped, groups=GROUPS)
@click.argument("source", type=click.Path())
@click.option(
    "--method", "-m", type=METHOD, metavar="METHOD",
    help="A method from `ropetool methods`, or auto to measure which one is best. Default: the advice of `ropetool advise`.",
)  # fmt: skip
@click.option(
    "--tune-minutes", type=NUMBER, metavar="MINUTES",
    help="With --method auto: if YaRN wins, tune it for this many minutes. Keep the result only if it is significantly better.",
)  # fmt: skip
@click.option(
    "--factor",
    type=Factor(),
    help="The new context length as a multiple: 4 or 4x. Multiplies the trained length, or with --from current the current "
    "context length.",
)
@target_length("The new context length in tokens, instead of --factor: 131072, 128k or 1M.")
@click.option("--force-factor", is_flag=True, help="Allow more than 32 times the trained length without training.")
@READING
@click.option(
    "-p",
    "params",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="A parameter of the method (repeatable). `ropetool methods NAME` lists them.",
)
@click.option(
    "--attention-factor",
    default="auto",
    show_default=True,
    metavar="auto|none|yarn|logn|X",
    help="The factor on cos and sin: from the method (auto), 1 (none), 0.1 ln(s) + 1 (yarn), sqrt(ln(sL) / ln(L)) (logn), or X. "
    "s is the factor of the extension, L the length before it.",
)
@click.option(
    "--temperature-scope",
    type=click.Choice(["rotary", "score"]),
    help="If only part of a head rotates: multiply the rotary part of the score, or the whole score. Default: score for MLA, "
    "else rotary.",
)
@click.option(
    "--beta-fast",
    type=NUMBER,
    help="For yarn and ntk-by-parts: turns within the trained length above which a pair does not change. "
    "Default: 32, unless the source sets it.",
)
@click.option(
    "--beta-slow",
    type=NUMBER,
    help="For yarn and ntk-by-parts: turns within the trained length below which a pair is fully scaled. "
    "Default: 1, unless the source sets it.",
)
@click.option("--rope-theta", type=NUMBER, help="For abf: the new base.")
@click.option(
    "--original-length", type=Length(None), help="The context length before any scaling, in tokens. Overrides the file."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    help="The output path. Default: SOURCE-METHOD-FACTORx or SOURCE-METHOD-LENGTH, next to the source, or in the "
    "current folder for a source in the Hub's cache or in Ollama's store.",
)
@for_runtimes(
    "A runtime that must read the output correctly (repeatable). Default: transformers, or llama.cpp for GGUF files."
)
@AS
@click.option(
    "--config-style",
    type=click.Choice(["v4", "v5", "both"]),
    help="rope_scaling (v4), rope_parameters (v5) or both. Default: the style of the source.",
)
@click.option(
    "--companion",
    type=click.Path(),
    metavar="DRAFT",
    help="A draft model for speculative decoding. Gets the same table, in a separate output next to DRAFT.",
)
@in_place
@click.option("--dry-run", is_flag=True, help="Print the plan with every value. Do not write the output.")
@click.option("--plan-out", type=click.Path(), help="Also write the plan to this file, for `ropetool apply`.")
@click.option("--copy", is_flag=True, help="Copy the weight files instead of linking them.")
@click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Do not change the model card. For a GGUF file, do not write a card or a Modelfile.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an earlier output of ropetool.")
@click.option("--verify", is_flag=True, help="Verify the output, and store the result as its certificate.")
@click.option(
    "--suite", type=click.Choice(["quick", "standard", "full"]), help="The suite of the verification. Default: quick."
)
@GRADE
@click.option(
    "--export",
    type=click.Path(),
    metavar="FILE.gguf",
    help="Also write the output as a GGUF file, if it passes verification. Implies --verify.",
)
@click.option("--allow-unverified", is_flag=True, help="With --export: export without verification.")
@EXPLAIN
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@completed_tries()
def extend_command(
    source: str,
    method: str | None,
    factor: float | None,
    target_length: int | None,
    reading: str | None,
    params: tuple[tuple[str, str], ...],
    attention_factor: str,
    output: str | None,
    companion: str | None,
    dry_run: bool,
    plan_out: str | None,
    as_json: bool,
    tune_minutes: float | None,
    **options: Any,
) -> int:
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
    ropetool extend model.gguf --method yarn --factor 4 --in-place
    ropetool extend model --method yarn --factor 8 --verify --export model-yarn-8x.gguf
    """
    from ropetool.checkpoint.opening import open_checkpoint
    from ropetool.cli.apply import applied, applied_in_place, way_in_place
    from ropetool.files.output import check_output
    from ropetool.plans.flags import flag_lines
    from ropetool.plans.formats import CONFIG_ONLY
    from ropetool.plans.search import make_plan
    from ropetool.report.planned import applied_json, applied_text, plan_text, planned_json

    if companion is not None and plan_out is not None:
        raise click.UsageError("--plan-out stores one plan: run a separate command for the plan of the draft model")
    edits_itself, copy_if_needed = options["in_place"], options["copy_if_needed"]
    excluded = {
        "--output": output,
        "--companion": companion,
        **{f"--{name}": options[name] for name in ("copy", "force")},
    }
    check_in_place(edits_itself, copy_if_needed, excluded)
    chain = Chain.of(options, dry_run)
    auto = method == AUTO
    if tune_minutes is not None and not auto:
        raise click.UsageError("--tune-minutes requires --method auto")
    if auto and companion is not None:
        raise click.UsageError("--method auto does not work with --companion: name the method")
    peeked = config_alone(source) if dry_run and plan_out is None and not auto else None
    path = peeked or local_source(source)
    opened = cache(open_checkpoint)
    click.get_current_context().meta[OPENED] = opened
    chain.check_source(opened(path))
    if auto and plan_out is not None:
        check_new("--plan-out", Path(plan_out))
    if auto and output is not None and not dry_run:
        check_output(Path(output), path, force=options["force"], directory=True)
        chain.check_place(path, Path(output))
    measured = (
        _measured(
            opened(path), factor, target_length, reading, params, options, attention_factor, tune_minutes, quiet=as_json
        )
        if auto
        else None
    )
    chosen, advised_factor, why = (
        (measured.plan.method, "auto", measured.why) if measured
        else (method, "auto", "") if method is not None
        else _advised(opened(path), factor, target_length, reading, params, options)
    )  # fmt: skip
    if attention_factor == "auto":
        attention_factor = advised_factor

    def planned(
        for_runtimes: tuple[str, ...], of: Path | None = None, trained: int | None = None, instead: str | None = None
    ) -> Plan:
        stated = options["original_length"]
        return make_plan(
            opened(of or path), chosen, factor=factor, target_length=target_length, reading=instead or reading,
            params=collected(params, options), attention_factor=number_or_name(attention_factor),
            temperature_scope=options["temperature_scope"], original_length=trained if stated is None else stated,
            for_runtimes=for_runtimes, config_style=options["config_style"], as_type=options["as_type"],
            force_factor=options["force_factor"],
        )  # fmt: skip

    def unbaked(plan: Plan) -> Plan:
        """Return the same extension with its factor in the config, where one runtime alone reads it there: for flags."""
        return planned(()) if plan.bakes and not (measured and measured.tuned) else plan

    plan = measured.plan if measured else planned(options["for_runtimes"])
    if why:
        notes((why,))
    if peeked is not None and plan.bakes:  # it names tensors, and whether they can hold it
        peeked, path = None, local_source(source)
        opened.cache_clear()  # the same folder, with its weights now
        plan = planned(options["for_runtimes"])
    if peeked is not None:
        plan = replace(plan, notes=tuple(note for note in plan.notes if note != CONFIG_ONLY))
    target = Path(output) if output is not None else path if edits_itself else plan.output_beside(path)
    drafting = None
    if companion is not None:
        drafting = Companion.of(
            companion, path, plan, options["as_type"], opened,
            lambda of, instead: planned(options["for_runtimes"], of, plan.trained_length, instead),
        )  # fmt: skip
    flags = flag_lines(unbaked(plan), opened(path)) if dry_run else []
    opened.cache_clear()  # an edit in place refuses a file with readers, and a mapped header is one
    with written_beside(plan_out, plan):
        if dry_run:
            if peeked is not None:
                flags = [line.replace(word(path), _for_servers(source)) for line in flags]
            place = str(target)
            way: dict[str, Any] = {}
            if edits_itself:
                place, way = way_in_place(plan, path, copy_if_needed=copy_if_needed)
            if as_json:
                beside = {"companion": planned_json(drafting.plan, drafting.output)} if drafting else {}
                print_json({**planned_json(plan, target), "flags": flags, **beside, **way})
            else:
                show(plan_text(plan, place, flags, terminal_width()))
                notes(plan.notes)
                if drafting:
                    show("\n" + plan_text(drafting.plan, str(drafting.output), (), terminal_width()))
                    notes([note for note in drafting.plan.notes if note not in plan.notes])
            return 0
        if not edits_itself:
            chain.check_place(path, target)
        if drafting:
            drafting.check_place(path, target, force=options["force"])
        if edits_itself:
            written = applied_in_place(plan, path, copy_if_needed=copy_if_needed)
        else:
            written = applied(
                plan, path, target, force=options["force"], copy=options["copy"], sidecars=options["sidecars"]
            )  # fmt: skip
        drafted = drafting and applied(
            drafting.plan, drafting.source, drafting.output,
            force=options["force"], copy=options["copy"], sidecars=options["sidecars"],
        )  # fmt: skip
    if not as_json:
        show(applied_text(plan, written))
        notes((*plan.notes, *written.notes))
        if drafting and drafted:
            show(
                f"\ndraft model, with the same table: {applied_text(drafting.plan, replace(drafted, serving=(), following=None))}"
            )
            notes([note for note in (*drafting.plan.notes, *drafted.notes) if note not in plan.notes])
    code, found = chain.run(written.output, as_json)
    if as_json:
        beside = {"companion": applied_json(drafting.plan, drafted)} if drafting and drafted else {}
        print_json({**applied_json(plan, written), **beside, **found})
    return code


def _advised(
    source: Checkpoint, factor: float | None, target_length: int | None, reading: str | None,
    params: tuple[tuple[str, str], ...], options: dict[str, Any],
) -> tuple[str, str, str]:  # fmt: skip
    """Return the method that is advised, its attention factor, and the reason in a sentence. Raises: ConfigError where none leads there."""
    from ropetool.plans.advice import advised_method

    of_a_method = {
        "-p": params,
        **{f"--{name.replace('_', '-')}": options[name] for name in ("beta_fast", "beta_slow", "rope_theta")},
    }
    given = [name for name, value in of_a_method.items() if value]
    if given:
        raise click.UsageError(f"{given[0]} is a parameter of a method: name the method with --method")
    method, attention_factor, why = advised_method(
        source,
        factor,
        target_length,
        reading,
        options["original_length"],
        options["as_type"],
        options["for_runtimes"],
        options["force_factor"],
    )
    beside = "" if attention_factor == "auto" else f", --attention-factor {attention_factor}"
    return method, attention_factor, f"method {method}{beside}: {why}"


@dataclass(frozen=True)
class _Found:
    """What measuring came to: a plan, why, and whether it is one of `tune`."""

    plan: Plan
    why: str
    tuned: bool


def _measured(
    source: Checkpoint, factor: float | None, target_length: int | None, reading: str | None, params: tuple[tuple[str, str], ...],
    options: dict[str, Any], attention_factor: str, tune_minutes: float | None, *, quiet: bool,
) -> _Found:  # fmt: skip
    """Return the best of the closed forms, measured in the loaded model, or with minutes to tune what tuning makes better."""
    from ropetool.choosing.choice import DEFAULT, choose
    from ropetool.cli.compare import compared
    from ropetool.plans.advice import CLOSED_FORMS

    if (factor is None) == (target_length is None):
        raise click.UsageError("--method auto requires either --factor or --target-length")
    given = {
        "-p": params, "--attention-factor": attention_factor != "auto",
        **{f"--{name.replace('_', '-')}": options[name] for name in OF_A_METHOD},
    }  # fmt: skip
    given |= {"--as": options["as_type"], "--config-style": options["config_style"]}
    for option in (name for name, value in given.items() if value):
        raise click.UsageError(f"--method auto does not accept {option}: name the method with --method")
    if tune_minutes is not None and options["original_length"] is not None:
        raise click.UsageError("--tune-minutes requires the original length in the file: leave out --original-length")
    _check_reach(source, factor, target_length, reading, options)
    unmeasured = {"--method": None, "--tune-minutes": None}
    line = click.get_current_context().find_root().obj
    with naming_a_smaller_run(line, unmeasured), in_own_words():
        found = compared(
            source, methods=CLOSED_FORMS, factors=[] if factor is None else [factor],
            target_lengths=[] if target_length is None else [target_length], reading=reading,
            original_length=options["original_length"], for_runtimes=options["for_runtimes"], grade=options["grade"], quiet=quiet,
            measures=["last-segment"], budget=tune_minutes,
        )  # fmt: skip
    choice = choose(found)
    why = f"{choice.candidate.name}: {choice.why}"
    if tune_minutes is None:
        return _Found(choice.plan, why, tuned=False)
    if choice.plan.method != DEFAULT:
        return _Found(choice.plan, f"{why}; not tuned, because tuning supports only {DEFAULT}", tuned=False)
    from ropetool.cli.progress import bar
    from ropetool.registry import addition

    with bar() as progress:
        tuned = addition("tune")(
            source, choice.plan.max_position_embeddings, budget=tune_minutes, reading=reading, for_runtimes=options["for_runtimes"],
            progress=progress, say=None if quiet else lambda line: notes([line]),
        )  # fmt: skip
    if not tuned.is_better:
        return _Found(choice.plan, f"{why}; tuning found nothing significantly better than the default", tuned=False)
    return _Found(
        tuned.plan, f"tuned, {tuned.winner}: significantly better than the default on unseen text", tuned=True
    )


def _check_reach(
    source: Checkpoint, factor: float | None, target_length: int | None, reading: str | None, options: dict[str, Any]
) -> None:
    """Refuse to measure methods for a context that has to be forced. Raises: TooFar."""
    from ropetool.plans.advice import CLOSED_FORMS, requested_context
    from ropetool.plans.proposals import extent_of
    from ropetool.runtimes.inspection import inspect

    found = inspect(source)
    if found.rope is not None:
        target = requested_context(found, factor, target_length, reading, options["original_length"])
        extent_of(found, CLOSED_FORMS[0], target).check(options["force_factor"])


def _for_servers(source: str) -> str:
    """Return a checkpoint on the hub as vLLM and SGLang name it."""
    repo, _, revision = source.partition("@")
    return command(repo, "--revision", revision) if revision else repo
