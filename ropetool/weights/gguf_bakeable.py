"""A GGUF model to bake into: the metadata keys that set a factor, and their values when the weights contain it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool import names
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_keys import removal
from ropetool.errors import ConfigError, LossyExport
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.tables import LayerRope
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import mscale
from ropetool.runtimes.llama_cpp.layers import ModelKeys
from ropetool.weights import operations as ops
from ropetool.weights.edits import TensorEdit
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.gguf_fold_targets import gguf_targets
from ropetool.weights.gguf_scales import on_blocks


@dataclass(frozen=True, eq=False)
class GgufBakeable:
    """A GGUF model. One key sets the attention factor of all its layers."""

    checkpoint: GgufCheckpoint
    targets: FoldTargets
    bake_dtype: str = ""

    @classmethod
    def of(cls, checkpoint: GgufCheckpoint, bake_dtype: str = "") -> GgufBakeable:
        """Return the model with its fold targets.

        Raises: LossyExport if llama.cpp refuses the model, or its fold targets are unknown.
        """
        return cls(checkpoint, gguf_targets(checkpoint), bake_dtype)

    @property
    def own_factors(self) -> tuple[str, ...]:
        return (self.targets.leading[0],)

    @property
    def score_follows(self) -> bool:
        """Return whether the multiplier of the whole score may change with the factor on cos and sin.

        One key can set both.
        """
        return self.targets.leading[1].softmax_multiplier != 1

    def factor_edits(self, factors: Mapping[str, float], *, keep_softmax: bool) -> list[FileEdit]:
        layer_type, entry = self.targets.leading
        scale = math.sqrt(entry.softmax_multiplier) if keep_softmax else 1.0
        return self.checkpoint.edits_of(_factor_patch(self.checkpoint, entry, factors.get(layer_type, 1.0), scale))

    def score_edit(self, factors: Mapping[str, float]) -> FileEdit:
        raise ConfigError("a GGUF file has no key that multiplies the score", where="--config-only")

    def layout_edit(self, to: str) -> FileEdit:
        """Raise LossyExport, because llama.cpp derives the channel order from the architecture."""
        raise LossyExport(
            f"llama.cpp always rotates the channels of these files in the {self.targets.leading[1].layout} order; it would "
            f"misread the {to} order", where=self.targets.where,
            try_="ropetool bake FILE rearch --to llama, for qwen2 files",
        )  # fmt: skip

    def still(self, pairs: Sequence[int]) -> tuple[list[TensorEdit], list[FileEdit]]:
        """Return frequency vectors with very large divisors for these pairs."""
        model, reader = self.checkpoint, ModelKeys.of(self.checkpoint)
        vector_names = reader.arch.loads(reader.get(archs.SCALING_TYPE, "linear")) if reader.arch.vectors else ()
        if not vector_names:
            more = " or --rearch llama" if reader.arch.name == "qwen2" else ""
            raise LossyExport(
                f"llama.cpp does not use frequency vectors for {reader.arch.name}, so it rotates every pair",
                where=model.where, try_=f"--mode mute{more}",
            )  # fmt: skip
        size, vectors = self.targets.rope.entries[names.FULL_ATTENTION].rotary_dim // 2, {}
        for name in vector_names:
            vectors[name] = model.vector(name).copy() if name in model.tensors else np.ones(size, np.float32)
            vectors[name][list(pairs)] = ops.STILL_DIVISOR
        return [], model.edits_of(Patch(tensors=vectors))

    def placed(self, edits: list[TensorEdit]) -> tuple[TensorEdit, ...]:
        return on_blocks(edits, self.targets, self.bake_dtype)

    def other_edits(self, tensors: Sequence[TensorEdit]) -> list[FileEdit]:
        """Return the edits that remove ropetool's own keys, because they describe the weights before the bake."""
        return removal(self.checkpoint)


def _factor_patch(model: GgufCheckpoint, entry: LayerRope, factor: float, scale: float) -> Patch:
    """Return the keys that make llama.cpp multiply cos and sin by `factor`, and MLA's score by `scale` squared."""
    reader = ModelKeys.of(model)
    if reader.arch.mla and not reader.arch.one_factor:
        scaling_type = reader.get(archs.SCALING_TYPE, "linear")
        return _patch_of_numbers(
            reader, mscale.numbers(reader.arch.name, scaling_type, entry.factor or 1.0, scale, factor)
        )
    if reader.arch.one_factor and math.isclose(scale, 1) and not math.isclose(factor, 1):
        raise LossyExport(f"llama.cpp has one key for both factors of {reader.arch.name}", where=model.where)
    old = reader.number(archs.ATTN_FACTOR, 1.0)
    return _patch_of_numbers(reader, {archs.ATTN_FACTOR: old * factor / entry.attention_factor})


def _patch_of_numbers(reader: ModelKeys, numbers: Mapping[str, float]) -> Patch:
    """Return the patch that sets these numbers. A number equal to llama.cpp's default is left out."""
    values: dict[str, Value] = {}
    removed = set()
    for suffix, number in numbers.items():
        key = reader.key(suffix)
        if not math.isclose(number, archs.DEFAULTS[suffix], rel_tol=1e-9, abs_tol=1e-12):
            values[key] = Value.of(ValueType.F32, number)
        elif key in reader.view.values:
            removed.add(key)
    return Patch(values, frozenset(removed))
