"""The cost of a checkpoint at a length: one line per figure, with the arithmetic.

For each token, a pass multiplies and adds each number of the matrices once. Each pair of a query and a key costs the
channels of key and value. Norms, activations and the softmax are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.costs import weights
from ropetool.costs.weights import Products, Weights
from ropetool.errors import ConfigError, RopetoolError
from ropetool.runtimes.inspection import Inspection
from ropetool.runtimes.kv_cache import CACHE_TYPES, KvCache
from ropetool.verification import suites
from ropetool.verification.gate import Limits
from ropetool.verification.preparing import default_lengths, planned_rows
from ropetool.verification.served import reader_of
from ropetool.verification.session import documents_of, lengths_of

SUITES = ("quick", "full")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", names.TOKENIZER_CONFIG_JSON, "vocab.json")
BYTES, FLOPS, NUMBERS, TOKENS = "bytes", "FLOPs", "numbers", "tokens"


@dataclass(frozen=True)
class CostLine:
    """A figure.

    name: its name.
    value: the figure. None if it is unknown.
    unit: "bytes", "FLOPs", "numbers" or "tokens".
    how: the arithmetic, or why the figure is unknown.
    """

    name: str
    value: int | None
    unit: str
    how: str


@dataclass(frozen=True)
class Cost:
    """The costs at a length.

    length: the tokens in the sequence.
    lines: the costs of one sequence, and of a verification up to this length.
    """

    length: int
    lines: tuple[CostLine, ...]


def cost_of(inspected: Inspection, checkpoint: Checkpoint, length: int | None = None) -> Cost:
    """Return the cost of a checkpoint at a length in tokens. None uses the configured context length.

    Reads headers and the tokenizer, but not the weights.
    Raises: ConfigError if the length is None and the context length is unknown.
    """
    if length is None and inspected.rope is None:
        raise ConfigError(
            "the context length cannot be decoded, so the cost needs a length", where="--cost", try_="--target-length N"
        )
    length = length or (inspected.rope.max_position_embeddings if inspected.rope else 0)
    try:
        sizes = weights.of(checkpoint, inspected.rope)
    except RopetoolError as error:
        sizes = Weights("", 0, None, None, {}, None, error.sentence)
    caches = inspected.kv_bytes
    return Cost(
        length,
        (
            *_weight_lines(sizes), *_cache_lines(inspected, caches, length), *_pass_lines(sizes, inspected, length),
            *_verify_lines(checkpoint, inspected, sizes, length),
        ),
    )  # fmt: skip


def _weight_lines(sizes: Weights) -> Iterator[CostLine]:
    if sizes.numbers is None:
        yield CostLine("parameters", None, NUMBERS, sizes.why)
    else:
        yield CostLine("parameters", sizes.numbers, NUMBERS, f"{sizes.tensors} tensors, by {sizes.sizes_from}")
    part = sizes.products
    if part is None:
        yield CostLine("active parameters", None, NUMBERS, sizes.why)
    else:
        yield CostLine("active parameters", part.active, NUMBERS, _active(part))
    if sizes.nbytes is None:
        yield CostLine(
            "weights",
            None,
            BYTES,
            sizes.why or "the weights are quantised, and their sizes need the headers of the files",
        )
    else:
        by_type = " + ".join(f"{nbytes} {dtype}" for dtype, nbytes in sorted(sizes.by_type.items()))
        yield CostLine("weights", sizes.nbytes, BYTES, by_type)


def _active(part: Products) -> str:
    """Return the sum of the active parameters in words, and the parameters that are not in it."""
    parts = [f"{part.always} in matrices of layers"]
    if part.experts:
        parts.append(f"{part.used} of {part.held} experts: {part.experts} x {part.used} / {part.held}")
    parts += [f"{part.vectors} in vectors", f"{part.looked_up} looked up"]
    parts.append("the head is the embedding" if part.tied else f"{part.head} in the head")
    left = {"draft layers": part.drafts, "parts outside the text model": part.others}
    without = "".join(f"; without {count} of {what}" for what, count in left.items() if count)
    return " + ".join(parts[:-1]) + (f"; {parts[-1]}" if part.tied else f" + {parts[-1]}") + without


def _cache_lines(inspected: Inspection, caches: Mapping[str, KvCache], length: int) -> Iterator[CostLine]:
    if not caches:
        yield CostLine("KV cache", None, BYTES, _why_no_cache(inspected))
        return
    for layer_type, one in caches.items():
        kept = one.tokens_at(length)
        tokens = f"{kept} tokens" + (f", the last {kept} of {length}" if kept < length else "")
        yield CostLine(
            f"KV cache, {_layers(one)} of {_plain(layer_type)}", one.bytes_at(length), BYTES,
            f"{one.heads} key heads in total x ({one.keys} + {one.values}) channels x {one.value_bytes} bytes x {tokens}",
        )  # fmt: skip
    if len(caches) > 1:
        yield CostLine(
            "KV cache in all", sum(one.bytes_at(length) for one in caches.values()), BYTES, "the sum of these"
        )
    for name, (block, nbytes) in CACHE_TYPES.items():
        by_layer_type = [one.bytes_in(name, length) for one in caches.values()]
        known = [size for size in by_layer_type if size is not None]
        if len(known) < len(by_layer_type):
            why = f"{name} stores blocks of {block} channels, which do not divide the channels of a layer"
            yield CostLine(f"KV cache in {name}", None, BYTES, why)
            continue
        stored = f"{nbytes} bytes for {block} channels" if block > 1 else f"{nbytes} bytes per channel"
        yield CostLine(f"KV cache in {name}", sum(known), BYTES, f"the same in {stored}")


def _why_no_cache(inspected: Inspection) -> str:
    if inspected.rope is None:
        return "the RoPE settings cannot be decoded"
    return f"the heads of its layers differ, or {inspected.model_type} does not store whole keys"


def _layers(one: KvCache) -> str:
    return f"{one.layers} layer{'s' if one.layers > 1 else ''}"


def _plain(layer_type: str) -> str:
    return layer_type.replace("_", " ")


def _pass_lines(sizes: Weights, inspected: Inspection, length: int) -> Iterator[CostLine]:
    """Yield the cost of a pass over all tokens with logits for the last one, as before the first token of an answer."""
    part = sizes.products
    if part is None:
        yield CostLine("prefill", None, FLOPS, sizes.why)
        return
    whole = 2 * part.in_layers * length
    last = 2 * part.head
    yield CostLine("prefill, matrices", whole, FLOPS, f"2 x {part.in_layers} x {length} tokens")
    yield CostLine("prefill, head", last, FLOPS, f"2 x {part.head} x 1 token, logits of the last token")
    yield from _attention_lines(inspected.kv_bytes, length)
    pairs = _pair_flops(inspected.kv_bytes, length)
    if pairs is None:
        yield CostLine("prefill in all", None, FLOPS, "the cost of its attention is unknown")
    else:
        yield CostLine("prefill in all", whole + last + pairs, FLOPS, f"the sum; without {_uncounted(inspected)}")


def _attention_lines(caches: Mapping[str, KvCache], length: int) -> Iterator[CostLine]:
    if not caches:
        yield CostLine("prefill, attention", None, FLOPS, "the heads of its layers are unknown")
    for layer_type, one in caches.items():
        name = f"prefill, {_plain(layer_type)}"
        pairs = one.pairs_at(length)
        if one.pair is None:
            yield CostLine(name, None, FLOPS, "its layers are unknown, or an indexer selects the keys of each query")
        else:
            how = f"2 x {one.queries} query heads in {_layers(one)} x {one.pair} channels x {pairs} pairs, {_pairs(one, length)}"
            yield CostLine(name, one.flops_at(length), FLOPS, how)


def _pairs(one: KvCache, length: int) -> str:
    if one.window is None or length <= one.window:
        return f"{length} x {length + 1} / 2"
    if one.chunked:
        return f"within chunks of {one.window} tokens"
    return f"{one.window} x {one.window + 1} / 2 + {length - one.window} x {one.window}"


def _pair_flops(caches: Mapping[str, KvCache], length: int) -> int | None:
    by_layer_type = [one.flops_at(length) for one in caches.values()]
    known = [flops for flops in by_layer_type if flops is not None]
    return sum(known) if caches and len(known) == len(by_layer_type) else None


def _uncounted(inspected: Inspection) -> str:
    """Return the operations that no line counts, in words."""
    assert inspected.rope is not None
    family = inspected.family
    stateful = family is not None and family.rotates in ("full", "none") and family.has_kinds
    return "norms, activations and softmax" + (", and the recurrence of layers that keep a state" if stateful else "")


def _verify_lines(checkpoint: Checkpoint, inspected: Inspection, sizes: Weights, length: int) -> Iterator[CostLine]:
    """Yield the tokens and FLOPs of target and baseline in `verify` up to this length.

    FLOPs do not include the head.
    """
    labels = {name: f"verify --suite {name}" for name in SUITES}
    try:
        _, trained = lengths_of(inspected, checkpoint)
        if isinstance(checkpoint, HfCheckpoint) and not any((checkpoint.path / name).is_file() for name in TOKENIZERS):
            raise RopetoolError("the checkpoint has no tokenizer, which selects the rows of a suite")
        planned = planned_rows(
            reader_of(checkpoint), documents_of((), length, []), default_lengths(trained, length), trained,
            [suites.named(name) for name in SUITES], Limits(),
        )  # fmt: skip
    except RopetoolError as error:
        yield from (CostLine(label, None, TOKENS, error.sentence) for label in labels.values())
        return
    for label, rows in zip(labels.values(), planned, strict=True):
        tokens = sum(row_length * count for row_length, count in rows.items())
        how = " + ".join(f"{count} x {row_length}" for row_length, count in sorted(rows.items()))
        yield CostLine(label, tokens, TOKENS, f"at grade {Limits().grade}, rows of target and baseline: {how}")
        flops = [_pair_flops(inspected.kv_bytes, row_length) for row_length in rows]
        known = [count * one for count, one in zip(rows.values(), flops, strict=True) if one is not None]
        part = sizes.products
        if part is None or len(known) < len(rows):
            yield CostLine(label, None, FLOPS, sizes.why or "the cost of its attention is unknown")
            continue
        products = 2 * part.in_layers * tokens
        how = f"2 x {part.in_layers} x {tokens} tokens + {sum(known)} for attention of all rows, as above; without the head"
        yield CostLine(label, products + sum(known), FLOPS, how)
