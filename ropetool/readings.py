"""Which table and which length a method starts from, and the refusal where a file leaves two readings open."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ropetool import families, inspection, names, provenance
from ropetool.errors import AmbiguousRope, InvalidRope
from ropetool.families import Family
from ropetool.formats.hf import Checkpoint, style
from ropetool.formats.hf.jsontext import shown
from ropetool.methods import Source
from ropetool.provenance import Provenance
from ropetool.rope import base_inv_freq
from ropetool.spec import MAX_LENGTH, LayerRope, RopeSet

NO_ROTATION = frozenset({
    "bert", "roberta", "distilbert", "albert", "electra", "xlm-roberta", "deberta", "deberta-v2", "gpt2", "gpt_neo",
    "opt", "bloom", "mpt", "t5", "bart", "mamba", "mamba2", "rwkv",
})  # fmt: skip
ORIGINAL, CURRENT, UNSCALED = "original", "current", "unscaled"


@dataclass(frozen=True)
class Wish:
    """What was asked for, as far as the start depends on it; exactly one of factor and target_length is given."""

    method: str
    factor: float | None
    target_length: int | None
    reading: str | None
    original_length: int | None

    def __post_init__(self) -> None:
        if self.reading not in (None, ORIGINAL, CURRENT):
            raise InvalidRope(f"{self.reading!r} is no reading; there are {ORIGINAL} and {CURRENT}", where="--from")
        if self.original_length is not None and not 2 <= self.original_length <= MAX_LENGTH:
            raise InvalidRope(
                f"{self.original_length} is no length; it is a whole number of tokens from 2 to {MAX_LENGTH}",
                where="--original-length",
            )

    def reach(self, length: int) -> int:
        """Return the context that the wish means, counted from this length."""
        return round(length * self.factor) if self.factor is not None else self.target_length or length

    def command(self, source: object, *more: str) -> str:
        """Return the command line of this wish on that source."""
        how = f"--factor {self.factor:g}" if self.factor is not None else f"--target-length {self.target_length}"
        return " ".join(["ropetool extend", shlex.quote(str(source)), "--method", self.method, how, *more])


@dataclass(frozen=True)
class Start:
    """The table to start from, and the length that the model was trained on before any scaling."""

    source: Source
    trained_length: int
    reading: str
    notes: tuple[str, ...] = ()


def known_family(checkpoint: Checkpoint, where: str) -> Family:
    """Return the checkpoint's family.

    Raises: InvalidRope for a model without rotary positions, UnknownFamily for any other unknown model_type.
    """
    model_type = checkpoint.config.get(names.MODEL_TYPE)
    if not isinstance(model_type, str) or not model_type:
        raise InvalidRope("model_type is missing, so the family is unknown", where=where, try_="ropetool families")
    if model_type in NO_ROTATION:
        raise InvalidRope(f"{model_type} has no rotary positions: there is nothing to extend", where=where)
    return families.get(model_type, where)


def check_whole_heads(checkpoint: Checkpoint, family: Family, where: str) -> None:
    """Raise InvalidRope if the file asks for partial rotation, which these families' code does not do.

    transformers 5 ignores the key for unscaled tables and stops at the first token for scaled ones.
    """
    part = style.section(checkpoint.config, family, where)
    objects = (part, part.get(names.ROPE_PARAMETERS), part.get(names.ROPE_SCALING))
    for keys in (found for found in objects if isinstance(found, dict)):
        for key in (names.PARTIAL_ROTARY_FACTOR, names.ROTARY_PCT):
            if keys.get(key) not in (None, 1):
                raise InvalidRope(
                    f"{shown(keys[key])} asks for partial rotation, and {family.model_type} rotates whole heads",
                    where=f"{where}: {key}", try_=f"remove {key} from {names.CONFIG_JSON}",
                )  # fmt: skip


def decode_source(checkpoint: Checkpoint, family: Family, runtime: str, where: str) -> RopeSet:
    """Return what the runtime computes from the source.

    Raises: InvalidRope if it stops with an error.
    """
    found = inspection.read_as(runtime, checkpoint.config, family, where)
    if found.rope is None:
        raise InvalidRope(f"{runtime} cannot load this config: {found.refuses}", where=where)
    return found.rope


def find_start(checkpoint: Checkpoint, family: Family, decoded: RopeSet, wish: Wish, where: str) -> Start:
    """Return the table and length to start from.

    Raises: AmbiguousRope where a scaled source leaves two readings open; InvalidRope where the reading that was
    chosen is not in the file.
    """
    entry = decoded.entries[names.FULL_ATTENTION]
    context = decoded.max_position_embeddings
    made = provenance.read(checkpoint.path)
    if entry.rope_type == "default" and made is None:
        return _unscaled(family, entry, context, wish)
    original = wish.original_length or (made.trained_length if made else entry.original_max_position_embeddings)
    scaled = _Scaled(checkpoint, family, entry, made, original, context, wish, where)
    if wish.reading is None:
        raise scaled.refusal()
    return scaled.from_original() if wish.reading == ORIGINAL else scaled.from_current()


def _unscaled(family: Family, entry: LayerRope, context: int, wish: Wish) -> Start:
    trained, notes = context, list[str]()
    shipped = next((t for t in family.trained_length if t.max_position_embeddings == context), None)
    if wish.original_length is not None:
        trained = wish.original_length
    elif shipped is not None:
        trained = shipped.trained
        meant, other = wish.reach(trained), wish.reach(context)
        reach = "" if meant == other else f": factor {wish.factor:g} gives {meant}, not {other}"
        notes = [
            f"{shipped.reason}; lengths count from {trained}{reach}. "
            f"--original-length {context} counts from the shipped value"
        ]
    return Start(_on_base(family, entry, trained), trained, UNSCALED, tuple(notes))


def _on_base(family: Family, entry: LayerRope, length: int) -> Source:
    assert entry.rope_theta is not None
    base = base_inv_freq(entry.rope_theta, entry.rotary_dim)
    return Source(base, length, entry.rope_theta, mscale=_mscale(family, entry))


def _mscale(family: Family, entry: LayerRope) -> float | None:
    return float(entry.params.get(names.MSCALE_ALL_DIM) or 1.0) if family.mla else None


@dataclass(frozen=True)
class _Scaled:
    """A source that carries scaling, and what was asked of it; `original` is its length before the scaling."""

    checkpoint: Checkpoint
    family: Family
    entry: LayerRope
    made: Provenance | None
    original: int | None
    context: int
    wish: Wish
    where: str

    def refusal(self) -> AmbiguousRope:
        """Return the error that spells out both readings."""
        entry, wish = self.entry, self.wish
        kind = f"{self.made.plan.get('method')} by ropetool" if self.made else entry.rope_type
        factor = f", factor {entry.factor:g}" if entry.factor else ""
        what = f"factor {wish.factor:g}" if wish.factor is not None else f"--target-length {wish.target_length}"
        first = "its original length, which --original-length gives"
        if self.original is not None:
            first = f"{self.original} -> {wish.reach(self.original)}"
        return AmbiguousRope(
            f"already scaled ({kind}{factor}, original {self.original or 'not stored'}, context {self.context}); "
            f"{what} could mean {first} or {self.context} -> {wish.reach(self.context)}",
            where=self.where, try_=wish.command(self.checkpoint.path, "--from", self._likely()),
        )  # fmt: skip

    def _likely(self) -> str:
        """Return the reading that works where the other does not: a target inside the context, a table by a rule."""
        target = self.wish.target_length
        inside = target is not None and target < self.context and self.original is not None
        assert self.entry.table is not None
        return ORIGINAL if inside or self.entry.table.rule is not None else CURRENT

    def from_original(self) -> Start:
        made, entry = self.made, self.entry
        if made is not None and (entry.rope_type == "default" or made.plan.get("reading") == CURRENT):
            raise AmbiguousRope(
                f"its original table is not in this file: ropetool made it from {made.source} by {made.plan.get('method')}",
                where=self.where, try_=self.wish.command(made.source),
            )  # fmt: skip
        if self.original is None:
            guess = self.context // max(1, round(entry.factor or 1))
            raise InvalidRope(
                f"{entry.rope_type} scaling stores no original length, so its original reading needs one",
                where=self.where,
                try_=self.wish.command(self.checkpoint.path, "--from", ORIGINAL, "--original-length", str(guess)),
            )
        return Start(_on_base(self.family, entry, self.original), self.original, ORIGINAL)

    def from_current(self) -> Start:
        entry = self.entry
        assert entry.table is not None
        if entry.table.rule is not None:
            raise InvalidRope(
                "the current table follows the length, so there is no one table to build on", where=self.where,
                try_=self.wish.command(self.checkpoint.path, "--from", ORIGINAL),
            )  # fmt: skip
        last, limit = entry.table.regimes[-1], entry.table.regimes[0].up_to
        theta = entry.rope_theta if entry.rope_type == "default" else None
        source = Source(
            last.inv_freq, self.context, theta, entry.rope_theta, last.attention_factor, entry.softmax_multiplier,
            _mscale(self.family, entry),
        )  # fmt: skip
        notes = () if limit is None else (f"the table beyond {limit} tokens is extended, for all lengths",)
        return Start(source, self.original or self.context, CURRENT, notes)
