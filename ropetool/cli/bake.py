"""ropetool bake."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropetool.cli import config_alone, local_source, notes, print_json, print_result, show, terminal_width
from ropetool.cli import options as shared
from ropetool.errors import ConfigError
from ropetool.escaping import read_whole

if TYPE_CHECKING:
    from ropetool.cli.apply import PlanOptions
    from ropetool.plans.applied import Applied
    from ropetool.plans.bakes import BakeOptions
    from ropetool.plans.plan import Plan
    from ropetool.weights.checking import LayerCheck

MAX_PAIRS = 65536  # of a list; a head has at most a few hundred


def read_pairs(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Return the pairs of a list like 0,60-63. Raises: ConfigError."""
    pairs: list[int] = []
    try:
        for part in filter(None, value.split(",")):
            first, _, last = part.partition("-")
            start, end = read_whole(first), read_whole(last or first) + 1
            if start >= end:
                raise ValueError
            if len(pairs) + end - start > MAX_PAIRS:
                raise ConfigError(
                    f"{value!r} contains more than {MAX_PAIRS} pairs; no head has that many", where="--pairs"
                )
            pairs += range(start, end)
    except ValueError:
        raise ConfigError(f"{value!r} is not a list of pairs; write 0,60-63", where="--pairs") from None
    return tuple(pairs)


@click.command("bake")
@shared.SOURCE
@click.argument("what", metavar="BAKE", type=shared.Name(lambda: bakes()))
@click.option(
    "--side", default="", metavar="k|q|both|norm",
    help="Where the factor goes: keys, queries, both, or the norm of MLA's query latent. Default: k. For softmax-scale: norm "
    "if the model has it, else q.",
)  # fmt: skip
@click.option("--gain", metavar="LIST|FILE", help="For pair-gain: one number per rotary pair, as a JSON list or file.")
@click.option("--multiplier", type=shared.NUMBER, help="For score: the multiplier of the whole score.")
@click.option(
    "--to", default="", metavar="half|interleaved|llama",
    help="For layout: the order of the channels, half or interleaved. For rearch: llama.",
)  # fmt: skip
@click.option(
    "--pairs", default="", metavar="I,I-J,...", callback=read_pairs,
    help="For drop-pairs: the pairs, such as 0,60-63. Pair 0 rotates fastest.",
)  # fmt: skip
@click.option(
    "--mode", default="", metavar="still|mute",
    help="For drop-pairs: stop the rotation, or remove the pairs from the score.",
)  # fmt: skip
@click.option(
    "--layer-type", default="full_attention", show_default=True, help="For pair-gain and score: the layer type."
)
@click.option(
    "--config-only", is_flag=True,
    help="For attention-factor: change the score multiplier in the config, not the weights.",
)  # fmt: skip
@click.option(
    "--bake-dtype", default="", metavar="f32|f64", help="The type of the scaled tensors. Default: their stored type."
)
@click.option(
    "--check", is_flag=True, help="Print the attention scores of each changed layer before and after the bake."
)
@shared.output("The output path. Default: SOURCE-baked, next to the source.")
@shared.in_place
@shared.DRY_RUN
@shared.PLAN_OUT
@click.option("--copy", is_flag=True, help="Copy the unchanged weight files instead of linking them.")
@shared.NO_SIDECARS
@shared.FORCE
@shared.JSON
@shared.gathered(baking="ropetool.plans.bakes.BakeOptions", options="ropetool.cli.apply.PlanOptions")
def bake_command(
    source: str, what: str, baking: BakeOptions, options: PlanOptions, gain: str | None, bake_dtype: str, check: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Fold scaling factors into the weights.

    For runtimes that ignore the config keys that set a factor. Writes a copy of the checkpoint. With --dry-run a config without
    weights is enough.

    \b
    BAKE is one of
      attention-factor  the factor on cos and sin, squared into the keys
      softmax-scale     MLA's multiplier of the whole score, into the queries
      pair-gain         one gain for each rotary pair, into the keys
      score             a multiplier of the whole score
      layout            the order of the rotary channels, half or interleaved
      shift-safe        GGUF: attention-factor, so that llama.cpp's context shift stays exact
      rearch            GGUF: change the architecture qwen2 to llama, which supports frequency vectors
      drop-pairs        stop the rotation of some pairs, or remove them from the score (lossy)

    The config of the output no longer sets the factor. ropetool rounds each product once, and prints the measured error. It
    refuses a bake that the weights cannot represent.

    \b
    ropetool bake model-yarn-8x attention-factor --check
    ropetool bake deepseek softmax-scale --bake-dtype f32
    ropetool bake model pair-gain --gain gains.json --side q
    ropetool bake model-yarn-8x.gguf shift-safe
    """
    from ropetool.checkpoint.opening import open_checkpoint
    from ropetool.cli.apply import applied
    from ropetool.plans.bakes import check_bake, make_bake
    from ropetool.plans.score_checks import check_possible, checks_of

    options.check("check")
    if gain is not None:
        from ropetool.cli.named_files import list_value

        baking = replace(baking, gains=tuple(list_value("gain", gain, "--gain")))
    check_bake(what, baking, bake_dtype)
    options.check_path(source)
    presume = options.dry_run and options.plan_out is None and not check
    path = (config_alone(source) if presume else None) or local_source(source)
    opened = cache(open_checkpoint)
    plan = make_bake(opened(path), what, bake_dtype=bake_dtype, presume=presume, **vars(baking))
    if check:
        check_possible(plan, opened(path))
    target = options.target(plan, path)
    if options.in_place:
        opened.cache_clear()  # an edit in place refuses a file with readers, and a mapped header is one
    with options.saved(plan):
        if options.dry_run:
            _show_plan(plan, path, target, options, as_json)
            return
        written = applied(plan, path, target, options)
    _show(plan, written, checks_of(plan, opened(path), written.output) if check else (), as_json)


def _show_plan(plan: Plan, source: Path, target: Path, options: PlanOptions, as_json: bool) -> None:
    """Print the plan of --dry-run."""
    from ropetool.cli.apply import place_of
    from ropetool.report.planned import plan_parts, planned_json

    place, way = place_of(plan, source, target, options)
    print_result(
        as_json, lambda: {**planned_json(plan, target), **way}, lambda: plan_parts(plan, place), plan.notes,
        width=terminal_width(),
    )  # fmt: skip


def _show(plan: Plan, written: Applied, checks: Sequence[LayerCheck], as_json: bool) -> None:
    """Print what was written, and the attention scores of --check."""
    from ropetool.report.planned import applied_json, applied_parts, checks_parts
    from ropetool.report.terminal import terminal_text

    if as_json:
        print_json({**applied_json(plan, written), "checks": [vars(check) for check in checks]})
        return
    show(terminal_text(applied_parts(plan, written)))
    if checks:
        show(terminal_text(checks_parts(checks)))
    notes((*plan.notes, *written.notes))


def bakes() -> list[str]:
    """Return the names of the bakes, from the help of the command: what they are loads numpy."""
    return sorted(re.findall(r"^ {6}([a-z-]+) {2}", bake_command.help or "", re.MULTILINE))
