"""Commands that remove a problem. Each is planned first, so it works. An empty string means that no command works."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ropetool import runtimes
from ropetool.doctor.cases import Case, runtime_list
from ropetool.errors import RopetoolError
from ropetool.escaping import command, number, word
from ropetool.files.gguf import read_shards
from ropetool.files.shard_names import model_name
from ropetool.plans.basis import ORIGINAL
from ropetool.plans.key_edits import unset_key
from ropetool.plans.search import make_plan
from ropetool.rope import methods
from ropetool.rope.tables import LayerRope, RopeSet

LENGTH = "length"
ON_HUB = "download it, then run ropetool doctor FOLDER --fix"
IN_WEIGHTS = {"attention_factor", "softmax_multiplier"}  # the fields that a bake moves from the keys to the weights
OPTIONS = {
    "method": "--method", "factor": "--factor", "target_length": "--target-length", "reading": "--from",
    "original_length": "--original-length", "attention_factor": "--attention-factor",
}  # fmt: skip


def fixed(case: Case) -> str:
    """Return the command that writes an exact repair next to a checkpoint.

    For a model on the Hub, return a step in words.
    """
    return ON_HUB if case.path is None else command("ropetool", "doctor", case.path, "--fix")


def same_for(case: Case, runtime_names: Sequence[str]) -> str:
    """Return the command whose output these runtimes decode as the checkpoint's own runtime does.

    If no command works, return a message that names the runtimes that read the checkpoint correctly, or an empty
    string.
    """
    entry, rope = case.full, case.rope
    if case.path is not None and entry is not None and rope is not None and not entry.unscaled:
        shown_names = runtimes.collapse_releases([case.checkpoint.runtime, *runtime_names])
        planned = _again(case, entry, rope, (case.checkpoint.runtime, *runtime_names), shown_names)
        if planned is not None:
            return (
                planned.line
                if not planned.in_weights or has_weights(case)
                else f"in a folder with the weights: {planned.line}"
            )
    agreeing = [each.name for each in case.readings if each.rope and rope and not rope.differences(each.rope)]
    return f"no fix in the file is known; these read it correctly: {runtime_list(agreeing)}" if agreeing else ""


def has_weights(case: Case) -> bool:
    """Return whether the weights are there: always for GGUF, and for a directory unless it has only a config."""
    return case.hf is None or case.hf.files is None or not case.hf.files.config_only


@dataclass(frozen=True)
class Planned:
    """A command that was planned.

    line: the command line.
    in_weights: whether the plan moves a factor into the weights.
    """

    line: str
    in_weights: bool


def again(case: Case, entry: LayerRope, target: RopeSet) -> str:
    """Return the command that gives a file the table of these layers and the target's context, or an empty string."""
    if entry.unscaled and entry.rope_theta is not None:
        options = {"method": "abf", "params": {"rope_theta": entry.rope_theta}}
        lengths = ({"factor": 1.0}, {"target_length": target.max_position_embeddings})
        plans = (_planned(case, target, {**options, **length}) for length in lengths)
        planned = next((each for each in plans if each is not None), None)
    else:
        planned = _again(case, entry, target)
    return planned.line if planned is not None and not planned.in_weights else ""


def _again(
    case: Case, entry: LayerRope, target: RopeSet, required: Sequence[str] = (), shown_names: Sequence[str] = ()
) -> Planned | None:
    """Return the command that builds a scaled table again from the unscaled one, or None if no command works.

    required: the runtimes that must decode the target.
    shown_names: the runtime names for the command line.
    """
    method, original = entry.rope_type, entry.original_max_position_embeddings
    factor = entry.factor or (target.max_position_embeddings / original if original else None)
    if method not in methods.names() or factor is None:
        return None
    for attention_factor, length, reading in itertools.product(
        (None, entry.attention_factor), (None, original), (ORIGINAL, None)
    ):
        options = {
            "method": method, "factor": factor, "reading": reading, "original_length": length,
            "attention_factor": attention_factor,
        }  # fmt: skip
        planned = _planned(
            case, target, {key: value for key, value in options.items() if value is not None}, required, shown_names
        )
        if planned is not None:
            return planned
    return None


def reaching(case: Case, context: int) -> str:
    """Return the command that scales again so that the scaling reaches this context, or an empty string."""
    entry, rope = case.full, case.rope
    if case.path is None or entry is None or rope is None:
        return ""
    options = {"method": entry.rope_type, "target_length": context, "reading": ORIGINAL}
    planned = _planned(case, None, options)
    return planned.line if planned is not None and not planned.in_weights else ""


def _planned(
    case: Case,
    target: RopeSet | None,
    options: Mapping[str, Any],
    required: Sequence[str] = (),
    shown_names: Sequence[str] = (),
) -> Planned | None:
    """Return the command line of these options if their plan reaches the target in the required runtimes, or None."""
    if case.path is None:
        return None
    try:
        plan = make_plan(case.checkpoint, **options, for_runtimes=required)
    except RopetoolError:
        return None
    if plan.target is None:
        return None
    different_fields = [] if target is None else [one.field for one in target.differences(plan.target)]
    if different_fields and not (plan.bakes and set(different_fields) <= IN_WEIGHTS):
        return None
    words = [
        *(word for key, option in OPTIONS.items() if key in options for word in (option, _word(options[key]))),
        *(word for key, value in options.get("params", {}).items() for word in ("-p", key, _word(value))),
        *(word for name in shown_names for word in ("--for", name)),
    ]
    return Planned(command("ropetool", "extend", case.path, *words), bool(plan.bakes))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else number(value)


def stating(case: Case, context: int) -> str:
    """Return the command that sets this context length and keeps every table, or an empty string."""
    if case.path is None:
        return ""
    try:
        make_plan(case.checkpoint, LENGTH, target_length=context)
    except RopetoolError:
        return ""
    return command("ropetool", "extend", case.path, "--method", LENGTH, "--target-length", str(context))


def with_llama3(case: Case, factor: float, trained: int) -> str:
    """Return the commands that scale a model as Llama 3.1 and keep its context length, or an empty string.

    The factor of llama3 is not a ratio of lengths, so the first command sets a context length that the second one
    corrects.
    """
    if case.path is None or case.rope is None:
        return ""
    first = _planned(case, None, {"method": "llama3", "factor": factor, "original_length": trained})
    if first is None:
        return ""
    scaled, output = (case.path.with_name(f"{model_name(case.path)}-{end}.gguf") for end in ("llama3", "fixed"))
    length = ("--method", LENGTH, "--target-length", str(case.rope.max_position_embeddings))
    return f"{first.line} -o {word(scaled)} && {command('ropetool', 'extend', scaled, *length, '-o', output)}"


def without(case: Case, key: str) -> str:
    """Return the command that writes a GGUF file without a key.

    If llama.cpp would not load the result, return words.
    """
    if case.path is not None:
        with suppress(RopetoolError):
            unset_key(read_shards(case.path), key)
            output = case.path.with_name(f"{model_name(case.path)}-fixed.gguf")
            return command("ropetool", "gguf", "unset", case.path, key, "-o", output)
    return f"remove {key}"


def baked(case: Case, what: str) -> str:
    """Return the command of a bake, or an empty string if the weights are missing or cannot store the factor."""
    from ropetool.plans.bakes import make_bake

    if case.path is None:
        return ""
    try:
        make_bake(case.checkpoint, what)
    except RopetoolError:
        return ""
    return command("ropetool", "bake", case.path, what)
