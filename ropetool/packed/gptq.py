"""GPTQ: whole numbers with a scale and a zero for each group of a column.

Source: transformers 5.23.0, quantizers/quantizer_gptq.py. gptqmodel 7.7.0 unpacks tiny checkpoints on a CPU as AutoGPTQ
packs them, with activation order too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.packed.base import PackedFormat, python, unreadable

METHOD = "gptq"
_CODE = "from gptqmodel.utils.model_dequant import dequantize_model as d; d({source}, {copy})"


def unpacking_line(source: Path) -> str:
    """Return the command lines that install gptqmodel and write an unpacked copy of a checkpoint."""
    unpack = python(_CODE, source=str(source), copy=f"{source}-bf16")
    return f"pip install gptqmodel, in an environment of its own, then {unpack}"


def _check_readable(quantization: Mapping[str, Any], where: str) -> None:
    packs = "whole numbers of 2 to 8 bits with a scale and a zero for each group of a column"
    raise unreadable(METHOD, packs, where, unpacking_line(Path(where).parent))


FORMAT = PackedFormat(METHOD, _check_readable, packages=("gptqmodel", "optimum"))
