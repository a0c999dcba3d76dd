"""Where a checkpoint's weights can carry a change: the rows of each layer's queries and keys, as its family has them.

Knows tensor names and shapes, not what a change does to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ropetool import names
from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.families.family import Family, FoldStep, FoldSteps
from ropetool.families.rows import K, Sizes, select
from ropetool.rope.tables import LayerRope, RopeSet

PARTS = (".weight", ".bias")
# What stands in place of .weight where a projection is packed, by the tool that packs it.
PACKED = {
    ".qweight": "GPTQ or AWQ", ".weight_packed": "compressed-tensors", ".weight.absmax": "bitsandbytes",
    ".weight_blocks": "MXFP4", ".weight_scale_2": "NVFP4",
}  # fmt: skip


def cannot_bake(model: str, reason: str, where: str) -> LossyExport:
    """Return the refusal of a bake into a family or architecture."""
    return LossyExport(f"cannot bake into {model} models: {reason}", where=where)


def packed(what: str, tensor: str) -> UnsupportedDtype:
    """Return the refusal of a bake into a tensor whose rows share scales. what: a predicate such as "has type I32"."""
    return UnsupportedDtype(
        f"{what}: its rows share scales, so bake cannot change single rows exactly; an extension that edits only "
        "config.json works", where=tensor, try_="bake the unpacked model, then pack it",
    )  # fmt: skip


class Stored(Protocol):
    """What is asked of a tensor of any format: its type and its shape, rows first."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, eq=False)
class FoldTargets:
    """What bakes look at: the family, the config's section with the rope keys, what rotates, the tensors by name.

    config: what the selectors and switches of the family read; quantization: the config's quantization_config.
    of_layers: what single layers have in place of the config's. without_attention, without_keys: the layers that have
    none, and those that attend by the keys of another layer.
    """

    family: Family
    config: Mapping[str, Any]
    rope: RopeSet
    tensors: Mapping[str, Stored]
    quantization: Mapping[str, Any]
    where: str = "config.json"
    of_layers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    without_attention: frozenset[int] = frozenset()
    without_keys: frozenset[int] = frozenset()

    @property
    def steps(self) -> FoldSteps:
        """Return the family's steps to queries and keys.

        Raises: LossyExport if it has none, or no bake is exact for it.
        """
        bake = self.family.bake
        if bake is None or bake.refused:
            reason = bake.refused if bake else "ropetool has no data on its queries and keys"
            raise cannot_bake(self.family.model_type, reason, self.where)
        if bake.clip_key and self.config.get(bake.clip_key) is not None:
            raise LossyExport(
                f"{bake.clip_key} is {self.config[bake.clip_key]}: the model clamps its projections, so scaled weights do not "
                "scale the score", where=self.where,
            )  # fmt: skip
        return bake

    @property
    def rotating(self) -> dict[str, LayerRope]:
        """Return the kinds of layer that rotate."""
        return {kind: entry for kind, entry in self.rope.entries.items() if entry.table is not None}

    @property
    def leading(self) -> tuple[str, LayerRope]:
        """Return the kind of layer that keys speak of first: full attention, or the first that rotates.

        Raises: LossyExport if none does.
        """
        rotating = self.rotating
        if not rotating:
            raise LossyExport("no layer rotates", where=self.where)
        kind = names.FULL_ATTENTION if names.FULL_ATTENTION in rotating else next(iter(rotating))
        return kind, rotating[kind]

    def sizes(self, entry: LayerRope, layer: int) -> Sizes:
        """Return what the row selectors count with in a layer of this kind."""
        config = {**self.config, **self.of_layers.get(layer, {})}
        heads = config.get(names.NUM_ATTENTION_HEADS)
        if heads is None:
            raise ConfigError(f"{names.NUM_ATTENTION_HEADS} is missing; bake requires it", where=self.where)
        kv_heads = config.get(names.NUM_KEY_VALUE_HEADS)
        return Sizes(heads, heads if kv_heads is None else kv_heads, entry.head_dim, config)


@dataclass(frozen=True)
class FoldRows:
    """Rows of one tensor: head h has `width` of them from starts[h] on, its rotary ones from `rotary` in them."""

    tensor: str
    height: int
    starts: tuple[int, ...]
    width: int
    rotary: int
    offset: float


def layers(targets: FoldTargets, entry: LayerRope) -> tuple[int, ...]:
    """Return the layers of this entry that have attention, those of multi-token prediction behind the last one included."""
    count = int(targets.config.get(names.NUM_HIDDEN_LAYERS) or 0)
    if targets.without_attention:
        return tuple(layer for layer in entry.layers if layer not in targets.without_attention)
    if len(targets.rope.entries) > 1 or entry.layers != tuple(range(count)):
        return entry.layers  # a layer behind the last would be of a kind that no key states
    more: list[int] = []
    while attention_name(targets, count + len(more)):
        more.append(count + len(more))
    return (*entry.layers, *more)


def attention_name(targets: FoldTargets, layer: int) -> str:
    """Return the name of the layer's attention as the file has it, empty where it has none."""
    for template in targets.steps.layers:
        prefix = template.format(layer=layer)
        for step in (*targets.steps.k, *targets.steps.q):
            name = f"{prefix}.{step.tensor.format(head=0)}"
            if any(f"{name}{suffix}" in targets.tensors for suffix in (".weight", *PACKED)):
                return prefix
    return ""


def fold_rows(
    targets: FoldTargets, entry: LayerRope, layer: int, steps: tuple[FoldStep, ...], side: str, *, last: bool
) -> list[FoldRows]:
    """Return the rows that the steps in use have in a layer; of the last step alone, or of all.

    Raises: LossyExport if the file does not have what its config says, or has it packed.
    """
    found = by_step(targets, entry, layer, steps, side, last=last)
    return [place for _, some in found for place in some]


def by_step(
    targets: FoldTargets, entry: LayerRope, layer: int, steps: tuple[FoldStep, ...], side: str, *, last: bool = False
) -> list[tuple[FoldStep, list[FoldRows]]]:
    """Return each step in use with its rows; none for the keys of a layer that has none of its own."""
    if side == K and layer in targets.without_keys:
        return []
    prefix = attention_name(targets, layer)
    if not prefix:
        wanted = f"{targets.steps.layers[0].format(layer=layer)}.{targets.steps.k[0].tensor}.weight"
        raise LossyExport(f"the file has no {wanted}", where=targets.where)
    used = [step for step in steps if _in_use(targets, prefix, step)]
    return [(step, _of_step(targets, entry, layer, step, side)) for step in (used[-1:] if last else used)]


def _in_use(targets: FoldTargets, prefix: str, step: FoldStep) -> bool:
    for key, wanted in ((step.when, True), (step.unless, False)):
        if not key:
            continue
        if key in targets.config:
            if bool(targets.config[key]) is not wanted:
                return False
        elif not any(f"{prefix}.{step.tensor.format(head=0)}{end}" in targets.tensors for end in (".weight", *PACKED)):
            return False
    return True


def _of_step(targets: FoldTargets, entry: LayerRope, layer: int, step: FoldStep, side: str) -> list[FoldRows]:
    sizes, prefix = targets.sizes(entry, layer), attention_name(targets, layer)
    rows = select(step.rows, sizes, side)
    count = sizes.of(side) if "{head}" in step.tensor else 1
    found = []
    for head in range(count):
        base = f"{prefix}.{step.tensor.format(head=head)}"
        _check_weight(targets, base, rows.height)
        for part in PARTS:
            if f"{base}{part}" in targets.tensors:
                offset = step.offset if part == ".weight" else 0.0
                found.append(FoldRows(f"{base}{part}", rows.height, rows.starts, rows.width, rows.rotary, offset))
    return found


def _check_weight(targets: FoldTargets, base: str, height: int) -> None:
    tool = next((tool for suffix, tool in PACKED.items() if f"{base}{suffix}" in targets.tensors), None)
    if tool:
        raise packed(f"is packed ({tool})", base)
    weight = targets.tensors.get(f"{base}.weight")
    if weight is None:
        raise LossyExport(f"the file has no {base}.weight, which its config requires", where=targets.where)
    size = 1
    for extent in weight.shape:
        size *= extent
    if not weight.shape or (weight.shape[0] != height and size != height):
        raise LossyExport(
            f"{base}.weight has the shape {list(weight.shape)}; the sizes in the config require {height} rows",
            where=targets.where,
        )
