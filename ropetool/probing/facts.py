"""Probe one model_type: its rotary facts as a plain record."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from ropetool.probing import config_facts, model_facts, rotating, tiny
from ropetool.probing.changed_configs import Maker
from ropetool.probing.rotation import NotProbed, Subject

FILLED = r"rope_parameters|max_position_embeddings|hidden_size|num_(hidden_layers|attention_heads|key_value_heads)|head_dim|sliding_window"
WINDOWS = r"sliding_window(_size)?|attention_window_size|attention_chunk_size|local_attention"
SWITCH = "use_sliding_window"
LIMITED = ("sliding", "chunked")  # windows


def probe(model_type: str) -> dict[str, Any]:
    """Return the record of a model_type: its rotary facts, or the reason for not having any.

    Raises: NotProbed if its tiny model cannot be evaluated; the errors of its classes if no model can be built.
    """
    import transformers

    config = transformers.AutoConfig.for_model(model_type)
    path, text = text_config(config)
    record: dict[str, Any] = {
        "model_type": model_type, "transformers": transformers.__version__, "config_class": type(config).__name__,
    }  # fmt: skip
    if path:
        record |= {"text_path": path, "text_type": text.model_type, **_wrapping(config, path, text)}
        if text.model_type in causal() and model_type not in causal():
            reason = f"its text model is a {text.model_type}, which has a separate record"
            return record | {"architecture": architecture(model_type), "outcome": "hands over", "reason": reason}

    def build(**keys: Any) -> Subject:
        small, model = tiny_model(model_type, text, keys, whole=config if path else None)
        return Subject(model, getattr(small, "num_hidden_layers", 0))

    subject = build()
    record |= {"architecture": architecture(model_type), "proven_on": type(subject.model).__name__}
    if not subject.rotary:
        return record | _without(subject)
    small = subject.model.config.get_text_config(decoder=True)
    layers = rotating.layers(subject, kinds(small))
    used = rotating.tables_used(subject, layers)
    if not used:
        return record | {
            "outcome": "does not rotate",
            "reason": "it has rotary modules, but no layer uses their tables",
        }
    maker = Maker(text, subject, used)
    record |= config_facts.facts(maker, text, build)
    record["layout"] = model_facts.layout_of(layers)
    record["interleave_key"] = model_facts.interleave_key(text, record["layout"], build)
    record["off_key"] = model_facts.off_key(text, build)
    record["temperature_key"] = (
        model_facts.temperature_key(maker, build) if any("temperature" in one for one in layers) else ""
    )
    record["mla"] = hasattr(text, "kv_lora_rank") and model_facts.follows_mscale(maker, build)
    record |= windows(text, build, layers)
    record |= pattern(kinds(text))
    record["layers"] = runs(layers)
    record["needs"] = needs(text)
    record["outcome"] = "proven"
    return record


def causal() -> dict[str, str]:
    """Return the class names of causal models by model_type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    return dict(CAUSAL)


def _wrapping(config: Any, path: list[str], text: Any) -> dict[str, Any]:
    """Return how a wrapper treats its text model's config: the types that it accepts, and the keys that it fills in."""
    wrapping: dict[str, Any] = {"takes_text_types": _takes_any(config, path, text)}
    if wrapping["takes_text_types"] and (renamed := _renamed(config, path, text)):
        wrapping["text_renames"] = renamed
    plain = {key: value for key, value in type(text)().to_dict().items() if re.fullmatch(FILLED, key)}
    for name, keys in (("text_defaults", {}), ("text_fills", {"model_type": text.model_type})):
        try:
            inner = _inside(config, path, keys).to_dict()
        except Exception:  # noqa: BLE001 - a wrapper may require more keys
            continue
        wrapping[name] = {key: inner.get(key) for key in plain if inner.get(key) != plain[key]}
    return wrapping


def _inside(config: Any, path: list[str], keys: Mapping[str, Any]) -> Any:
    """Return the text model's config that a wrapper of this class builds from these keys of the inner config."""
    around: Any = dict(keys)
    for key in reversed(path):
        around = {key: around} if around else {}
    part = type(config)(**around)
    for key in path:
        part = getattr(part, key)
    return part


def _takes_any(config: Any, path: list[str], text: Any) -> bool:
    """Return whether a wrapper builds the text model with the given model_type, and not always the same one."""
    for other in {"qwen3", "llama", "gemma2"} - {text.model_type}:
        keys = {
            "model_type": other,
            "hidden_size": getattr(text, "hidden_size", 64),
        }  # a size that fits the other parts
        try:
            if _inside(config, path, keys).model_type == other:
                return True
        except Exception:  # noqa: BLE001 - a wrapper may require keys that this text model lacks
            continue
    return False


def _renamed(config: Any, path: list[str], text: Any) -> dict[str, str]:
    """Return the inner model types that a wrapper's class replaces, each with the type that it builds.

    Tries each word in the code of the class as a model type.
    """
    import ast
    import inspect
    import textwrap

    from transformers import PreTrainedConfig

    classes = [one for one in type(config).__mro__ if issubclass(one, PreTrainedConfig) and one is not PreTrainedConfig]
    trees = [ast.parse(textwrap.dedent(inspect.getsource(one))) for one in classes]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    words = {node.value for node in nodes if isinstance(node.value, str) and re.fullmatch(r"[\w.-]+", node.value)}
    renames = {}
    for word in sorted(words):
        keys = {"model_type": word, "hidden_size": getattr(text, "hidden_size", 64)}
        try:
            built = _inside(config, path, keys).model_type
        except Exception:  # noqa: BLE001 - most words are not model types
            continue
        if built != word:
            renames[word] = built
    return renames


def _path(config: Any, inner: Any) -> list[str] | None:
    """Return the keys that lead to a part of a config, or None if it is not a part."""
    for key, value in vars(config).items():
        if value is inner:
            return [key]
        if hasattr(value, "get_text_config") and (rest := _path(value, inner)) is not None:
            return [key, *rest]
    return None


def architecture(model_type: str) -> str:
    """Return the class that loads checkpoints of this model_type: for text, else for text with images or sound."""
    from transformers.models.auto import modeling_auto as auto

    tables = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_MAPPING_NAMES,
    )  # fmt: skip
    name = next((table[model_type] for table in tables if model_type in table), "")
    return name if isinstance(name, str) else str(name[0])


def pattern(listed: list[str]) -> dict[str, Any]:
    """Return the repeated layer types in short form, and n if every n-th layer is full attention."""
    count = len(listed)
    if not count:
        return {}
    size = next(n for n in range(1, count + 1) if all(listed[i] == listed[i % n] for i in range(count)))
    facts: dict[str, Any] = {"default_layer_types": runs(listed[:size])}
    others = set(listed[: size - 1])
    if size > 1 and listed[size - 1] == "full_attention" and len(others) == 1 and size < count:
        facts["pattern"] = size
    return facts


def text_config(config: Any) -> tuple[list[str], Any]:
    """Return the path of the text model's config inside a config, and the text model's config."""
    inner = config.get_text_config(decoder=True)
    path = _path(config, inner) if inner is not config else []
    if path is None:  # the config of an encoder and a decoder together
        return [], config
    config = inner
    config.allow_global_per_layer_attribute_access = True
    return path, config


def kinds(config: Any) -> list[str]:
    """Return the layer type of each layer, or an empty list if the config has no such list."""
    listed = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    return [str(one) for one in listed]


def runs(entries: list[Any]) -> list[Any]:
    """Return a list in short form: each repeated entry once, with its count."""
    counted: list[list[Any]] = []
    for entry in entries:
        if counted and counted[-1][1] == entry:
            counted[-1][0] += 1
        else:
            counted.append([1, entry])
    return counted


def needs(text: Any) -> list[str]:
    """Return the keys without a default that a model requires."""
    exceptions = tiny.EXCEPTIONS.get(text.model_type, {})
    return sorted(key for key in exceptions if getattr(text, key, None) is None)


def windows(text: Any, build: Any, layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the effect of a window on the layers, and the layers that rotate with and without a window."""
    key = next((key for key in text.to_dict() if re.fullmatch(WINDOWS, key)), "")
    facts: dict[str, Any] = {"rotates": rotates(text, layers), "sliding_window": "never"}
    if not key:
        return facts
    facts["default_sliding_window"] = _window(text, key)
    if key != "sliding_window":
        facts["sliding_window_key"] = key
    switch = {SWITCH: True} if hasattr(text, SWITCH) else {}
    first = {"max_window_layers": 0} if hasattr(text, "max_window_layers") else {}
    listed = hasattr(text, "layer_types")
    again = {"layer_types": None} if listed else {}
    mixed_types = ["sliding_attention", "full_attention"] * (tiny.LAYERS // 2)
    tries: list[tuple[str, dict[str, Any]]] = [
        ("with_window", {key: tiny.WINDOW, **switch, **first, **again}),
        ("with_window", {key: tiny.WINDOW, **switch, **({"layer_types": mixed_types} if listed else {})}),
        ("without_window", {key: None, **({"layer_types": ["full_attention"] * len(layers)} if listed else {})}),
        ("without_window", {key: None, **again}),
        ("without_window", {key: None}),
    ]
    seen: dict[str, list[dict[str, Any]]] = {}
    for name, keys in tries:
        if name in seen and (name == "without_window" or any(one.get("window") in LIMITED for one in seen[name])):
            continue
        try:
            subject = build(**keys)
            seen[name] = rotating.layers(subject, kinds(subject.model.config.get_text_config(decoder=True)))
        except Exception:  # noqa: BLE001 - a class may not accept a window, or require one
            continue
    limited = [one for one in seen.get("with_window", layers) if one.get("window") in LIMITED]
    if limited:
        mixed = {
            table for one in limited for table in one.get("tables", [])
            for other in seen.get("with_window", layers)
            if table in other.get("tables", []) and other.get("window") == "full"
        }  # fmt: skip
        facts["sliding_window"] = SWITCH if hasattr(text, SWITCH) else "alternate" if mixed else "always"
        of_all = [one for one in seen.get("with_window", layers) if one["attends"]]
        if (
            switch
            and not all(one["rotates"] for one in of_all)
            and all(one["rotates"] != (one in limited) for one in of_all)
        ):
            facts |= {"sliding_window": "alternate", "unrotated_window_key": SWITCH}
    if facts["rotates"] == "sliding" and any(
        one["rotates"] and one.get("window") == "full" for one in seen.get("without_window", [])
    ):
        facts["rotates"] = "sliding-if-any"
    for name, other in seen.items():
        if other != layers:
            facts[f"layers_{name}"] = runs(other)
    return facts


def _window(text: Any, key: str) -> int | None:
    """Return the window that the class assumes if it is switched on."""
    switch = {SWITCH: True} if hasattr(text, SWITCH) else {}
    try:
        return getattr(type(text)(**switch), key) or None
    except Exception:  # noqa: BLE001 - a class may require more keys than the switch
        return getattr(text, key) or None


def rotates(text: Any, layers: list[dict[str, Any]]) -> str:
    """Return the rule for rotating layers: all with attention, a list, sliding ones, some layer types, or others."""
    attending = [one for one in layers if one["attends"]]
    if all(one["rotates"] for one in attending):
        return "all"
    if hasattr(text, "no_rope_layers"):
        return "no_rope_layers"
    if all(one["rotates"] == (one.get("window") in LIMITED) for one in attending):
        return "sliding"
    by_type: dict[str, set[bool]] = {}
    for one in attending:
        by_type.setdefault(one.get("kind", ""), set()).add(one["rotates"])
    return "layer_types" if all(len(answers) == 1 for answers in by_type.values()) else "layers"


def _without(subject: Subject) -> dict[str, Any]:
    """Return the outcome for a model without rotary modules, with the reason."""
    import inspect
    import sys

    sinusoids = {"outcome": "no rotary keys", "reason": "its positions are sinusoids, which no config key changes"}
    files = {type(module).__module__ for module in subject.model.modules()}
    sources = [inspect.getsource(sys.modules[file]) for file in files if file.startswith("transformers.models")]
    if subject.run().applied or any(re.search("(?i)sinusoid", source) for source in sources):
        return sinusoids
    return {"outcome": "does not rotate", "reason": "none of its layers rotates"}


def tiny_model(model_type: str, text: Any, keys: Mapping[str, Any], whole: Any = None) -> tuple[Any, Any]:
    """Return a tiny config of the text model, and a model of it with random weights.

    whole: the wrapper's config, for a text model without its own model class.
    """
    import torch

    small = type(text)(**{**tiny.overrides(text), **keys})
    torch.manual_seed(0)
    model = _build(model_type, small, whole).float().eval()
    spread(model)
    return small, model


def _build(model_type: str, small: Any, whole: Any) -> Any:
    import transformers

    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    name = causal().get(model_type)
    model_class = getattr(transformers, name, None) if name else None
    if model_class is not None and model_class.config_class in (type(small), None):
        return model_class._from_config(small, **how)
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModel):
        with contextlib.suppress(ValueError):  # a class that is listed but does not exist
            if type(small) in auto._model_mapping:
                return auto.from_config(small, **how)
    if model_class is not None:
        return model_class._from_config(small, **how)
    for other in _classes(type(small)):
        return other._from_config(small, **how)
    outer = getattr(transformers, architecture(model_type), None)
    if whole is not None and outer is not None:
        (key, *_) = _path(whole, whole.get_text_config(decoder=True)) or [""]
        parts = {**tiny.overrides(whole), key: small.to_dict()}
        return outer._from_config(type(whole)(**parts), **how)
    raise NotProbed(f"no class accepts only a {type(small).__name__}")


def _classes(config_class: type) -> list[Any]:
    """Return the model classes of a file for this config class; classes with a language-model head are first."""
    import importlib

    file = importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    classes = [
        one for one in vars(file).values()
        if isinstance(one, type) and getattr(one, "config_class", None) is config_class and hasattr(one, "forward")
        and not one.__name__.endswith("PreTrainedModel")
    ]  # fmt: skip
    return sorted(
        classes, key=lambda one: (not one.__name__.endswith("ForCausalLM"), not one.__name__.endswith("Model"))
    )


def spread(model: Any) -> None:
    """Give every weight a size that lets each part of a layer contribute: classes initialise some weights to 0."""
    import torch

    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point() or re.search(r"A_log|dt_bias|\.D$", name):
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim >= 2:
                weight.copy_(noise / max(weight.shape[-1], 1) ** 0.5)
            else:
                weight.add_(0.2 * noise)
