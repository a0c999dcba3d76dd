"""Imports of torch and transformers, their devices and types, and a context without their messages."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ropetool import families, names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, MissingDependency
from ropetool.escaping import install_line
from ropetool.probing import records

MAP = "map"  # the device name with which accelerate distributes the layers over all devices
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


def library(name: str) -> Any:
    """Return an imported module. Raises: MissingDependency if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependency(
            f"verification needs {name}, which is not installed", try_=install_line("verify")
        ) from error


def without_class(checkpoint: HfCheckpoint) -> str:
    """Return why transformers has no class that runs a checkpoint, or "" if it may have one."""
    family = families.find(str(checkpoint.config.get(names.MODEL_TYPE)))
    if family is None or not family.remote or records.is_registered(family.name):
        return ""
    return f"{family.name} needs remote code, which ropetool never runs"


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Hide the progress bars and warnings of transformers within the context, then restore its settings."""
    log = transformers.utils.logging
    hub = import_module("huggingface_hub.utils")
    verbosity, bars, no_hub_bars = log.get_verbosity(), log.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    log.set_verbosity_error()
    log.disable_progress_bar()  # this disables the bars of huggingface_hub too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
        if no_hub_bars:
            hub.disable_progress_bars()


def torch_device(torch: Any, name: str) -> Any:
    """Return the torch.device with this name; for auto and map CUDA, else Apple's MPS, else the CPU.

    Raises: ConfigError if torch does not know the device, or this machine does not have it.
    """
    if name in ("auto", MAP):
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"torch has no device {name!r}", where="--device", try_="--device auto") from error
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present.get(device.type, False):
        raise ConfigError(f"torch does not find {name} on this machine", where="--device", try_="--device cpu")
    return device


def torch_dtype(torch: Any, name: str, device: Any) -> Any:
    """Return the dtype argument for transformers. auto is the stored type, but float32 on a CPU, where others are slow.

    Raises: ConfigError if the name is not one of `DTYPES`.
    """
    if name not in DTYPES:
        raise ConfigError(f"{name!r} is not one of {', '.join(DTYPES)}", where="--dtype")
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, name)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether this error means lack of memory. CUDA has a class for it; MPS and the CPU raise a RuntimeError."""
    text = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in text or "can't allocate memory" in text
