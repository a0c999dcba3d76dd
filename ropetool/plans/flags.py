"""The command lines that reach a plan's table without writing a file: of vLLM, SGLang and llama-server.

Each is derived from the plan's edits, applied to the source as the program would apply it, and decoded; one that does
not come out as the plan's target is not printed, but the reason. How llama-server takes its options is server_flags'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ropetool import names, runtimes
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.escaping import command, word
from ropetool.files.gguf import Patch
from ropetool.files.hf import ABSENT
from ropetool.plans import server_flags
from ropetool.plans.plan import Plan
from ropetool.plans.serving import NO_FLAG, embedded_flags
from ropetool.rope.tables import RopeSet, in_words
from ropetool.runtimes import NotKnown, Refuses, Runtime, engine_formulas
from ropetool.runtimes.decoded import decoded
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.exported import exported

# Rope keys go into one object; a share of rotating channels, which loading puts into it too, must come along.
GATHERED = frozenset({*engine_formulas.SCALING_KEYS, names.PARTIAL_ROTARY_FACTOR, names.ROTARY_PCT})
BAKED = "the plan also changes the weights"


class Engine(NamedTuple):
    """A program that takes overrides of config.json as JSON: its command, and how it merges them.

    merges: for each way that releases have, whether an object of rope keys is merged into the source's.
    nested_merges: the same below text_config; none where releases replace all of text_config, which breaks it.
    """

    program: str
    command: str
    option: str
    context: str
    merges: tuple[bool, ...]
    nested_merges: tuple[bool, ...]


# vllm/config/model.py, _apply_dict_overrides and _update_nested: alike in 0.25.1 to 0.33.0.
# sglang/srt/utils/hf_transformers/config.py, get_config: 0.5.15 and 0.5.16 replace, 0.5.23 merges.
ENGINES = (
    Engine("vllm", "vllm serve {}", "--hf-overrides", "--max-model-len", (False,), (True,)),
    Engine(
        "sglang", "python -m sglang.launch_server --model-path {}", "--json-model-override-args", "--context-length",
        (False, True), (),
    ),
)  # fmt: skip


def flag_lines(plan: Plan, source: str | Path | Checkpoint) -> list[str]:
    """Return a line for each program, or stretch of its releases: the command that serves the source as the plan's target.

    The source itself stays as it is. Where no flag reaches the target the line says why.
    """
    checkpoint = open_checkpoint(Path(source) if isinstance(source, str) else source)
    if isinstance(checkpoint, GgufCheckpoint):
        found = server_flags.Found(reason=BAKED) if plan.bakes else server_flags.of_file(checkpoint, plan)
        return _server_lines(found, checkpoint, checkpoint.path)
    after = checkpoint.edited(plan.edits)
    if after.name != checkpoint.config.get(names.MODEL_TYPE):
        return [f"vllm, sglang, llama.cpp: {NO_FLAG}: the source needs remote code; serve the output instead"]
    target = decoded(plan.runtimes[0], after).rope
    if target is None or plan.bakes:
        return [f"vllm, sglang, llama.cpp: {NO_FLAG}: {BAKED}"]
    lines = [
        line for engine in ENGINES for line in _engine_lines(engine, plan, checkpoint, after, target, checkpoint.path)
    ]
    return [*lines, *_exported_line(plan, checkpoint, after)]


# --- overrides of config.json


def _engine_lines(
    engine: Engine, plan: Plan, before: HfCheckpoint, after: HfCheckpoint, target: RopeSet, source: Path
) -> list[str]:
    """Return the lines of a program: releases of one outcome together."""
    alike: dict[str, list[str]] = {}
    for runtime in runtimes.all_of(engine.program):
        try:
            overrides = _overrides(plan, before, after)
            reason = _objection(engine, runtime, before, overrides, target)
        except Refuses as refusal:
            reason = str(refusal) if isinstance(refusal, NotKnown) else f"it stops with {refusal}"
        text = f"{NO_FLAG}: {reason}" if reason else _command(engine, overrides, target, source)
        alike.setdefault(text, []).append(runtime.name)
    return [f"{', '.join(runtimes.display_ranges(found))}: {text}" for text, found in alike.items()]


def _command(engine: Engine, overrides: Mapping[str, Any], target: RopeSet, source: Path) -> str:
    return (
        f"{engine.command.format(word(source))} {engine.context} {target.max_position_embeddings} "
        f"{engine.option} {word(json.dumps(overrides))}"
    )


def _overrides(plan: Plan, before: HfCheckpoint, after: HfCheckpoint) -> dict[str, Any]:
    """Return the values that make the loaded source what the edited config loads as; rope keys as one whole object.

    Raises: Refuses where the edited config stops the loading.
    """
    family = after.family
    found = {t: {**_share(after), **keys} for t, keys in engine_formulas.loaded_keys(after).items()}
    rope: Any = found if family.nested else found[names.FULL_ATTENTION]
    part = {
        edit.path[-1]: edit.new for edit in plan.edits
        if edit.file == names.CONFIG_JSON and edit.new is not ABSENT and GATHERED.isdisjoint(edit.path)
    }  # fmt: skip
    overrides: dict[str, Any] = {**part, names.ROPE_PARAMETERS: rope}
    for key in reversed(family.text_path):
        overrides = {key: overrides}
    return overrides


def _share(view: HfCheckpoint) -> dict[str, Any]:
    """Return the share of channels that rotates, where it is not all of them or the family has another default.

    Raises: Refuses where no share gives that many channels.
    """
    entry = engine_formulas.shape(view).entries[names.FULL_ATTENTION]
    share = entry.rotary_dim / entry.head_dim
    if view.family.mla or (share == 1 and not view.family.partial_rotary_key):
        return {}
    if int(entry.head_dim * share) != entry.rotary_dim:
        raise Refuses(f"{entry.rotary_dim} of {entry.head_dim} channels cannot be written as a share")
    return {names.PARTIAL_ROTARY_FACTOR: share}


def _objection(
    engine: Engine, runtime: Runtime, before: HfCheckpoint, overrides: Mapping[str, Any], target: RopeSet
) -> str:
    """Return why the program would not compute the target with these overrides, in each way that it merges them."""
    ways = engine.nested_merges if before.family.text_path else engine.merges
    if not ways:
        return f"{engine.option} replaces all of {'.'.join(before.family.text_path)} in some releases"
    for merges in ways:
        found = runtime.decode(
            replace(before, config=overridden(before, overrides, merges=merges), given=before.family)
        )
        if found.max_position_embeddings < target.max_position_embeddings:
            return f"context {found.max_position_embeddings} instead of {target.max_position_embeddings}"
        # A longer one is cut by the option for the context.
        within = replace(found, max_position_embeddings=target.max_position_embeddings)
        reason = in_words(target.differences(within))
        if reason:
            return reason
    return ""


def overridden(before: HfCheckpoint, overrides: Mapping[str, Any], *, merges: bool) -> dict[str, Any]:
    """Return a config that loads as the source does after these overrides; merges: rope keys go into the source's."""
    path = before.family.text_path
    part = dict(before.section)
    for key in path:
        overrides = overrides[key]
    loaded = engine_formulas.loaded_keys(before)
    share = _share(before)
    rope = dict(overrides[names.ROPE_PARAMETERS])
    if merges and before.family.nested:
        kept = {t: {**share, **keys} for t, keys in loaded.items()}
        rope = {**kept, **{t: {**kept[t], **keys} if path else keys for t, keys in rope.items()}}
    elif merges:
        rope = {**share, **loaded[names.FULL_ATTENTION], **rope}
    bare = {key: value for key, value in part.items() if key not in GATHERED}
    made: dict[str, Any] = {**bare, **overrides, names.ROPE_PARAMETERS: rope}
    for key in reversed(path):
        made = {**before.config, key: made}
    return made


# --- llama-server


def _exported_line(plan: Plan, before: HfCheckpoint, after: HfCheckpoint) -> list[str]:
    """Return the line for llama-server, of a GGUF file that holds the source as it is; none where it is not exported."""
    try:
        _, view = exported(before)
        _, wanted = exported(after)
    except Refuses as refusal:
        return [] if isinstance(refusal, NotKnown) else [f"llama.cpp: {NO_FLAG}: {refusal}"]
    changed = {key: value for key, value in wanted.values.items() if view.values.get(key) != value}
    # A vector that is there stays in force, and llama.cpp demands it: it would have to become ones.
    vectors = {name: np.ones(info.shape[0], np.float32) for name, info in view.tensors.items()}
    vectors |= {name: wanted.vector(name) for name in wanted.tensors}
    same = {name for name in vectors if name in view.tensors and np.array_equal(vectors[name], view.vector(name))}
    vectors = {name: vector for name, vector in vectors.items() if name not in same}
    patch = Patch(changed, frozenset(view.values.keys() - wanted.values.keys()), vectors)
    found = server_flags.of_patch(view, patch, decoding.decode(wanted), plan)
    return _server_lines(found, view, Path("EXPORTED.gguf"))


def _server_lines(found: server_flags.Found, view: GgufCheckpoint, path: Path) -> list[str]:
    if found.reason:
        return [f"llama.cpp: {NO_FLAG}: {found.reason}"]
    server = f"llama.cpp: {command('llama-server', '-m', path, *found.options)}"
    return [server, *embedded_flags(path, found.options[1], server_flags.base_and_scale(view, found.options))]
