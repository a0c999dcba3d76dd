"""A model type that only remote code knows: the matching built-in class, and the config rewritten for this class.

The class name in the config or the names of the tensors select the class. Only a user who knows the remote code can
confirm that both compute the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ropetool import families, names
from ropetool.checkpoint.edits import FileEdit
from ropetool.errors import InvalidRope, LossyExport, UnknownFamily
from ropetool.families import records
from ropetool.families.family import Family
from ropetool.files.hf.jsontext import ABSENT, is_text, shown

AUTO_MAP = "auto_map"
NOT_WEIGHTS = "inv_freq"  # the end of the names of buffers that some files contain besides the weights
MOST_NAMED = 4
SIZES = (names.HIDDEN_SIZE, names.NUM_HIDDEN_LAYERS, names.NUM_ATTENTION_HEADS)


def alike(config: Mapping[str, Any], tensors: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return the evidence for a built-in class, to start a sentence, and the matching model types."""
    architectures = config.get(names.ARCHITECTURES)
    classes = [name for name in architectures if is_text(name)] if isinstance(architectures, list) else []
    built_in = [name for name in families.names() if name not in families.remote()]
    known = [family for name in built_in if (family := families.find(name)) is not None]
    fits = (family.model_type for family in known if family.architecture in classes)
    by_class = tuple(sorted(fits, key=lambda name: (name not in families.baked(), name)))
    if by_class:
        return f"its class {classes[0]} belongs to", by_class
    if not tensors:
        return "", ()
    alone = (family for family in map(families.get, families.exported()) if family.alone)
    by_names = [family.model_type for family in alone if not misfit(family, tensors)]
    return "its tensor names match", tuple(sorted(by_names, key=lambda name: (name != "llama", name)))


def misfit(family: Family, tensors: Collection[str]) -> str:
    """Return the first tensor that a family lacks or does not know, as text.

    The text is empty if all tensors match, or if the family has no list of tensors.
    """
    if family.export is None:
        return ""
    prefix = family.export.prefix
    rows = {f"{prefix}0.{row.hf}": row for row in family.export.layer} | {row.hf: row for row in family.export.outer}
    layer = re.compile(rf"{re.escape(prefix)}\d+\.")
    patterns = {
        re.sub(r"\.\d+\.", ".{x}.", name.removeprefix(match[0])) if (match := layer.match(name)) else name: match
        for name in tensors if not name.endswith(NOT_WEIGHTS)
    }  # fmt: skip
    present = {f"{prefix}0.{pattern}" if match else pattern for pattern, match in patterns.items()}
    unknown = sorted(present - rows.keys())
    if unknown:
        return f"it has {unknown[0]}, which that class does not have"
    missing = sorted(name for name, row in rows.items() if not row.when and name not in present)
    return f"it lacks {missing[0]}, which that class needs" if missing else ""


def edits_as(config: Mapping[str, Any], model_type: str, tensors: Collection[str], where: str) -> list[FileEdit]:
    """Return the edits that turn a config into the config of a built-in class, without remote code.

    Raises: UnknownFamily if the model type is unknown; InvalidRope if ropetool already supports the config's own type,
    or if the class would not find its keys; LossyExport if the tensors do not match the class.
    """
    place = f"{where}: {names.MODEL_TYPE}"
    own = config.get(names.MODEL_TYPE, ABSENT)
    own_family = families.find(own) if is_text(own) else None
    inside = _text_path(config, own)
    if inside:
        return _inner_edits(config, inside, model_type, where)
    if is_text(own) and (
        own in records.unrotated() or families.wrapper_of(own) or (own_family and own_family.own_name)
    ):
        raise _already_known(own, place)
    family = _chosen(config, model_type, where)
    objection = "" if names.QUANTIZATION_CONFIG in config else misfit(family, tensors) if tensors else ""
    if objection:
        raise LossyExport(f"the model does not match {model_type}: {objection}", where=place)
    return _retyped(config, (), family)


def _already_known(model_type: Any, where: str) -> InvalidRope:
    return InvalidRope(
        f"{shown(model_type)} is a known type, so --as does not apply to it", where=where, try_="leave out --as"
    )


def _chosen(config: Mapping[str, Any], model_type: str, where: str) -> Family:
    """Return the family that the user chose with --as.

    Raises: UnknownFamily, InvalidRope.
    """
    wrapper = families.wrapper_of(model_type)
    if wrapper is not None:
        known = families.find(wrapper.default) is not None
        raise UnknownFamily(
            f"{model_type} is a wrapper around a text model; --as requires the type of the text model",
            where="--as", try_=f"--as {wrapper.default}" if known else "ropetool families",
        )  # fmt: skip
    family = families.get(model_type, where)
    missing = next((key for key in (*SIZES, family.context_key) if config.get(key) is None), None)
    if missing is not None:
        raise InvalidRope(
            f"{missing} is missing, so {model_type} would use its default", where=where,
            try_=f"set {missing} in config.json, if the model stores it under a different key",
        )  # fmt: skip
    return family


def _retyped(config: Mapping[str, Any], path: tuple[str, ...], family: Family) -> list[FileEdit]:
    """Return the edits that turn the object at a path into the config of a built-in class."""
    target = {
        names.MODEL_TYPE: family.model_type,
        **({names.ARCHITECTURES: [family.architecture]} if names.ARCHITECTURES in config else {}),
        **({AUTO_MAP: ABSENT} if AUTO_MAP in config else {}),
    }
    return [
        FileEdit(names.CONFIG_JSON, (*path, key), config.get(key, ABSENT), new)
        for key, new in target.items()
        if config.get(key, ABSENT) != new
    ]


def _text_path(config: Mapping[str, Any], own: Any) -> tuple[str, ...]:
    """Return the keys that lead to the text model in a wrapper's config, or an empty tuple for other configs."""
    wrapper = families.wrapper_of(own) if is_text(own) else None
    if wrapper is not None:
        return wrapper.path if not wrapper.fixed and wrapper.inner(config) else ()
    if not is_text(own) or families.find(own) is not None or families.unread(own):
        return ()
    return next(((key,) for key in names.TEXT_CONFIGS if isinstance(config.get(key), Mapping)), ())


def _inner_edits(config: Mapping[str, Any], path: tuple[str, ...], model_type: str, where: str) -> list[FileEdit]:
    """Return the edits that turn the text model in a config into a built-in class.

    The list is empty if the text model already is of this class.
    Raises: UnknownFamily, InvalidRope.
    """
    inner: Any = config
    for key in path:
        inner = inner[key]
    own_type, place = inner.get(names.MODEL_TYPE), f"{where}: {'.'.join(path)}"
    if own_type == model_type and families.find(model_type) is not None:
        return []
    if families.find(families.text_type(config)) is not None or (is_text(own_type) and own_type in records.unrotated()):
        raise _already_known(own_type, f"{place}.{names.MODEL_TYPE}")
    return _retyped(inner, path, _chosen(inner, model_type, place))


def untyped(config: Mapping[str, Any]) -> str:
    """Return the family that the class in a config without model_type suggests, or an empty text.

    The text follows a message, so it begins with a semicolon.
    """
    why, fitting = alike(config, ())
    return f'; {why} {fitting[0]}: add "model_type": "{fitting[0]}"' if fitting else ""


def remedy(config: Mapping[str, Any], tensors: Collection[str]) -> tuple[str, str]:
    """Return text to append to the error about an unknown type, and the model type to choose.

    Both are empty if no class matches.
    """
    reason, fitting = alike(config, tensors)
    if not fitting:
        return "", ""
    several = ", ".join(fitting[:MOST_NAMED]) + (" and others" if len(fitting) > MOST_NAMED else "")
    return f"{reason} {several}", fitting[0]
