"""Formats of packed weights, found by discovery. Each format knows whether export and transformers can read it.

A file in this folder that defines `FORMAT` adds a format.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CheckpointError, MissingDependency, UnsupportedDtype, lacking
from ropetool.escaping import command, install_line
from ropetool.files.hf.jsontext import shown
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.packed.base import PackedFormat

# The types of packed numbers. A plain checkpoint has no matrix of these types.
CODES = frozenset(("F8_E4M3", "F8_E5M2", "F4", "I8", "U8", "I32"))


@cache
def every() -> Mapping[str, PackedFormat]:
    """Return all formats, by their quant_method."""
    files = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {file.FORMAT.method: file.FORMAT for file in files if hasattr(file, "FORMAT")}


def of(quantization: Any) -> PackedFormat | None:
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


def not_run(checkpoint: HfCheckpoint, *, gpu: bool = False) -> str:
    """Return why transformers cannot run the packed weights of a checkpoint, or would run incorrect numbers; else "".

    gpu: whether the model runs on a GPU from NVIDIA.
    """
    quantization = checkpoint.config.get(QUANTIZATION_CONFIG)
    form = of(quantization)
    if form is None:
        return _run_as_they_are(checkpoint, quantization)
    problem = lacking(form.packages) or form.not_run(checkpoint, gpu)
    return problem and f"transformers cannot run weights that are packed by {form.method}: {problem}"


def _run_as_they_are(checkpoint: HfCheckpoint, quantization: Any) -> str:
    """Return why transformers would run packed numbers without their scales; "" if it does not.

    It skips a quant_method that it does not know (quantizers/auto.py), and reads only config.json. Raises: as
    `HfCheckpoint.stored`.
    """
    packed = {
        name: each.dtype for name, each in checkpoint.stored.items() if each.dtype in CODES and len(each.shape) == 2
    }
    if not packed:
        return ""
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    if quantization is not None:
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING  # it takes a second

        if method is None or method in AUTO_QUANTIZATION_CONFIG_MAPPING:
            return ""
    why = (
        "config.json has no quantization_config"
        if quantization is None
        else f"it does not know the quant_method {shown(method)}"
    )
    name, dtype = next(iter(packed.items()))
    return f"transformers would run the numbers of {name} ({dtype}) without their scales: {why}"


def unpacked_by_transformers(path: Path, *, gpu: bool) -> bool:
    """Return whether transformers unpacks the weights of a directory while it reads them.

    gpu: whether the model runs on a GPU from NVIDIA, where transformers may run FP8 weights without unpacking them.
    Raises: CheckpointError for packed weights that transformers cannot run, with the command that measures them;
    MissingDependency if only packages of an extra are missing.
    """
    checkpoint, gpu = HfCheckpoint.open(path), gpu and _has_fp8()
    form, problem = of(checkpoint.config.get(QUANTIZATION_CONFIG)), not_run(checkpoint, gpu=gpu)
    if problem and form is not None and form.extra and lacking(form.packages):
        raise MissingDependency(problem, where=str(path), try_=install_line(form.extra))
    if problem:
        raise CheckpointError(problem, where=str(path), try_=_measured(path, form))
    return form is not None and form.dequantize and not (gpu and form.gpu)


def _has_fp8() -> bool:
    """Return whether transformers runs FP8 weights on this GPU. Source: quantizers/quantizer_finegrained_fp8.py."""
    import torch

    return torch.cuda.get_device_capability() >= (8, 9)


def measuring(quantization: Any, path: Path) -> str:
    """Return the command that measures a checkpoint: on a server if transformers lacks packages for its packed weights."""
    form = of(quantization)
    if form is not None and not form.extra and lacking(form.packages):
        return _measured(path, form)
    return command("ropetool", "verify", path)


def _measured(path: Path, form: PackedFormat | None) -> str:
    """Return the commands that measure a checkpoint without transformers: with llama.cpp if export unpacks it, else vLLM."""
    if form is not None and form.unpack is not None:
        return f"{command('ropetool', 'export', path)}, then {command('ropetool', 'verify', 'FILE.gguf')}"
    verify = command("ropetool", "verify", path, "--server", "http://localhost:8000")
    return f"{command('vllm', 'serve', path)}, then {verify}"
