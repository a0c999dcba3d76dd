"""Records of model types: which there are, how one becomes text, and whether one still holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ropetool.errors import ConfigError
from ropetool.probing import facts

ORDER = (
    "model_type", "outcome", "reason", "transformers", "architecture", "config_class", "proven_on", "text_path", "text_type",
    "layout",
)  # fmt: skip
# Types without rotary code that have no learned positions either: only the stated context limits them.
UNLIMITED = ("kimi_linear",)
Record = dict[str, Any]


def load() -> None:
    """Load what every probe needs, without a word from it."""
    import warnings

    import torch
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)


def is_registered(model_type: str) -> bool:
    """Return whether the installed transformers has a config class of this type; remote code has none.

    Loading it takes seconds, which a slip in a config is not worth, so that its own list is read as text first.
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


@cache
def model_types() -> list[str]:
    """Return the model types of text models to record: their code rotates something, or may, or nothing limits them."""
    return sorted({*causal_types(), *multimodal_types(), *UNLIMITED})


def causal_types() -> list[str]:
    """Return the model types with a causal model whose module rotates something."""
    return [model_type for model_type in facts.causal() if _rotates_somewhere(model_type)]


def _rotates_somewhere(model_type: str) -> bool:
    """Return whether the module of a type's class has code that rotates."""
    import inspect
    import sys

    import transformers

    try:
        source = inspect.getsource(sys.modules[getattr(transformers, facts.architecture(model_type)).__module__])
    except (ImportError, AttributeError):
        return False  # a class of a package that is not here
    return bool(re.search(facts.ROTATING_CODE, source))


def multimodal_types() -> list[str]:
    """Return the model types that read more than text, or write more, and whose text model has rope parameters."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    # Those that write sound, or turn one sequence into another, are text models with a wrapper or another matter.
    alone = {*auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    tables = (
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
    )  # fmt: skip
    texts = set(causal_types())
    found = []
    for model_type in {name for table in tables for name in table} - facts.causal().keys():
        try:
            path, text = facts.text_config(transformers.AutoConfig.for_model(model_type))
        except Exception:  # noqa: BLE001 - a class without defaults of its own has no facts
            continue
        if not path and model_type not in alone:
            continue
        if hasattr(text, "rope_parameters") or text.model_type in texts or _rotates_somewhere(model_type):
            found.append(model_type)
    return found


def unrotated_types() -> list[str]:
    """Return the model types in whose text model nothing rotates; those that hold another type's text model aside."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    alone = {*auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    found = []
    for model_type in sorted({*facts.causal(), *alone} - set(model_types())):
        try:
            config = transformers.AutoConfig.for_model(model_type)
            path, text = facts.text_config(config)
        except Exception:  # noqa: BLE001 - a class without defaults of its own has no facts
            continue
        if any(getattr(inner, "model_type", None) in model_types() for inner in vars(config).values()):
            continue  # several models side by side, of which one rotates
        chosen = path and (text.model_type in facts.causal() or text.model_type in auto.MODEL_MAPPING_NAMES)
        if not chosen and not _rotates_somewhere(model_type):
            found.append(model_type)
    return found


def record(model_type: str) -> Record:
    """Return the record of a model_type; one that cannot be probed has the reason."""
    load()
    try:
        return facts.probe(model_type)
    except Exception as error:  # noqa: BLE001 - classes stop with any error, and the reason is the fact
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return unproven(model_type, f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300])


def unproven(model_type: str, reason: str) -> Record:
    """Return the record of a type whose tiny model could not be judged."""
    import transformers

    return {
        "model_type": model_type,
        "outcome": "not probed",
        "reason": reason,
        "transformers": transformers.__version__,
    }


def text(entry: Record) -> str:
    """Return a record as the text of its file: sorted, and the same each time."""
    keys = [*(key for key in ORDER if key in entry), *sorted(entry.keys() - set(ORDER))]
    lines = [f"  {json.dumps(key)}: {_value(entry[key])}" for key in keys]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(value: Any) -> str:
    whole = json.dumps(value, sort_keys=True)
    if len(whole) <= 110 or not isinstance(value, (list, dict)):
        return whole
    if isinstance(value, dict):
        inner = [f"    {json.dumps(key)}: {json.dumps(value[key], sort_keys=True)}" for key in sorted(value)]
        return "{\n" + ",\n".join(inner) + "\n  }"
    return "[\n" + ",\n".join(f"    {json.dumps(one, sort_keys=True)}" for one in value) + "\n  ]"


def summary(entry: Mapping[str, Any]) -> str:
    """Return what came of a type in a line."""
    if entry["outcome"] != "proven":
        return f"{entry['outcome']}: {entry['reason']}"
    tables = ", ".join(f"{label} {one['rotary_dim']}" for label, one in sorted(entry["tables"].items()))
    return f"proven: {entry['layout']}, {tables}, rotates {entry['rotates']}"


def compare(model_type: str, written: Record | None, found: Record) -> None:
    """Compare a record with what the classes do now.

    Raises: ConfigError with the first place that differs.
    """
    where = f"ropetool/families/generated/{model_type}.json"
    try_ = f"scripts/families/probe {model_type}"
    if written is None:
        raise ConfigError("there is no record of this type", where=where, try_=try_)
    for place, stated, real in _differences(written, json.loads(json.dumps(found)), ""):
        sentence = f"is {_shown(stated)} in the record, but {_shown(real)} in transformers {found['transformers']}"
        raise ConfigError(sentence, where=f"{where}: {place}", try_=try_)


def _differences(written: Any, found: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(written, dict) and isinstance(found, dict):
        for key in sorted(written.keys() | found.keys()):
            yield from _differences(written.get(key), found.get(key), f"{place}.{key}" if place else key)
    elif isinstance(written, list) and isinstance(found, list) and len(written) == len(found):
        for number, (one, other) in enumerate(zip(written, found, strict=True)):
            yield from _differences(one, other, f"{place}[{number}]")
    elif isinstance(written, float) and isinstance(found, float):
        if abs(written - found) > 3e-6 * max(abs(written), abs(found)):
            yield place, written, found
    elif written != found:
        yield place, written, found


def _shown(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
