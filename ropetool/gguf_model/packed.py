"""Checkpoints with packed weights: the packing methods of quantization_config, and the library that unpacks them.

Source: transformers 5.23.0, utils/quantization_config.py; gptqmodel 7.7.0, utils/model_dequant.py (read, not run).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.errors import UnsupportedDtype
from ropetool.escaping import word
from ropetool.files.hf.jsontext import shown

QUANTIZATION_CONFIG = "quantization_config"
# By quant_method: its format, for the methods that gptqmodel's dequantize_model reads.
_UNPACKED_BY_GPTQMODEL = {
    "gptq": "whole numbers of 2 to 8 bits with a scale and a zero for each group of a column",
    "awq": "whole numbers of 4 bits with a scale and a zero for each group of a column",
    "compressed-tensors": "whole numbers or FP8 with scales in a separate layout",
    "bitsandbytes": "codes of 4 or 8 bits with a scale for each block",
}


def check_readable(quantization: Any, where: str) -> None:
    """Raise UnsupportedDtype for a quantization_config that export cannot read."""
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
    packs = _UNPACKED_BY_GPTQMODEL.get(method) if isinstance(method, str) else None
    if packs is None:
        raise UnsupportedDtype(
            f"{QUANTIZATION_CONFIG} has the quant_method {shown(method)}; export reads weights in bf16, f16, f32, f64 and "
            "fp8, and experts in mxfp4",
            where=where, try_="export the checkpoint before quantisation",
        )  # fmt: skip
    source = str(Path(where).parent)
    call = f"from gptqmodel.utils.model_dequant import dequantize_model as d; d({json.dumps(source)}, {json.dumps(source + '-bf16')})"
    raise UnsupportedDtype(
        f"its weights are packed by {method}: {packs}, which GGUF types cannot store exactly. Export the checkpoint before "
        "quantisation, or unpack this one; the file then contains the rounded weights",
        where=where, try_=f"pip install gptqmodel, then python -c {word(call)}",
    )  # fmt: skip
