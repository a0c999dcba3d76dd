"""An inspection: as parts for a terminal, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ropetool import runtimes
from ropetool.escaping import escaped
from ropetool.files.counting import byte_size
from ropetool.plans.basis import CURRENT, ORIGINAL, UNSCALED, Step
from ropetool.plans.plan import BAKE
from ropetool.plans.proposals import LENGTH, Proposal
from ropetool.rope import arithmetic
from ropetool.rope.tables import MAX_LENGTH, Array, LayerRope, RopeSet, RopeTable
from ropetool.runtimes.decoded import Decoded
from ropetool.runtimes.inspection import Inspection
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.sections import Part, Section, listing

if TYPE_CHECKING:
    from ropetool.plans.advice import Advice

SCHEMA = 1
AGREES = "as above"
TRAINED, STATED = "trained", "stated"
SCALING = {ORIGINAL: "in place of the current scaling", CURRENT: "on top of the current scaling"}
SHOWN_APART = frozenset({"factor", "attention_factor", "dimension_count"})


def inspection_parts(
    inspection: Inspection,
    target_length: int | None = None,
    ways: Sequence[Proposal] = (),
    advice: Advice | None = None,
) -> Iterator[Part]:
    """Yield what `ropetool inspect` prints.

    target_length: tokens for which cache and turns are calculated; None for the configured context length.
    ways: proposals to reach `extension_target`, which are shown if there is no advice.
    """
    yield f"{inspection.source}: {named(inspection)}"
    decoded = inspection.rope
    if decoded is None:
        settings = [
            (_plain(key), _plain(json.dumps(value, ensure_ascii=False))) for key, value in inspection.stated.items()
        ]
        yield listing("as written", settings or [("no position settings", "")])
        if inspection.readings:
            yield _runtimes_listing(inspection)
        return
    target = target_length or decoded.max_position_embeddings
    for layer_type, entry in decoded.entries.items():
        yield from _entry_parts(layer_type, entry, inspection, decoded, target)
    sizes = [
        ("per token", byte_size(sum(layers.per_token for layers in inspection.kv_bytes.values()))),
        (f"at {target} tokens", byte_size(inspection.cache_bytes(target))),
    ]
    yield listing("KV cache, one sequence", sizes if inspection.kv_bytes else [("not known", "")])
    yield _runtimes_listing(inspection)
    if advice is not None:
        from ropetool.report.advised import ways_parts

        yield from ways_parts(advice, f"to extend it to {target} tokens")
    else:
        yield from _steps_parts(ways, extension_target(decoded, target_length))


def extension_target(decoded: RopeSet, target_length: int | None) -> int:
    """Return the context length for which commands are shown: by default twice the configured length."""
    return target_length or 2 * decoded.max_position_embeddings


def named(inspection: Inspection) -> str:
    """Return model_type and family. For a GGUF file without a family, return whether its rotation is decoded."""
    name = _plain(inspection.model_type)
    if inspection.family is None and inspection.format == "gguf":
        known = "decoded" if inspection.model_type in archs.names() else "not decoded"
        return f"architecture: {name} ({known})"
    return f"{name or 'no model_type'}, family: {inspection.family.model_type if inspection.family else 'unknown'}"


def _plain(text: str) -> str:
    """Return text from a file without control characters, 70 characters at most."""
    return escaped(text if len(text) <= 70 else f"{text[:67]}...")


def _entry_parts(
    layer_type: str, entry: LayerRope, inspection: Inspection, decoded: RopeSet, target: int
) -> Iterator[Part]:
    """Yield the settings of a layer type, and for each of its tables how often the rotary pairs turn."""
    context = ("context length", f"{decoded.max_position_embeddings} tokens")
    if entry.table is None:
        layers = f"{_ranges(entry.layers)}; head_dim {entry.head_dim}, no rotation"
        yield listing(layer_type, [("layers", layers), context, *_window_rows(entry)])
        return
    measure = _Measure.of(inspection, decoded)
    heads = f"head_dim {entry.head_dim}, rotary_dim {entry.rotary_dim}, {entry.layout} layout"
    rows = [
        ("layers", f"{_ranges(entry.layers)}; {heads}"),
        ("rope type", _type_text(entry)),
        measure.row(inspection.trained_length),
        context,
        ("attention factor", _factor_text(entry)),
    ]
    if entry.softmax_multiplier != 1:
        rows.append(("softmax scale", f"multiplies the whole score by {entry.softmax_multiplier:.6g}"))
    yield listing(layer_type, [*rows, *_window_rows(entry)])
    # Two positions in a window are never further apart than the window, in training and afterwards.
    window = entry.sliding_window or MAX_LENGTH
    yield from _regimes_parts(entry, entry.table, measure.within(window), min(target, window))


def _window_rows(entry: LayerRope) -> list[tuple[str, str]]:
    what = "chunk" if entry.chunked else "sliding window"
    return [] if entry.sliding_window is None else [(what, f"{entry.sliding_window} tokens")]


@dataclass(frozen=True)
class _Measure:
    """The length in which turns are counted.

    length: tokens.
    what: `TRAINED` if this is the longest length of the training, as far as is known. `ORIGINAL` if the file has a
      scaling, because files do not record whether the model was trained further with the scaling. `STATED` if the file
      does not store the length before the scaling; `length` is then the configured length.
    """

    length: int
    what: str

    @classmethod
    def of(cls, inspection: Inspection, decoded: RopeSet) -> _Measure:
        if inspection.trained_length is None:
            return cls(decoded.max_position_embeddings, STATED)
        record = inspection.made
        scaled = any(not entry.unscaled for entry in decoded.entries.values() if entry.table is not None)
        if record is not None and record.plan.get("method") != BAKE:
            scaled = record.plan.get("reading") != UNSCALED
        return cls(inspection.trained_length, ORIGINAL if scaled else TRAINED)

    def row(self, length: int | None) -> tuple[str, str]:
        if length is None:
            return (f"{ORIGINAL} length", "not stored in the file")
        return (f"{self.what} length", f"{length} tokens")

    def within(self, window: int) -> _Measure:
        return self if self.length <= window else replace(self, length=window)


def _regimes_parts(entry: LayerRope, table: RopeTable, measure: _Measure, target: int) -> Iterator[Part]:
    limit = None
    for regime in table.regimes:
        scope = f" up to {regime.up_to} tokens" if regime.up_to else f" beyond {limit} tokens" if limit else ""
        # Each regime at the part of the target that it covers.
        reach = min(target, regime.up_to) if regime.up_to else max(target, limit or 0)
        inv_freq = regime.inv_freq if table.rule is None else table.at(reach).inv_freq
        title = f"bands{scope}, turns counted in {measure.length} tokens"
        head = ("turns", "pairs", f"at {reach} tokens")
        yield listing(title, _band_rows(entry, regime.inv_freq, inv_freq, measure, reach), head=head, depth=1)
        limit = regime.up_to


def _type_text(entry: LayerRope) -> str:
    theta = f", theta {entry.rope_theta:g}" if entry.rope_theta else ""
    factor = f", factor {entry.factor:g}" if entry.factor else ""
    # GGUF keys have the architecture and their section in front: llama.rope.scaling.attn_factor.
    named = {key.rpartition(".")[2]: value for key, value in entry.params.items()}
    shown = {k: v for k, v in named.items() if not isinstance(v, list) and k not in SHOWN_APART and v is not None}
    rest = "".join(f", {k} {escaped(v)}" for k, v in shown.items())
    if entry.table is not None and entry.table.rule is not None:
        rest += "; the table depends on the text length"
    return f"{entry.rope_type}{theta}{factor}{rest}"


def _factor_text(entry: LayerRope) -> str:
    factor = entry.attention_factor
    return "1" if factor == 1 else f"{factor:.6g} on cos and sin, so {factor**2:.6g} on scores"


def _band_rows(
    entry: LayerRope, inv_freq: Array, extended: Array, measure: _Measure, target: int
) -> list[tuple[str, str, str]]:
    """Return three rows: pairs that turned often, some times, and less than once, each with the effect of the target.

    extended: the inverse frequencies for a sequence of the target length, in radians per token.
    """
    length, known = measure.length, measure.what != STATED
    passed, at_target = arithmetic.turns(inv_freq, length), arithmetic.turns(extended, target)
    # The arc that a slow pair has seen is that of the unscaled table in the length before the scaling.
    if entry.rope_theta and known:
        passed = arithmetic.turns(arithmetic.base_inv_freq(entry.rope_theta, entry.rotary_dim), length)
    over = int(np.sum((passed < 1) & (at_target > passed * (1 + 1e-9))))
    near, middle, far = arithmetic.bands(inv_freq, length)
    arc = "the arc seen in training" if measure.what == TRAINED else f"the arc of the unscaled table in {length} tokens"
    arc = arc if known else f"the arc of {length} tokens"
    seen = "seen" if known else "passed"
    return [
        (f"over {arithmetic.NEAR_TURNS:g}", str(near), f"every angle {seen} many times: any length is safe"),
        ("1 to 32", str(middle), f"every angle {seen}"),
        ("under 1", str(far), f"{over} pairs exceed {arc}" if over else f"stays inside {arc}"),
    ]


def readings_alike(inspection: Inspection) -> list[tuple[tuple[str, ...], str]]:
    """Return the label and the reasons of each group of runtimes with the same result, and the names of the runtimes.

    The runtimes that agree with the table are first.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for reading in inspection.readings:
        alike.setdefault(made_of(reading, inspection.rope), []).append(reading.name)
    ordered = sorted(alike.items(), key=lambda group: group[0][0] != AGREES)
    return [(outcome, ", ".join(runtimes.display_ranges(names))) for outcome, names in ordered]


def _runtimes_listing(inspection: Inspection) -> Section:
    rows: list[tuple[str, str]] = []
    for (label, *reasons), names in readings_alike(inspection):
        rows += [(label, names), *(("", f"- {reason}") for reason in reasons)]
    return listing("runtimes", rows)


def made_of(reading: Decoded, decoded: RopeSet | None) -> tuple[str, ...]:
    """Return the label of a runtime's result, and the reasons for the label."""
    if not reading.known:
        return ("not known", reading.refuses)
    if reading.rope is None or decoded is None:
        return ("refuses" if reading.stops else "DIFFERS", reading.refuses)
    differences = [*map(str, decoded.differences(reading.rope))]
    return ("DIFFERS", *differences) if differences else (AGREES,)


def _steps_parts(ways: Sequence[Proposal], target: int) -> Iterator[Part]:
    """Yield the command of each way to the target, or the reason of its refusal."""
    title = f"to extend it to {target} tokens"
    if any(way.method == LENGTH and not way.refusal for way in ways):
        title += "; only the configured context length limits it"
        ways = [way for way in ways if way.method == LENGTH and not way.refusal][:1]
    if ways:
        yield listing(title, ())
    for way in ways:
        if way.method != LENGTH or way.refusal:
            plain = f"; plain {way.method} is refused" if way.line and way.refusal else ""
            yield listing("", [(_lengths(way.step) + plain,)])
        yield listing("", [(way.line or f"refused: {way.refusal}",)], depth=1, whole=bool(way.line))


def _lengths(step: Step) -> str:
    """Return the lengths of a step, and its effect on an existing scaling."""
    scaling = f", {SCALING[step.reading]}" if step.reading else ""
    if step.start is not None:
        return f"{step.start} -> {step.reach}{scaling}"
    guess = step.command.rpartition(" ")[2]
    return f"{guess} -> {step.reach}{scaling}, if its original length is {guess}, which the file does not store"


def _ranges(layers: tuple[int, ...]) -> str:
    """Return 0-3, or 5, 11, 17 for layers that do not follow each other."""
    if len(layers) > 1 and layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    shown = ", ".join(str(i) for i in layers[:6])
    return f"{shown}, ... ({len(layers)} layers)" if len(layers) > 6 else shown or "none"


# --- as JSON


def inspection_json(
    inspection: Inspection, target_length: int | None = None, advice: Advice | None = None
) -> dict[str, Any]:
    """Return the inspection as `inspect --json` prints it."""
    decoded = inspection.rope
    target = target_length or (decoded.max_position_embeddings if decoded else None)
    advised = {}
    if advice is not None:
        from ropetool.report.advised import advice_json

        advised = {"advice": advice_json(advice)}
    return {
        "schema": SCHEMA,
        "source": str(inspection.source),
        "format": inspection.format,
        "family": inspection.family.model_type if inspection.family else None,
        "arch": inspection.model_type,
        "trained_length": inspection.trained_length,
        "trained_length_is": _Measure.of(inspection, decoded).what if decoded and inspection.trained_length else None,
        "stated": _without_nan(inspection.stated),
        "rope": {t: _entry_json(e, decoded, inspection) for t, e in decoded.entries.items()} if decoded else {},
        "runtimes": {r.name: _reading_json(r, decoded) for r in inspection.readings},
        "kv_cache_bytes": {
            "per_token": sum(kind.per_token for kind in inspection.kv_bytes.values()),
            "at_target": inspection.cache_bytes(target) if target else None,
        },
        **advised,
        "notes": list(inspection.notes),
    }


def _without_nan(value: Any) -> Any:
    """Return the value with NaN and infinities as text, because some files have them and JSON does not."""
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _entry_json(entry: LayerRope, decoded: RopeSet, inspection: Inspection) -> dict[str, Any]:
    data: dict[str, Any] = {
        "rope_type": entry.rope_type, "rope_theta": entry.rope_theta, "head_dim": entry.head_dim,
        "rotary_dim": entry.rotary_dim, "layout": entry.layout, "factor": entry.factor,
        "attention_factor": entry.attention_factor, "score_rotary": entry.score_rotary,
        "score_plain": entry.score_plain,
        "temperature": {"beta": entry.temperature.beta, "length": entry.temperature.length} if entry.temperature else None,
        "sliding_window": entry.sliding_window, "max_position_embeddings": decoded.max_position_embeddings,
        "original_max_position_embeddings": entry.original_max_position_embeddings, "layers": list(entry.layers),
    }  # fmt: skip
    if entry.table is None:
        return {**data, "regimes": [], "inv_freq": [], "wavelength": [], "turns": []}
    last = entry.table.regimes[-1].inv_freq
    length = inspection.trained_length or decoded.max_position_embeddings
    return {
        **data,
        "regimes": [
            {"up_to": r.up_to, "inv_freq": r.inv_freq.tolist(), "attention_factor": r.attention_factor}
            for r in entry.table.regimes
        ],
        "inv_freq": last.tolist(),
        "wavelength": [w if math.isfinite(w) else None for w in arithmetic.wavelengths(last).tolist()],
        "turns": arithmetic.turns(last, length).tolist(),
    }


def _reading_json(reading: Decoded, decoded: RopeSet | None) -> dict[str, Any]:
    if not reading.known:
        return {"not_known": reading.refuses}
    if reading.rope is None:
        return {"refuses": reading.refuses} if reading.stops else {"differs": [reading.refuses]}
    return {
        "context_length": reading.rope.max_position_embeddings,
        "differs": [*map(str, decoded.differences(reading.rope))] if decoded else [],
        "layers": {
            t: {
                "inv_freq": e.table.regimes[-1].inv_freq.tolist() if e.table else [],
                "attention_factor": e.attention_factor,
            }
            for t, e in reading.rope.entries.items()
        },
    }
