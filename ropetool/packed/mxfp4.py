"""MXFP4 experts of gpt-oss, which export keeps in ggml's own type (ropetool.gguf_model.mxfp4)."""

from __future__ import annotations

from ropetool.packed.base import PackedFormat

FORMAT = PackedFormat("mxfp4", lambda quantization, where: None)
