"""ropetool bake."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import click

from ropetool.cli import config_alone, local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import NUMBER, Name, check_in_place, in_place, list_value, written_beside
from ropetool.errors import ConfigError
from ropetool.escaping import read_whole

MAX_PAIRS = 65536  # of a list; a head has at most a few hundred


@click.command("bake")
@click.argument("source", type=click.Path())
@click.argument("what", metavar="BAKE", type=Name(lambda: bakes()))
@click.option(
    "--side",
    default="",
    metavar="k|q|both|norm",
    help="Where the factor goes: keys, queries, both, or the norm of MLA's query latent. Default: k. For softmax-scale: norm "
    "if the model has it, else q.",
)
@click.option(
    "--gain", "gains", metavar="LIST|FILE", help="For pair-gain: one number per rotary pair, as a JSON list or file."
)
@click.option("--multiplier", type=NUMBER, help="For score: the multiplier of the whole score.")
@click.option(
    "--to",
    default="",
    metavar="half|interleaved|llama",
    help="For layout: the order of the channels, half or interleaved. For rearch: llama.",
)
@click.option(
    "--pairs",
    default="",
    metavar="I,I-J,...",
    help="For drop-pairs: the pairs, such as 0,60-63. Pair 0 rotates fastest.",
)
@click.option(
    "--mode",
    default="",
    metavar="still|mute",
    help="For drop-pairs: stop the rotation, or remove the pairs from the score.",
)
@click.option(
    "--layer-type", default="full_attention", show_default=True, help="For pair-gain and score: the layer type."
)
@click.option(
    "--config-only",
    is_flag=True,
    help="For attention-factor: change the score multiplier in the config, not the weights.",
)
@click.option(
    "--bake-dtype", default="", metavar="f32|f64", help="The type of the scaled tensors. Default: their stored type."
)
@click.option(
    "--check", is_flag=True, help="Print the attention scores of each changed layer before and after the bake."
)
@click.option("--output", "-o", type=click.Path(), help="The output path. Default: SOURCE-baked, next to the source.")
@in_place
@click.option("--dry-run", is_flag=True, help="Print the plan with every value. Do not write the output.")
@click.option("--plan-out", type=click.Path(), help="Also write the plan to this file, for `ropetool apply`.")
@click.option("--copy", is_flag=True, help="Copy the unchanged weight files instead of linking them.")
@click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Do not change the model card. For a GGUF file, do not write a card or a Modelfile.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an earlier output of ropetool.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bake_command(
    source: str, what: str, gains: str | None, pairs: str, check: bool, output: str | None, dry_run: bool,
    plan_out: str | None, in_place: bool, copy_if_needed: bool, copy: bool, sidecars: bool, force: bool, as_json: bool,
    **options: Any,
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
    from ropetool.cli.apply import applied, applied_in_place, way_in_place
    from ropetool.plans.bakes import make_bake
    from ropetool.report.baked import check_possible, checks_of, checks_text
    from ropetool.report.planned import applied_json, applied_text, plan_text, planned_json

    check_in_place(in_place, copy_if_needed, {"--output": output, "--copy": copy, "--force": force, "--check": check})
    chosen = tuple(list_value("gain", gains, "--gain")) if gains is not None else ()
    presume = dry_run and plan_out is None and not check
    path = (config_alone(source) if presume else None) or local_source(source)
    opened = cache(open_checkpoint)
    plan = make_bake(opened(path), what, presume=presume, gains=chosen, pairs=_pairs(pairs), **options)
    if check:
        check_possible(plan, opened(path))
    target = Path(output) if output is not None else path if in_place else plan.output_beside(path)
    if in_place:
        opened.cache_clear()  # an edit in place refuses a file with readers, and a mapped header is one
    with written_beside(plan_out, plan):
        if dry_run:
            place = str(target)
            way: dict[str, Any] = {}
            if in_place:
                place, way = way_in_place(plan, path, copy_if_needed=copy_if_needed)
            if as_json:
                print_json({**planned_json(plan, target), **way})
            else:
                show(plan_text(plan, place, width=terminal_width()))
                notes(plan.notes)
            return
        if in_place:
            written = applied_in_place(plan, path, copy_if_needed=copy_if_needed)
        else:
            written = applied(plan, path, target, force=force, copy=copy, sidecars=sidecars)
    checks = checks_of(plan, opened(path), written.output) if check else ()
    if as_json:
        print_json({**applied_json(plan, written), "checks": [vars(one) for one in checks]})
        return
    show(applied_text(plan, written))
    if checks:
        show(checks_text(checks))
    notes((*plan.notes, *written.notes))


def bakes() -> list[str]:
    """Return the names of the bakes, from the help of the command: what they are loads numpy."""
    return sorted(re.findall(r"^ {6}([a-z-]+) {2}", bake_command.help or "", re.MULTILINE))


def _pairs(text: str) -> tuple[int, ...]:
    """Return the pairs of a list like 0,60-63."""
    found: list[int] = []
    try:
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            start, end = read_whole(first), read_whole(last or first) + 1
            if start >= end:
                raise ValueError
            if len(found) + end - start > MAX_PAIRS:
                raise ConfigError(
                    f"{text!r} contains more than {MAX_PAIRS} pairs; no head has that many", where="--pairs"
                )
            found += range(start, end)
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of pairs; write 0,60-63", where="--pairs") from None
    return tuple(found)
