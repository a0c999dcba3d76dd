"""Formats of packed weights: which of them export unpacks, and which of them transformers runs. Found by discovery.

A file in this folder that defines `FORMAT` adds a format.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CheckpointError, UnsupportedDtype
from ropetool.escaping import command
from ropetool.files.hf.jsontext import shown
from ropetool.packed.base import Format

QUANTIZATION_CONFIG = "quantization_config"


@cache
def every() -> Mapping[str, Format]:
    """Return all formats, by their quant_method."""
    files = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {file.FORMAT.method: file.FORMAT for file in files if hasattr(file, "FORMAT")}


def of(quantization: Any) -> Format | None:
    """Return the format of a quantization_config; None if it is unknown."""
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    return every().get(method) if isinstance(method, str) else None


def check_readable(quantization: Any, where: str) -> None:
    """Raise UnsupportedDtype or MissingDependency for a quantization_config that export cannot read. where: config.json."""
    form = of(quantization)
    if form is None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedDtype(
            f"{QUANTIZATION_CONFIG} has the quant_method {shown(method)}; export reads weights in bf16, f16, f32, f64, "
            "fp8 and compressed-tensors, and experts in mxfp4",
            where=where, try_="export the checkpoint before quantisation",
        )  # fmt: skip
    form.check_readable(quantization, where)


def check_runs(checkpoint: HfCheckpoint, *, gpu: bool) -> None:
    """Raise CheckpointError for packed weights that transformers cannot run, or would run with incorrect numbers.

    gpu: whether the model runs on a GPU from NVIDIA.
    """
    form = of(checkpoint.config.get(QUANTIZATION_CONFIG))
    problem = form.not_run(checkpoint, gpu) if form is not None else ""
    if problem:
        raise CheckpointError(
            f"transformers cannot run its weights, which are packed by {form.method if form else ''}: {problem}",
            where=str(checkpoint.path),
            try_=f"{command('vllm', 'serve', checkpoint.path)}, then "
            f"{command('ropetool', 'verify', checkpoint.path, '--server', 'http://localhost:8000')}",
        )  # fmt: skip
