"""The types of an export: the matrices' storage type, the program that writes them, and the tensors that stay F32."""

from __future__ import annotations

from dataclasses import dataclass

from ropetool.errors import UnknownName, did_you_mean
from ropetool.files.gguf.kinds import GGML_TYPES, ggml_type

AUTO = "auto"
MXFP4_MOE = "mxfp4_moe"  # not an option: the file type of experts in MXFP4 with matrices that are not quantised
BLOCKS = {ggml.name: ggml.block for ggml in GGML_TYPES.values()}
# llama.cpp computes with vectors, norms, expert gates and short convolutions only in F32 (convert_hf_to_gguf.py).
_F32_ENDS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "shortconv.conv.weight",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutType:
    """A type of an export.

    dtype: ggml's type of the matrices. For a mix of types from libllama, the most common type.
    file_type: llama_ftype in llama.h. Programs print it, but do not use it otherwise.
    by_libllama: whether libllama's quantiser writes this type.
    weighted: whether libllama requires an importance matrix for this type.
    """

    dtype: str
    file_type: int
    by_libllama: bool = False
    weighted: bool = False


def _mix(dtype: str, file_type: int, *, weighted: bool = False) -> OutType:
    return OutType(dtype, file_type, by_libllama=True, weighted=weighted)


# Source: enum llama_ftype in include/llama.h; llama_ftype_get_default_type and tensor_requires_imatrix in
# src/llama-quant.cpp; the three aliases in tools/quantize/quantize.cpp.
OUTTYPES = {
    "f32": OutType("F32", 0), "f16": OutType("F16", 1), "bf16": OutType("BF16", 32),
    "q8_0": OutType("Q8_0", 7), "q5_1": OutType("Q5_1", 9), "q5_0": OutType("Q5_0", 8),
    "q4_1": OutType("Q4_1", 3), "q4_0": OutType("Q4_0", 2),
    "q6_k": _mix("Q6_K", 18), "q5_k": _mix("Q5_K", 17), "q5_k_m": _mix("Q5_K", 17),
    "q5_k_s": _mix("Q5_K", 16), "q4_k": _mix("Q4_K", 15), "q4_k_m": _mix("Q4_K", 15),
    "q4_k_s": _mix("Q4_K", 14), "q3_k": _mix("Q3_K", 12), "q3_k_l": _mix("Q3_K", 13),
    "q3_k_m": _mix("Q3_K", 12), "q3_k_s": _mix("Q3_K", 11), "q2_k": _mix("Q2_K", 10),
    "q2_k_s": _mix("Q2_K", 21, weighted=True), "iq4_nl": _mix("IQ4_NL", 25),
    "iq4_xs": _mix("IQ4_XS", 30), "iq3_m": _mix("IQ3_S", 27), "iq3_s": _mix("IQ3_S", 26),
    "iq3_xs": _mix("IQ3_S", 22, weighted=True), "iq3_xxs": _mix("IQ3_XXS", 23, weighted=True),
    "iq2_m": _mix("IQ2_S", 29, weighted=True), "iq2_s": _mix("IQ2_XS", 28, weighted=True),
    "iq2_xs": _mix("IQ2_XS", 20, weighted=True), "iq2_xxs": _mix("IQ2_XXS", 19, weighted=True),
    "iq1_m": _mix("IQ1_M", 31, weighted=True), "iq1_s": _mix("IQ1_S", 24, weighted=True),
    MXFP4_MOE: OutType("MXFP4", 38),
}  # fmt: skip
NAMES = (AUTO, *(name for name in OUTTYPES if name != MXFP4_MOE))


def check_outtype(name: str) -> None:
    """Raise UnknownName unless this is a type of `export`, or auto."""
    if name not in NAMES:
        raise UnknownName(
            f"unknown type {name!r}{did_you_mean(name, NAMES)}; known: {', '.join(NAMES)}", where="--outtype"
        )


def is_made_by_libllama(name: str) -> bool:
    """Return whether libllama's quantiser writes this type."""
    return name in OUTTYPES and OUTTYPES[name].by_libllama


def dtype_of(name: str, shape: tuple[int, ...], outtype: str) -> str:
    """Return the storage type of a tensor, by its name and shape.

    Rows that do not divide into the type's blocks are stored in F16, as in convert_hf_to_gguf.py.
    Shapes: as in numpy, the row length last.
    """
    if len(shape) == 1 or name.endswith(_F32_ENDS) or not name.endswith(".weight"):
        return "F32"
    dtype = OUTTYPES[outtype].dtype
    return dtype if shape[-1] % BLOCKS[dtype] == 0 else "F16"


def nbytes_of(dtype: str, elements: int) -> int:
    """Return the number of bytes of this many elements, which fill whole blocks."""
    ggml = GGML_TYPES[ggml_type(dtype)]
    return elements // ggml.block * ggml.nbytes
