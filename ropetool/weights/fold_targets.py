"""Where a checkpoint's weights can carry a change: the rows of each layer's queries and keys, as its family has them.

Knows tensor names and shapes, not what a change does to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ropetool import names
from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.families import BakeSites, Family, Stage
from ropetool.families.rows import Sizes, select
from ropetool.rope.tables import LayerRope, RopeSet

PARTS = (".weight", ".bias")
# What stands in place of .weight where a projection is packed, by the tool that packs it.
PACKED = {
    ".qweight": "GPTQ or AWQ", ".weight_packed": "compressed-tensors", ".weight.absmax": "bitsandbytes",
    ".weight_blocks": "MXFP4", ".weight_scale_2": "NVFP4",
}  # fmt: skip


class Stored(Protocol):
    """What is asked of a tensor of any format: its type and its shape, rows first."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, eq=False)
class View:
    """What bakes look at: the family, the config's section with the rope keys, what rotates, the tensors by name.

    config: what the selectors and switches of the family read; quantization: the config's quantization_config.
    """

    family: Family
    config: Mapping[str, Any]
    rope: RopeSet
    tensors: Mapping[str, Stored]
    quantization: Mapping[str, Any]
    where: str = "config.json"

    @property
    def bake(self) -> BakeSites:
        """Return the family's sites.

        Raises: LossyExport if it has none, or no bake is exact for it.
        """
        bake = self.family.bake
        if bake is None or bake.refused:
            reason = bake.refused if bake else "its families/ file names no place in the weights"
            raise LossyExport(f"nothing can be baked into a {self.family.model_type}: {reason}", where=self.where)
        if bake.clip_key and self.config.get(bake.clip_key) is not None:
            raise LossyExport(
                f"{bake.clip_key} is {self.config[bake.clip_key]}: the projections are clamped after the weights, so a "
                "scale in them is not the scale of the score", where=self.where,
            )  # fmt: skip
        return bake

    def sizes(self, entry: LayerRope) -> Sizes:
        """Return what the row selectors count with."""
        heads = self.config.get(names.NUM_ATTENTION_HEADS)
        if heads is None:
            raise ConfigError(f"{names.NUM_ATTENTION_HEADS} must be stated", where=self.where)
        kv_heads = self.config.get(names.NUM_KEY_VALUE_HEADS)
        return Sizes(heads, heads if kv_heads is None else kv_heads, entry.head_dim, self.config)


@dataclass(frozen=True)
class Place:
    """Rows of one tensor: head h has `width` of them from starts[h] on, its rotary ones from `rotary` in them."""

    tensor: str
    height: int
    starts: tuple[int, ...]
    width: int
    rotary: int
    offset: float


def layers(view: View, entry: LayerRope) -> tuple[int, ...]:
    """Return the layers that this entry speaks of, those of multi-token prediction behind the last one included."""
    count = int(view.config.get(names.NUM_HIDDEN_LAYERS) or 0)
    if len(view.rope.entries) > 1 or entry.layers != tuple(range(count)):
        return entry.layers  # a layer behind the last would be of a kind that no key states
    more: list[int] = []
    while attention_name(view, count + len(more)):
        more.append(count + len(more))
    return (*entry.layers, *more)


def attention_name(view: View, layer: int) -> str:
    """Return the name of the layer's attention as the file has it, empty where it has none."""
    for template in view.bake.layers:
        prefix = template.format(layer=layer)
        for stage in (*view.bake.k, *view.bake.q):
            name = f"{prefix}.{stage.tensor.format(head=0)}"
            if any(f"{name}{suffix}" in view.tensors for suffix in (".weight", *PACKED)):
                return prefix
    return ""


def places(
    view: View, entry: LayerRope, layer: int, stages: tuple[Stage, ...], side: str, *, last: bool
) -> list[Place]:
    """Return the rows that the stages in use have in a layer; of the last stage alone, or of all.

    Raises: LossyExport if the file does not have what its config says, or has it packed.
    """
    found = by_stage(view, entry, layer, stages, side, last=last)
    return [place for _, some in found for place in some]


def by_stage(
    view: View, entry: LayerRope, layer: int, stages: tuple[Stage, ...], side: str, *, last: bool = False
) -> list[tuple[Stage, list[Place]]]:
    """Return each stage in use with its rows."""
    prefix = attention_name(view, layer)
    if not prefix:
        wanted = f"{view.bake.layers[0].format(layer=layer)}.{view.bake.k[0].tensor}.weight"
        raise LossyExport(f"the file has no {wanted}", where=view.where)
    used = [stage for stage in stages if _in_use(view, prefix, stage)]
    return [(stage, _of_stage(view, entry, prefix, stage, side)) for stage in (used[-1:] if last else used)]


def _in_use(view: View, prefix: str, stage: Stage) -> bool:
    for key, wanted in ((stage.when, True), (stage.unless, False)):
        if not key:
            continue
        if key in view.config:
            if bool(view.config[key]) is not wanted:
                return False
        elif not any(f"{prefix}.{stage.tensor.format(head=0)}{end}" in view.tensors for end in (".weight", *PACKED)):
            return False
    return True


def _of_stage(view: View, entry: LayerRope, prefix: str, stage: Stage, side: str) -> list[Place]:
    sizes = view.sizes(entry)
    rows = select(stage.rows, sizes, side)
    count = sizes.of(side) if "{head}" in stage.tensor else 1
    found = []
    for head in range(count):
        base = f"{prefix}.{stage.tensor.format(head=head)}"
        _check_weight(view, base, rows.height)
        for part in PARTS:
            if f"{base}{part}" in view.tensors:
                offset = stage.offset if part == ".weight" else 0.0
                found.append(Place(f"{base}{part}", rows.height, rows.starts, rows.width, rows.rotary, offset))
    return found


def _check_weight(view: View, base: str, height: int) -> None:
    packed = next((tool for suffix, tool in PACKED.items() if f"{base}{suffix}" in view.tensors), None)
    if packed:
        raise UnsupportedDtype(
            f"is packed ({packed}): its rows share their scales with others, so none can be changed exactly by itself; "
            "an extension that edits only config.json works", where=base, try_="bake the unpacked model, then pack it",
        )  # fmt: skip
    weight = view.tensors.get(f"{base}.weight")
    if weight is None:
        raise LossyExport(f"the file has no {base}.weight, which its config asks for", where=view.where)
    size = 1
    for extent in weight.shape:
        size *= extent
    if not weight.shape or (weight.shape[0] != height and size != height):
        raise LossyExport(
            f"{base}.weight has the shape {list(weight.shape)}; by config.json it has {height} rows", where=view.where
        )
