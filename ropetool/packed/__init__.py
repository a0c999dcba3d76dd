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
from ropetool.files.hf import read_object
from ropetool.files.hf.jsontext import shown
from ropetool.names import CONFIG_JSON, QUANTIZATION_CONFIG
from ropetool.packed.base import PackedFormat


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
    form = of(checkpoint.config.get(QUANTIZATION_CONFIG))
    problem = "" if form is None else lacking(form.packages) or form.not_run(checkpoint, gpu)
    return problem and f"transformers cannot run weights that are packed by {form.method if form else ''}: {problem}"


def unpacked_by_transformers(path: Path, *, gpu: bool) -> bool:
    """Return whether transformers unpacks the weights of a directory while it reads them.

    gpu: whether the model runs on a GPU from NVIDIA, where transformers runs FP8 weights without unpacking them.
    Raises: CheckpointError for packed weights that transformers cannot run, with the command that measures them;
    MissingDependency if only packages of an extra are missing.
    """
    _, config = read_object(path / CONFIG_JSON)
    form = of(config.get(QUANTIZATION_CONFIG))
    if form is None:
        return False
    problem = not_run(HfCheckpoint.open(path), gpu=gpu)
    if problem and form.extra and lacking(form.packages):
        raise MissingDependency(problem, where=str(path), try_=install_line(form.extra))
    if problem:
        raise CheckpointError(problem, where=str(path), try_=_measured(path, form))
    return form.dequantize and not (gpu and form.gpu)


def measuring(quantization: Any, path: Path) -> str:
    """Return the command that measures a checkpoint: on a server if transformers lacks packages for its packed weights."""
    form = of(quantization)
    if form is not None and not form.extra and lacking(form.packages):
        return _measured(path, form)
    return command("ropetool", "verify", path)


def _measured(path: Path, form: PackedFormat) -> str:
    """Return the commands that measure a checkpoint without transformers: with llama.cpp if export unpacks it, else vLLM."""
    if form.unpack is not None:
        return f"{command('ropetool', 'export', path)}, then {command('ropetool', 'verify', 'FILE.gguf')}"
    verify = command("ropetool", "verify", path, "--server", "http://localhost:8000")
    return f"{command('vllm', 'serve', path)}, then {verify}"
