"""Quantised rows of a GGUF file: a factor changes the scales of their blocks, not the numbers in them.

The positions of the scales are from ggml/src/ggml-common.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError, LossyExport, UnsupportedDtype
from ropetool.files.dtypes import STORAGE
from ropetool.files.gguf import GGML_TYPES
from ropetool.rope.tables import Array
from ropetool.weights.edits import SCALE, TensorEdit, by_tensor
from ropetool.weights.fold_targets import FoldTargets
from ropetool.weights.rounding import RoundingErrors

# The offsets of the float16 scales in a block, in bytes. Every number of the block is linear in all of them together.
F16_SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
E8M0 = "MXFP4"  # its blocks begin with a power of two
WIDE = ("F32",)  # the values of --bake-dtype for GGUF files, because llama.cpp cannot multiply F64
TYPES = {type_.name: type_ for type_ in GGML_TYPES.values()}
BLOCKS = {type_.name: number for number, type_ in GGML_TYPES.items() if type_.block > 1}


def on_blocks(edits: Sequence[TensorEdit], targets: FoldTargets, bake_dtype: str = "") -> tuple[TensorEdit, ...]:
    """Return the edits with an effect. Each reason names the place of the factor.

    Raises: UnsupportedDtype if the stored type cannot be multiplied; ConfigError for an invalid bake_dtype.
    """
    if bake_dtype and bake_dtype not in WIDE:
        raise ConfigError(f"is {bake_dtype}; for a GGUF file it must be one of {', '.join(WIDE)}", where="--bake-dtype")
    changes = by_tensor(edits)
    return tuple(
        _explained(edit, targets.tensors[edit.tensor].dtype, bake_dtype) for edit in edits if edit.tensor in changes
    )


def _explained(edit: TensorEdit, dtype: str, bake_dtype: str) -> TensorEdit:
    if edit.operation != SCALE or dtype in STORAGE:
        return edit
    if bake_dtype:
        return replace(edit, reason=f"{edit.reason}, the {dtype} numbers as {bake_dtype}")
    check_factors(dtype, np.array(edit.factors), edit.tensor)
    scales = "powers of two" if dtype == E8M0 else "float16 scales"
    return replace(edit, reason=f"{edit.reason}, in the {scales} of the {dtype} blocks")


def check_factors(dtype: str, factors: Array, name: str) -> None:
    """Return if rows of this type can be multiplied by these factors.

    Raises: UnsupportedDtype.
    """
    if dtype in STORAGE or dtype in F16_SCALES or bool(np.all(factors == 1)):
        return
    if dtype != E8M0:
        raise UnsupportedDtype(
            f"has type {dtype}, whose blocks have no float16 scale to multiply", where=name,
            try_="--bake-dtype f32, which stores the tensor in float32",
        )  # fmt: skip
    bad = [f for f in factors.tolist() if not (f > 0 and math.frexp(f)[0] == 0.5)]
    if bad:
        raise UnsupportedDtype(
            f"has type {dtype}, whose scales are powers of two, but the factor {bad[0]:.6g} is not", where=name,
            try_="--bake-dtype f32, which stores the tensor in float32",
        )  # fmt: skip


def scaled_rows(rows: npt.NDArray[np.uint8], dtype: str, factor: Array, errors: RoundingErrors, name: str) -> None:
    """Multiply rows in place by their factors, in the scales of their blocks.

    A factor of 1 does not change a row's bytes.
    Shapes: rows (n, bytes of a row), factor (n,).
    Raises: LossyExport if a scale leaves its range; UnsupportedDtype.
    """
    check_factors(dtype, factor, name)
    chosen = factor != 1
    if not chosen.any():
        return
    blocks = rows[chosen].reshape(int(chosen.sum()), -1, TYPES[dtype].nbytes)
    if dtype == E8M0:
        blocks[:, :, 0] = stepped(blocks[:, :, 0], factor[chosen], name)
    for at in F16_SCALES.get(dtype, ()):
        old = np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[..., 0].astype(np.float64)
        exact = old * factor[chosen][:, None]
        with np.errstate(over="ignore"):
            stored = exact.astype("<f2")
        errors.add(exact, stored.astype(np.float64), name)
        blocks[:, :, at : at + 2] = stored[..., None].view(np.uint8)
    rows[chosen] = blocks.reshape(-1, rows.shape[1])


def stepped(bits: npt.NDArray[np.uint8], factor: Array, name: str) -> npt.NDArray[np.uint8]:
    """Return the products of powers of two, by adding the exponents.

    Raises: LossyExport if a factor is not a power of two, or a product exceeds the type.
    """
    steps = np.log2(factor)
    moved = bits.astype(np.int64) + steps.astype(np.int64)[:, None]
    if np.any(steps != np.round(steps)) or np.any((moved < 0) | (moved > 254)):
        raise LossyExport("a scale leaves the range of its type, or the factor is not a power of two", where=name)
    return moved.astype(np.uint8)
