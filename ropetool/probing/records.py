"""The record of a model type, or the reason why its class cannot be probed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ropetool.probing import facts

Record = dict[str, Any]


def load() -> None:
    """Import torch and transformers, and silence their messages."""
    import warnings

    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)


def is_registered(model_type: str) -> bool:
    """Return whether the installed transformers has a config class of this type. Remote code has no such class.

    Reads transformers' list of types as text, because importing it would take seconds, too long for a typo in a config.
    """
    import importlib.util
    import sys

    loaded = sys.modules.get("transformers")
    if loaded is not None and hasattr(loaded, "CONFIG_MAPPING"):
        return model_type in loaded.CONFIG_MAPPING
    spec = importlib.util.find_spec("transformers")
    places = spec.submodule_search_locations if spec is not None else None
    auto = Path(places[0], "models", "auto") if places else None
    lists = [auto / "configuration_auto.py", auto / "auto_mappings.py"] if auto else []  # not those of tokenizers
    return any(f'"{model_type}"' in path.read_text(encoding="utf-8") for path in lists if path.is_file())


def record(model_type: str) -> Record:
    """Return the record of a model_type. If the type cannot be probed, the record has the reason."""
    load()
    try:
        return facts.probe(model_type)
    except Exception as error:  # noqa: BLE001 - classes stop with any error, and the reason is the fact
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return unproven(model_type, f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300])


def unproven(model_type: str, reason: str) -> Record:
    """Return the record of a type whose tiny model could not be evaluated."""
    import transformers

    return {
        "model_type": model_type,
        "outcome": "not probed",
        "reason": reason,
        "transformers": transformers.__version__,
    }
