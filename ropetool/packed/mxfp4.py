"""MXFP4 experts of gpt-oss, which export keeps in ggml's own type (ropetool.gguf_model.mxfp4)."""

from __future__ import annotations

from ropetool.packed.base import Format

FORMAT = Format("mxfp4", lambda quantization, where: None)
