"""bitsandbytes: codes of 4 or 8 bits with a scale for each block.

Source: transformers 5.23.0, quantizers/quantizer_bnb_4bit.py; gptqmodel 7.7.0, utils/model_dequant.py (read, not run).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.packed.base import PackedFormat, unreadable
from ropetool.packed.gptq import unpacking_line

METHOD = "bitsandbytes"


def _check_readable(quantization: Mapping[str, Any], where: str) -> None:
    packs = "codes of 4 or 8 bits with a scale for each block"
    raise unreadable(METHOD, packs, where, unpacking_line(Path(where).parent))


FORMAT = PackedFormat(METHOD, _check_readable, packages=("bitsandbytes",))
