"""Values of a GGUF model as plain data for plans, and edits of a plan as a patch for writers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.edits import METADATA, TENSORS, FileEdit
from ropetool.errors import ConfigError
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.files.hf import ABSENT
from ropetool.rope.tables import is_number

MAX_PLAIN_BYTES = 1024
ARRAY_OF = "arr of "


def plain_value(value: Value | None) -> Any:
    """Return a value in JSON types. An array or a long text is replaced by its digest."""
    if value is None:
        return ABSENT
    if value.type is ValueType.ARR or len(value.raw) > MAX_PLAIN_BYTES:
        return {"type": value.label, "sha256": hashlib.sha256(value.raw).hexdigest()}
    return {"type": value.label, "value": plain_number(value.decode())}


def plain_array(value: Value) -> dict[str, Any]:
    """Return a short array for an edit, in JSON types."""
    return {"type": value.label, "value": [plain_number(number) for number in np.asarray(value.decode()).tolist()]}


def plain_number(value: Any) -> Any:
    """Return NaN and the infinities as text, and other values unchanged.

    JSON cannot store these numbers, and NaN does not equal itself.
    """
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _value(data: Any, key: str) -> Value:
    """Return the typed value of an edit.

    Raises: ConfigError if the data is not a typed value.
    """
    try:
        name = str(data["type"])
        if name.startswith(ARRAY_OF):
            return Value.array(ValueType[name.removeprefix(ARRAY_OF).upper()], data["value"])
        return Value.of(ValueType[name.upper()], data["value"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the plan does not contain a value of a known type ({error})", where=key) from None


def _vector(data: Any, name: str) -> npt.NDArray[np.float32]:
    """Return the new data of a tensor.

    Raises: ConfigError if it is not a list of finite numbers.
    """
    if not isinstance(data, list) or not data or not all(map(is_number, data)):
        raise ConfigError("the plan does not contain a list of finite numbers", where=name)
    with np.errstate(over="ignore"):
        vector = np.array(data, np.float32)
    if not np.isfinite(vector).all():
        raise ConfigError("the plan contains numbers that do not fit f32", where=name)
    return vector


def patch_of(edits: Sequence[FileEdit]) -> Patch:
    """Return the patch for these edits.

    Raises: ConfigError if a value does not match its type, or an edit is for a different format.
    """
    foreign = next((e.file for e in edits if e.file not in (METADATA, TENSORS)), None)
    if foreign is not None:
        raise ConfigError("the plan edits this file, which a GGUF model does not have", where=foreign)
    values = {e.path[0]: e for e in edits if e.file == METADATA}
    return Patch(
        {key: _value(edit.new, key) for key, edit in values.items() if edit.new is not ABSENT},
        frozenset(key for key, edit in values.items() if edit.new is ABSENT),
        {e.path[0]: _vector(e.new, e.path[0]) for e in edits if e.file == TENSORS},
    )
