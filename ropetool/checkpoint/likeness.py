"""A model_type that only remote code knows: which built-in class would serve, and the config rewritten for that class.

The class is told by its name in the config, or by the names of the tensors; that both compute the same, only whoever
knows the remote code can say.
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
NOT_WEIGHTS = "inv_freq"  # the end of buffers that some files hold beside the weights
MOST_NAMED = 4
SIZES = (names.HIDDEN_SIZE, names.NUM_HIDDEN_LAYERS, names.NUM_ATTENTION_HEADS)


def alike(config: Mapping[str, Any], tensors: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """Return what tells the built-in class, as the front of a sentence, and the model types of those that it fits."""
    stated = config.get(names.ARCHITECTURES)
    classes = [name for name in stated if is_text(name)] if isinstance(stated, list) else []
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
    """Return the first tensor that a family lacks or does not know, in words; empty where all fit, or none is listed."""
    if family.export is None:
        return ""
    prefix = family.export.prefix
    rows = {f"{prefix}0.{row.hf}": row for row in family.export.layer} | {row.hf: row for row in family.export.outer}
    layer = re.compile(rf"{re.escape(prefix)}\d+\.")
    kinds = {
        re.sub(r"\.\d+\.", ".{x}.", name.removeprefix(found[0])) if (found := layer.match(name)) else name: found
        for name in tensors if not name.endswith(NOT_WEIGHTS)
    }  # fmt: skip
    present = {f"{prefix}0.{kind}" if found else kind for kind, found in kinds.items()}
    unknown = sorted(present - rows.keys())
    if unknown:
        return f"it has {unknown[0]}, which that class does not have"
    missing = sorted(name for name, row in rows.items() if not row.when and name not in present)
    return f"it lacks {missing[0]}, which that class needs" if missing else ""


def edits_as(config: Mapping[str, Any], model_type: str, tensors: Collection[str], where: str) -> list[FileEdit]:
    """Return the edits that make a config one of a built-in class: its model_type and its class, without remote code.

    Raises: UnknownFamily for a model_type that is not known; InvalidRope where the config's own type is one that is
    served as what it is, or its keys are not where that class looks; LossyExport where the tensors are not those of the class.
    """
    place = f"{where}: {names.MODEL_TYPE}"
    own = config.get(names.MODEL_TYPE, ABSENT)
    served = families.find(own) if is_text(own) else None
    inside = _text_path(config, own)
    if inside:
        return _inner_edits(config, inside, model_type, where)
    if is_text(own) and (own in records.unrotated() or families.wrapper_of(own) or (served and served.own_name)):
        raise _already_known(own, place)
    family = _asked(config, model_type, where)
    objection = "" if "quantization_config" in config else misfit(family, tensors) if tensors else ""
    if objection:
        raise LossyExport(f"the model does not match {model_type}: {objection}", where=place)
    return _retyped(config, (), family)


def _already_known(model_type: Any, where: str) -> InvalidRope:
    return InvalidRope(
        f"{shown(model_type)} is a known type, so --as does not apply to it", where=where, try_="leave out --as"
    )


def _asked(config: Mapping[str, Any], model_type: str, where: str) -> Family:
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
    unstated = next((key for key in (*SIZES, family.context_key) if config.get(key) is None), None)
    if unstated is not None:
        raise InvalidRope(
            f"{unstated} is missing, so {model_type} would use its default", where=where,
            try_=f"set {unstated} in config.json, if the model stores it under a different key",
        )  # fmt: skip
    return family


def _retyped(config: Mapping[str, Any], path: tuple[str, ...], family: Family) -> list[FileEdit]:
    """Return the edits that make the object at a path the config of a built-in class."""
    wanted = {
        names.MODEL_TYPE: family.model_type,
        **({names.ARCHITECTURES: [family.architecture]} if names.ARCHITECTURES in config else {}),
        **({AUTO_MAP: ABSENT} if AUTO_MAP in config else {}),
    }
    return [
        FileEdit(names.CONFIG_JSON, (*path, key), config.get(key, ABSENT), new)
        for key, new in wanted.items()
        if config.get(key, ABSENT) != new
    ]


def _text_path(config: Mapping[str, Any], own: Any) -> tuple[str, ...]:
    """Return the keys that lead to the text model inside a config that is around one, empty if it is not."""
    wrapper = families.wrapper_of(own) if is_text(own) else None
    if wrapper is not None:
        return wrapper.path if not wrapper.fixed and wrapper.inner(config) else ()
    if not is_text(own) or families.find(own) is not None or families.unread(own):
        return ()
    return next(((key,) for key in names.TEXT_CONFIGS if isinstance(config.get(key), Mapping)), ())


def _inner_edits(config: Mapping[str, Any], path: tuple[str, ...], model_type: str, where: str) -> list[FileEdit]:
    """Return the edits that make the text model inside a config one of a built-in class; none if it is one already.

    Raises: UnknownFamily, InvalidRope.
    """
    inner: Any = config
    for key in path:
        inner = inner[key]
    stated, place = inner.get(names.MODEL_TYPE), f"{where}: {'.'.join(path)}"
    if stated == model_type and families.find(model_type) is not None:
        return []
    if families.find(families.text_type(config)) is not None or (is_text(stated) and stated in records.unrotated()):
        raise _already_known(stated, f"{place}.{names.MODEL_TYPE}")
    return _retyped(inner, path, _asked(inner, model_type, place))


def untyped(config: Mapping[str, Any]) -> str:
    """Return what the class of a config without model_type says of its family, behind a semicolon; empty without one."""
    why, fitting = alike(config, ())
    return f'; {why} {fitting[0]}: add "model_type": "{fitting[0]}"' if fitting else ""


def remedy(config: Mapping[str, Any], tensors: Collection[str]) -> tuple[str, str]:
    """Return what to add to the refusal of an unknown type, and the built-in one to choose; empty texts where none is told."""
    reason, fitting = alike(config, tensors)
    if not fitting:
        return "", ""
    several = ", ".join(fitting[:MOST_NAMED]) + (" and others" if len(fitting) > MOST_NAMED else "")
    return f"{reason} {several}", fitting[0]
