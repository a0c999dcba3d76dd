"""The rows of each layer's queries and keys in a checkpoint's weights, from the data of its family."""

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
# The suffix in place of .weight for a packed projection, and the tool that packs it.
PACKED = {
    ".qweight": "GPTQ or AWQ", ".weight_packed": "compressed-tensors", ".weight.absmax": "bitsandbytes",
    ".weight_blocks": "MXFP4", ".weight_scale_2": "NVFP4",
}  # fmt: skip


def cannot_bake(model: str, reason: str, where: str) -> LossyExport:
    """Return the error about a family or architecture that bakes do not support."""
    return LossyExport(f"cannot bake into {model} models: {reason}", where=where)


def packed(what: str, tensor: str) -> UnsupportedDtype:
    """Return the error about a tensor whose rows share scales. what: a predicate such as "has type I32"."""
    return UnsupportedDtype(
        f"{what}: its rows share scales, so bake cannot change single rows exactly; an extension that edits only "
        "config.json works", where=tensor, try_="bake the unpacked model, then pack it",
    )  # fmt: skip


class Stored(Protocol):
    """The type and shape of a tensor of any format, rows first."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, eq=False)
class FoldTargets:
    """A checkpoint's data for bakes.

    family: its family.
    config: the values that row selectors and switches of the family read.
    rope: the tables of its runtime.
    tensors: its tensors, by name.
    quantization: the config's quantization_config.
    where: the checkpoint, in messages.
    of_layers: config values of single layers, which override `config`.
    without_attention: layers without attention.
    without_keys: layers that use the keys of a different layer.
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

        Raises: LossyExport if they are unknown, or if no bake is exact for the family.
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
        """Return the layer types that rotate."""
        return {layer_type: entry for layer_type, entry in self.rope.entries.items() if entry.table is not None}

    @property
    def leading(self) -> tuple[str, LayerRope]:
        """Return the main layer type: full attention if it rotates, else the first that rotates.

        Raises: LossyExport if no layer rotates.
        """
        rotating = self.rotating
        if not rotating:
            raise LossyExport("no layer rotates", where=self.where)
        layer_type = names.FULL_ATTENTION if names.FULL_ATTENTION in rotating else next(iter(rotating))
        return layer_type, rotating[layer_type]

    def sizes(self, entry: LayerRope, layer: int) -> Sizes:
        """Return the sizes for row selectors in a layer of this layer type."""
        config = {**self.config, **self.of_layers.get(layer, {})}
        heads = config.get(names.NUM_ATTENTION_HEADS)
        if heads is None:
            raise ConfigError(f"{names.NUM_ATTENTION_HEADS} is missing; bake requires it", where=self.where)
        kv_heads = config.get(names.NUM_KEY_VALUE_HEADS)
        return Sizes(heads, heads if kv_heads is None else kv_heads, entry.head_dim, config)


@dataclass(frozen=True)
class FoldRows:
    """Rows of one tensor, for each head.

    tensor: its name.
    height: its number of rows.
    starts: the first row of each head.
    width: the number of rows of a head.
    rotary: the first rotary row within a head.
    offset: the number that the runtime adds to a stored number before multiplying.
    """

    tensor: str
    height: int
    starts: tuple[int, ...]
    width: int
    rotary: int
    offset: float


def layers(targets: FoldTargets, entry: LayerRope) -> tuple[int, ...]:
    """Return the layers of this entry that have attention, with layers of multi-token prediction after the last one."""
    count = int(targets.config.get(names.NUM_HIDDEN_LAYERS) or 0)
    if targets.without_attention:
        return tuple(layer for layer in entry.layers if layer not in targets.without_attention)
    if len(targets.rope.entries) > 1 or entry.layers != tuple(range(count)):
        return entry.layers  # the layer type of a layer after the last would be unknown
    more: list[int] = []
    while attention_name(targets, count + len(more)):
        more.append(count + len(more))
    return (*entry.layers, *more)


def attention_name(targets: FoldTargets, layer: int) -> str:
    """Return the name of the layer's attention in the file, or an empty text."""
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
    """Return the rows of the steps in a layer. last: only of the last step.

    Raises: LossyExport if a tensor that the config requires is missing or has a different number of rows;
    UnsupportedDtype if it is packed.
    """
    steps_with_rows = by_step(targets, entry, layer, steps, side, last=last)
    return [place for _, some in steps_with_rows for place in some]


def by_step(
    targets: FoldTargets, entry: LayerRope, layer: int, steps: tuple[FoldStep, ...], side: str, *, last: bool = False
) -> list[tuple[FoldStep, list[FoldRows]]]:
    """Return each applicable step with its rows.

    The list is empty for keys if the layer uses the keys of a different layer.
    """
    if side == K and layer in targets.without_keys:
        return []
    prefix = attention_name(targets, layer)
    if not prefix:
        missing = f"{targets.steps.layers[0].format(layer=layer)}.{targets.steps.k[0].tensor}.weight"
        raise LossyExport(f"the file has no {missing}", where=targets.where)
    used = [step for step in steps if _in_use(targets, prefix, step)]
    return [(step, _of_step(targets, entry, layer, step, side)) for step in (used[-1:] if last else used)]


def _in_use(targets: FoldTargets, prefix: str, step: FoldStep) -> bool:
    for key, required in ((step.when, True), (step.unless, False)):
        if not key:
            continue
        if key in targets.config:
            if bool(targets.config[key]) is not required:
                return False
        elif not any(f"{prefix}.{step.tensor.format(head=0)}{end}" in targets.tensors for end in (".weight", *PACKED)):
            return False
    return True


def _of_step(targets: FoldTargets, entry: LayerRope, layer: int, step: FoldStep, side: str) -> list[FoldRows]:
    sizes, prefix = targets.sizes(entry, layer), attention_name(targets, layer)
    rows = select(step.rows, sizes, side)
    count = sizes.of(side) if "{head}" in step.tensor else 1
    rows_of_parts = []
    for head in range(count):
        base = f"{prefix}.{step.tensor.format(head=head)}"
        _check_weight(targets, base, rows.height)
        for part in PARTS:
            if f"{base}{part}" in targets.tensors:
                offset = step.offset if part == ".weight" else 0.0
                rows_of_parts.append(
                    FoldRows(f"{base}{part}", rows.height, rows.starts, rows.width, rows.rotary, offset)
                )
    return rows_of_parts


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
