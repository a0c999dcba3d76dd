"""The rope keys of an imported config: the first form that an export turns into the table of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ropetool import names, runtimes
from ropetool.checkpoint import style
from ropetool.checkpoint.edits import config_file_edits
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.style import RopeKeys
from ropetool.errors import LossyExport, RopetoolError, sentence_of
from ropetool.families.family import Family
from ropetool.gguf_import.keys import value_of
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.methods import Derived
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes import NotHeld, Refuses
from ropetool.runtimes.config_encodings import config_edits, encodings
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp.encodings import rotating_entry
from ropetool.runtimes.llama_cpp.exported import rotation

_LLAMA3_LENGTHS = (8192, 4096, 2048, 16384, 32768)  # original_max_position_embeddings of published models, in tokens


def with_rope_keys(
    config: Mapping[str, Any], family: Family, rope: RopeSet, source: GgufCheckpoint
) -> tuple[HfCheckpoint, str]:
    """Return the config with rope keys that transformers decodes to the file's table, and the name of their form.

    Raises: LossyExport with the objection to each form.
    """
    tried: list[str] = []
    for config_style in (names.V4, names.V5) if family.in_v4 and not family.nested else (names.V5,):
        for name, view in _candidates(config, family, rope, source, config_style):
            objection = _objection(view, rope)
            if not objection:
                return view, name
            tried.append(f"{name}: {objection}")
    ways = "; ".join(dict.fromkeys(tried)) or "no rope keys apply"
    raise LossyExport(f"no {family.model_type} config produces the RoPE table of the file ({ways})", where=source.where)


def _candidates(
    config: Mapping[str, Any], family: Family, rope: RopeSet, source: GgufCheckpoint, config_style: str
) -> Iterator[tuple[str, HfCheckpoint]]:
    entry = rotating_entry(rope)
    assert entry.rope_theta is not None
    assert entry.table is not None
    theta, grows = _short(entry.rope_theta), _of_temperature(entry, family)
    begun = {**config, names.ROPE_PARAMETERS: {names.ROPE_TYPE: "default", names.ROPE_THETA: theta, **grows}}
    plainly = {layer_type: RopeKeys("default", theta, grows) for layer_type in family.extends}
    table = family.export
    assert table is not None
    if table.sections:  # the rotation of image tokens, which the tables of text do not contain
        begun[names.ROPE_PARAMETERS][names.MROPE_SECTION] = sections_of(source)
    if share := _share(entry, family):  # edits of rope keys do not change the share
        inner = {names.ROPE_TYPE: "proportional", **share, names.ROPE_THETA: theta}
        config = {**config, names.ROPE_PARAMETERS: {family.rope_group(names.FULL_ATTENTION): inner}}
    view = _with_keys(_view(begun if grows or table.sections else config, source), plainly, rope, config_style)
    trained = entry.original_max_position_embeddings or rope.max_position_embeddings
    derived = Derived(
        entry.table, rope.max_position_embeddings, tuple(_natives(entry, family, rope, source.name)),
        entry.softmax_multiplier,
    )  # fmt: skip
    start = replace(entry, rope_type=family.default_rope_type, params={})
    for encoding in encodings(start, derived, trained, family):
        if not encoding.baked:
            target = replace(rope, entries={names.FULL_ATTENTION: entry})
            try:
                yield encoding.name, view.edited(config_edits(view, encoding.keys, target, config_style))
            except RopetoolError:
                continue


def sections_of(source: GgufCheckpoint) -> list[int]:
    """Return the sections of the rotary pairs, without the zeros at the end."""
    value = value_of(source, archs.DIMENSION_SECTIONS)
    sections = list(value) if isinstance(value, list) else []
    while sections and sections[-1] == 0:
        sections.pop()
    return sections


def _view(config: Mapping[str, Any], source: GgufCheckpoint) -> HfCheckpoint:
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return HfCheckpoint(dict(config), None, f"{source.where}: {names.CONFIG_JSON}", None, text)


def _with_keys(view: HfCheckpoint, keys: Mapping[str, RopeKeys], rope: RopeSet, config_style: str) -> HfCheckpoint:
    """Return the config with these keys, and with the keys of layer types that the scaling does not change."""
    family = view.family
    kept = {
        layer_type: RopeKeys("default", _short(entry.rope_theta), {})
        for layer_type, entry in rope.entries.items()
        if layer_type in family.layer_types and layer_type not in keys and entry.rope_theta is not None
    }
    edits = style.edits(view.config, family, {**kept, **keys}, config_style, view.where)
    return view.edited(config_file_edits(edits))


def _natives(entry: LayerRope, family: Family, rope: RopeSet, arch: str) -> Iterator[dict[str, Any]]:
    """Yield the keys of each method that may have produced the table, the shortest first."""
    always = _of_temperature(entry, family)
    assert entry.table is not None
    factor = {} if entry.factor is None else {names.FACTOR: _short(entry.factor)}
    trained = entry.original_max_position_embeddings
    length = {} if trained is None else {names.ORIGINAL_MAX_POSITION_EMBEDDINGS: trained}
    if entry.rope_type == "default":
        yield {names.ROPE_TYPE: "default", **always}
    if entry.rope_type == "linear":
        yield {names.ROPE_TYPE: "linear", **factor, **always}
    if entry.rope_type == "yarn":
        scale = {names.ATTENTION_FACTOR: _short(entry.table.regimes[-1].attention_factor)}
        params = {hf: entry.params.get(f"{arch}.rope.scaling.yarn_{hf}") for hf in (names.BETA_FAST, "beta_slow")}
        betas = {key: _short(value) for key, value in params.items() if value is not None}
        for more in ({}, scale, betas, scale | betas):
            yield {names.ROPE_TYPE: "yarn", **always, **factor, **length, **more}
    if entry.rope_type == "table" and entry.table.is_fixed:
        assert entry.rope_theta is not None
        inv_freq = entry.table.regimes[0].inv_freq
        divisors = base_inv_freq(entry.rope_theta, entry.rotary_dim) / np.maximum(inv_freq, 1e-30)
        if share := _share(entry, family):
            scaled = {} if divisors[0] == 1 else {names.FACTOR: _short(divisors[0])}
            yield {names.ROPE_TYPE: "proportional", **share, **scaled}
        largest = float(f"{divisors.max():.6g}")
        for before in (*_LLAMA3_LENGTHS, round(rope.max_position_embeddings / largest)):
            yield {
                names.ROPE_TYPE: "llama3", names.FACTOR: largest, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                names.ORIGINAL_MAX_POSITION_EMBEDDINGS: before,
            }  # fmt: skip


def _share(entry: LayerRope, family: Family) -> dict[str, Any]:
    """Return the share of rotating pairs, if the class sets the frequencies of the other pairs to 0."""
    if family.default_rope_keys.get(names.FULL_ATTENTION, {}).get(names.ROPE_TYPE) != "proportional":
        return {}
    assert entry.table is not None
    inv_freq = entry.table.regimes[0].inv_freq
    return {names.PARTIAL_ROTARY_FACTOR: int(np.count_nonzero(inv_freq)) / inv_freq.size}


def _of_temperature(entry: LayerRope, family: Family) -> dict[str, Any]:
    if entry.temperature is None or not family.temperature_key:
        return {}
    beta = {family.temperature_key: _short(entry.temperature.beta)}
    return beta | {names.ORIGINAL_MAX_POSITION_EMBEDDINGS: entry.temperature.length}


def _short(value: float) -> float:
    """Return the number with the fewest digits that identify the float32, as the original config had it."""
    return float(str(np.float32(value)))


def _objection(view: HfCheckpoint, rope: RopeSet) -> str:
    """Return how the rotation of an export of this config differs from the file, or an empty text."""
    try:
        computed = runtimes.decode(view.runtime, view)
        reading = rotation(computed, view, allow_full_attention=True).target
    except (Refuses, NotHeld, RopetoolError) as error:
        return sentence_of(error)
    return reading.named_as(rope).mismatch(rope)
