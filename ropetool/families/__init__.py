"""The model families, each read from JSON files named after its model_type.

`generated/` has a record of each class in transformers. A file here overrides and extends the record of the same name.
`remote/` has the types of remote code. If transformers has such a type too, its class reads the configs that have
rope_parameters, and the file in remote/ describes the others. docs/contributing.md has the checklist of a new family.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from ropetool.errors import InvalidRope, UnknownFamily, did_you_mean
from ropetool.escaping import command
from ropetool.families import records
from ropetool.families.family import REMOTE, Family, architecture_in, read
from ropetool.families.loading import record, wrong
from ropetool.families.wrappers import ALIASES, FLAT, PREFIXES, TOLD_APART, UNKNOWN, UNREAD, WRAPPERS, Wrapper
from ropetool.names import ROPE_PARAMETERS, TEXT_CONFIGS

NOT_SUPPORTED = "is not supported"  # in refusals that give the reason for one type


@cache
def _files() -> frozenset[str]:
    """Return the model types with a file in this folder."""
    entries = resources.files(__name__).iterdir()
    return frozenset(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))


@cache
def remote() -> tuple[str, ...]:
    """Return the model types that exist only in remote code and have a file in remote/, sorted."""
    entries = resources.files(__name__).joinpath(REMOTE).iterdir()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")))


@cache
def _one(model_type: str) -> Family | None:
    """Return the family of exactly this model_type, from its file or its record, or None."""
    if model_type in UNREAD:
        return None
    for folder, known in (("", _files()), (REMOTE, remote())):
        if model_type in known:
            name = f"{folder}{model_type}.json"
            described = read(resources.files(__name__).joinpath(name).read_text(encoding="utf-8"), name)
            return dataclasses.replace(described, remote=bool(folder))
    return _recorded(model_type)


@cache
def _recorded(model_type: str) -> Family | None:
    """Return the family that the record of a class in transformers describes, or None."""
    try:
        family: Family = record(Family, records.facts(model_type), f"generated/{model_type}.json")
    except records.Undescribed:
        return None
    return family


_LIVE: dict[str, Family] = {}  # by model_type, of this process
_LIVE_WRAPPERS: dict[str, Wrapper] = {}


def read_live(model_type: str) -> bool:
    """Read a type that no data describes from the installed transformers; return whether transformers has it.

    Builds and probes a tiny random model, which takes seconds. Afterwards this process knows the family, or the wrapper
    and its text model.
    Raises: UnknownFamily if transformers has the type but ropetool cannot describe it, with the reason.
    """
    from ropetool.probing import records as probed

    if not probed.is_registered(model_type):
        return False
    try:
        facts = probed.record(model_type)
        inner = facts.get("text_type", model_type)
        wrapper = records.wrapper_in(facts) if inner != model_type else None
        if wrapper is not None:
            _LIVE_WRAPPERS[model_type] = wrapper
            if facts["outcome"] == records.HANDS_OVER or find(inner) is not None:
                return True
        family: Family = record(Family, records.described(facts, inner), f"{inner}, read live")
    except (records.Undescribed, ImportError, MemoryError) as reason:
        raise UnknownFamily(
            f"{not_supported(f'the model family {model_type!r}', reason)} (read from the installed transformers)",
            try_="ropetool families",
        ) from None
    _LIVE[inner] = dataclasses.replace(family, live=True)
    return True


def is_live(model_type: str) -> bool:
    """Return whether a type was read from the installed transformers in this process, as a family or as a wrapper."""
    return model_type in _LIVE or model_type in _LIVE_WRAPPERS


def unread_type(config: Mapping[str, Any]) -> str:
    """Return the model_type that needs a family: in a wrapper, the type of the text model."""
    return text_type(config) or str(config.get("model_type"))


@cache
def _with_files() -> tuple[Family, ...]:
    families = tuple(family for family in map(_one, sorted(_files())) if family is not None)
    _check_claims(families)
    return families


def _check_claims(families: Iterable[Family]) -> None:
    """Raise ConfigError if two families list the same GGUF architecture."""
    claimed: dict[str, str] = {}
    for family in families:
        for architecture in family.gguf_architectures:
            if architecture in claimed:
                sentence = f"{claimed[architecture]} already lists {architecture!r}"
                raise wrong(f"{family.model_type}.json: gguf_architectures", sentence)
            claimed[architecture] = family.model_type


@cache
def _served() -> tuple[str, ...]:
    return tuple(
        sorted(
            name for name in {*_files(), *remote(), *records.names(), *records.text_types()} if _one(name) is not None
        )
    )


def names() -> list[str]:
    """Return the model_type of every known family, sorted."""
    return list(_served())


@cache
def baked() -> tuple[str, ...]:
    """Return the model types whose files list the weights that `bake` changes, sorted; tests cover them most widely."""
    return tuple(sorted(family.model_type for family in _with_files() if family.bake is not None))


@cache
def exported() -> tuple[str, ...]:
    """Return the model types whose files list the tensors that an export writes, sorted."""
    return tuple(sorted(family.model_type for family in _with_files() if family.export is not None))


def wrapper_of(model_type: str) -> Wrapper | None:
    """Return how a config of this type wraps another config, or None if it is not a wrapper."""
    if model_type in WRAPPERS:
        return dataclasses.replace(WRAPPERS[model_type], renames=records.renames(model_type))
    if _one(model_type) is not None:
        return None
    return _LIVE_WRAPPERS.get(model_type) or records.handing_over(model_type)


def around(config: Mapping[str, Any]) -> Wrapper | None:
    """Return how a config.json wraps the config of a text model, or None if it is not a wrapper.

    If neither the data nor the installed transformers has the type, use the model_type of the inner config.
    """
    model_type = config.get("model_type")
    outer_type = model_type if isinstance(model_type, str) else ""
    known_wrapper = wrapper_of(outer_type)
    if known_wrapper is not None or not outer_type or _is_known(outer_type):
        return known_wrapper
    for key in TEXT_CONFIGS:
        wrapper = Wrapper(key, source=UNKNOWN.format(outer_type))
        inner = wrapper.inner(config)
        inside = inner.get("model_type")
        known = isinstance(inside, str) and (find(inside) is not None or inside in records.unrotated())
        if known and not _contradicts(config, inner) and not _is_registered(outer_type):
            return wrapper
    return None


def _is_known(model_type: str) -> bool:
    """Return whether the data cover a type, with a family or with a reason against one."""
    known = find(model_type) is not None or model_type in TOLD_APART or model_type in records.unrotated()
    return known or bool(unread(model_type))


def _contradicts(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
    """Return whether a config and its inner text model differ in a key about positions or layers."""
    keys = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "num_hidden_layers", "head_dim")
    return any(outer.get(key) is not None and outer[key] != inner.get(key) for key in keys)


def _is_registered(model_type: str) -> bool:
    from ropetool.probing import records as probed

    return probed.is_registered(model_type)


def find(model_type: str) -> Family | None:
    """Return the family of this model_type or alias, or None."""
    family = _LIVE.get(model_type) or _one(ALIASES.get(model_type, model_type))
    return dataclasses.replace(family, config_type=model_type) if family and model_type in ALIASES else family


def of_config(config: Mapping[str, Any], where: str = "") -> Family:
    """Return the family of a config.json. For a wrapper, return the text model's family with the path of its rope keys.

    Raises: UnknownFamily; InvalidRope if the text model lacks a key that the wrapper's class would fill in.
    """
    model_type = config.get("model_type")
    config_type = model_type if isinstance(model_type, str) else ""
    wrapper = around(config)
    if wrapper is None:
        native = _recorded(config_type) if config_type in remote() and ROPE_PARAMETERS in config else None
        if native is not None:
            return native
        key, other = TOLD_APART.get(config_type, (None, ""))
        return (
            dataclasses.replace(get(other, where), config_type=config_type)
            if key is not None and config.get(key)
            else get(config_type, where)
        )
    try:
        family = get(text_type(config), where)  # a wrapper inside a wrapper has none
    except UnknownFamily as unknown:
        raise UnknownFamily(f"in its {wrapper.text}: {unknown.message}", where=where, try_=unknown.try_) from None
    inner = wrapper.inner(config)
    missing = next((keys for keys in wrapper.needs if not any(key in inner for key in keys.split())), None)
    if missing and inner:
        key = missing.split()[-1]
        raise InvalidRope(
            f"is not set, so the class of {config_type} would use its own default",
            where=f"{where}: {wrapper.text}.{key}", try_=f"set {key} in {wrapper.text} of config.json",
        )  # fmt: skip
    flat = config_type in FLAT and config.get(wrapper.text) is None
    return _inside(family, config_type, wrapper, () if flat else wrapper.path)


def _inside(family: Family, config_type: str, wrapper: Wrapper, path: tuple[str, ...]) -> Family:
    """Return the family inside a wrapper. path: the keys to the inner config; empty if the rope keys are at the top."""
    bake = family.bake
    if bake is not None:
        own = [layers.removeprefix("model.") for layers in bake.layers if layers.startswith("model.")]
        bake = dataclasses.replace(bake, layers=tuple(prefix + layers for prefix in PREFIXES for layers in own))
    return dataclasses.replace(
        family, config_type=config_type, text_path=(*path, *family.text_path), in_v4=family.in_v4 and wrapper.in_v4,
        bake=bake, wrapped=True,
    )  # fmt: skip


def text_type(config: Mapping[str, Any]) -> str:
    """Return the model_type of the text model that a config.json describes, or an empty string.

    A wrapper may replace the inner type, or have a switch that selects a different model.
    """
    model_type = config.get("model_type")
    outer_type = model_type if isinstance(model_type, str) else ""
    wrapper = around(config)
    if wrapper is None:
        return outer_type
    inner = wrapper.inner(config)
    within = wrapper.default if wrapper.fixed else inner.get("model_type") or wrapper.default
    within = wrapper.renames.get(within, within) if isinstance(within, str) else within
    if wrapper.switch and not inner.get(wrapper.switch, True):
        return wrapper.off or f"{within} without {wrapper.switch}"
    return within if isinstance(within, str) else ""


def by_gguf_architecture() -> dict[str, Family]:
    """Return the families by the GGUF architecture of their files, sorted by architecture."""
    families = {name: family for family in _with_files() for name in family.gguf_architectures}
    return dict(sorted(families.items()))


def of_gguf(architecture: str) -> tuple[Family, ...]:
    """Return the families that export to this GGUF architecture, the one with the architecture's name first."""
    known = (_one(name) for name, exported_as in _gguf_architectures().items() if exported_as == architecture)
    return tuple(sorted(filter(None, known), key=lambda family: family.model_type != architecture))


@cache
def _gguf_architectures() -> dict[str, str]:
    """Return the GGUF architecture of each family with a file, by model_type.

    Reading complete families would take 0.1 s.
    """
    folder = resources.files(__name__)
    texts = {name: folder.joinpath(f"{name}.json").read_text(encoding="utf-8") for name in sorted(_files())}
    return {name: architecture_in(text, f"{name}.json") for name, text in texts.items()}


def nearest(model_type: str) -> str:
    """Return " (did you mean qwen2?)" for a similar known type, or an empty text."""
    return did_you_mean(model_type, sorted({*names(), *WRAPPERS, *ALIASES, *filter(wrapper_of, records.names())}))


def not_supported(subject: str, reason: object) -> str:
    """Return the sentence for a known family without data."""
    return f"{subject} {NOT_SUPPORTED}: {reason}"


def unread(model_type: str) -> str:
    """Return why a known type has no family. Empty if the type has a family, or if it is unknown."""
    return UNREAD.get(model_type) or records.reason(model_type)


def get(model_type: str, where: str = "") -> Family:
    """Return the family of this model_type.

    Raises: UnknownFamily with the nearest known names and how to add one.
    """
    family = find(model_type)
    wrapper = wrapper_of(model_type)
    if wrapper is not None:
        text, default = wrapper.text, wrapper.default
        inner = f"the model_type in its {text} is the family" + (f", {default} by default" if default else "")
        raise UnknownFamily(
            f"{model_type} is a wrapper: " + (f"its {text} is always a {default}" if wrapper.fixed else inner),
            where=where, try_=command("ropetool", "families", default) if find(default) else "ropetool families",
        )  # fmt: skip
    if family is None:
        shown = model_type if len(model_type) <= 60 else f"{model_type[:57]}..."
        file = f"{model_type}.json" if model_type.isidentifier() and len(model_type) <= 60 else "MODEL_TYPE.json"
        particular, near = unread(model_type), nearest(model_type)
        meant = "correct the model_type, or " if near else ""
        raise UnknownFamily(
            not_supported(f"the model family {shown!r}", particular)
            if particular
            else f"unknown model family {shown!r}{near}; `ropetool families` lists the known families",
            where=where,
            try_="ropetool families"
            if particular
            else f"{meant}add ropetool/families/{file} with the checklist in docs/contributing.md",
        )
    return family
