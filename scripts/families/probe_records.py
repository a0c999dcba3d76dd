"""The records of all types: the types to record, a record as text, and its comparison with the current class."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ropetool.errors import ConfigError
from ropetool.probing import facts
from ropetool.probing.records import Record

ORDER = (
    "model_type", "outcome", "reason", "transformers", "architecture", "config_class", "proven_on", "text_path", "text_type",
    "layout",
)  # fmt: skip
# Types without rotary code and without learned positions. Only the configured context length limits them.
UNLIMITED = ("kimi_linear",)
ROTATING_CODE = r"(?i)rotary|relative_positional_encoding"


@cache
def model_types() -> list[str]:
    """Return the text model types to record, which may rotate or which only the configured context length limits."""
    return sorted({*causal_types(), *multimodal_types(), *UNLIMITED})


def causal_types() -> list[str]:
    """Return the model types with a causal model whose module has code that rotates."""
    return [model_type for model_type in facts.causal() if rotates_somewhere(model_type)]


def rotates_somewhere(model_type: str) -> bool:
    """Return whether the module of a type's class has code that rotates."""
    import inspect
    import sys

    import transformers

    try:
        source = inspect.getsource(sys.modules[getattr(transformers, facts.architecture(model_type)).__module__])
    except (ImportError, AttributeError):
        return False  # a class of a package that is not here
    return bool(re.search(ROTATING_CODE, source))


def multimodal_types() -> list[str]:
    """Return the model types with inputs or outputs besides text, whose text model may rotate."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    # Types that write sound, or map one sequence to another, count only as wrappers around a text model.
    alone = {*auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    tables = (
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
    )  # fmt: skip
    texts = set(causal_types())
    multimodal = []
    for model_type in {name for table in tables for name in table} - facts.causal().keys():
        try:
            path, text = facts.text_config(transformers.AutoConfig.for_model(model_type))
        except Exception:  # noqa: BLE001 - a class without defaults has no facts
            continue
        if not path and model_type not in alone:
            continue
        if hasattr(text, "rope_parameters") or text.model_type in texts or rotates_somewhere(model_type):
            multimodal.append(model_type)
    return multimodal


def unrotated_types() -> list[str]:
    """Return the model types whose text model does not rotate.

    Types that contain the text model of a different type are left out.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    alone = {*auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    unrotated = []
    for model_type in sorted({*facts.causal(), *alone} - set(model_types())):
        try:
            config = transformers.AutoConfig.for_model(model_type)
            path, text = facts.text_config(config)
        except Exception:  # noqa: BLE001 - a class without defaults has no facts
            continue
        if any(getattr(inner, "model_type", None) in model_types() for inner in vars(config).values()):
            continue  # several models next to each other, and one of them rotates
        chosen = path and (text.model_type in facts.causal() or text.model_type in auto.MODEL_MAPPING_NAMES)
        if not chosen and not rotates_somewhere(model_type):
            unrotated.append(model_type)
    return unrotated


def text(entry: Record) -> str:
    """Return a record as the text of its file. The order of keys is always the same."""
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
    """Return the outcome of a record in one line."""
    if entry["outcome"] != "proven":
        return f"{entry['outcome']}: {entry['reason']}"
    tables = ", ".join(f"{label} {one['rotary_dim']}" for label, one in sorted(entry["tables"].items()))
    return f"proven: {entry['layout']}, {tables}, rotates {entry['rotates']}"


def compare(model_type: str, written: Record | None, probed: Record) -> None:
    """Compare a record with the current result of a probe.

    Raises: ConfigError with the first difference.
    """
    where = f"ropetool/families/generated/{model_type}.json"
    try_ = f"scripts/families/probe {model_type}"
    if written is None:
        raise ConfigError("there is no record of this type", where=where, try_=try_)
    for place, recorded, real in _differences(written, json.loads(json.dumps(probed)), ""):
        sentence = f"is {_shown(recorded)} in the record, but {_shown(real)} in transformers {probed['transformers']}"
        raise ConfigError(sentence, where=f"{where}: {place}", try_=try_)


def _differences(written: Any, probed: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(written, dict) and isinstance(probed, dict):
        for key in sorted(written.keys() | probed.keys()):
            yield from _differences(written.get(key), probed.get(key), f"{place}.{key}" if place else key)
    elif isinstance(written, list) and isinstance(probed, list) and len(written) == len(probed):
        for number, (one, other) in enumerate(zip(written, probed, strict=True)):
            yield from _differences(one, other, f"{place}[{number}]")
    elif isinstance(written, float) and isinstance(probed, float):
        if abs(written - probed) > 3e-6 * max(abs(written), abs(probed)):
            yield place, written, probed
    elif written != probed:
        yield place, written, probed


def _shown(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
