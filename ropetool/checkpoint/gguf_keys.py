"""ropetool's own keys in a GGUF file: how the model was scaled, and the result of its verification.

No runtime reads these keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropetool import __version__, names
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.provenance import Provenance
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.deviation import Deviation

PREFIX = names.OWN_KEYS
VERIFIED = f"{PREFIX}verified."
INEXACT = f"{PREFIX}inexact"  # marks a file whose tables differ from the checkpoint, and prefixes its figures
KL = f"{INEXACT}.kl"  # nats per token
NOT_MEASURED = -1.0  # the value of KL if no model could run
_TYPES = {str: ValueType.STR, int: ValueType.U32, float: ValueType.F32}


def stamp(
    record: Provenance | None, baked: Sequence[str] = (), certificate: Mapping[str, Any] | None = None
) -> dict[str, Value]:
    """Return the keys for the export of a checkpoint that ropetool wrote, or whose weights the export changed.

    record: the record of the checkpoint; None if ropetool did not write it.
    baked: names of the bakes by the export.
    certificate: the certificate of the checkpoint in its current state. Do not pass a stale one.
    """
    bakes = [*(record.plan.get("bakes", ()) if record is not None else ()), *baked]
    bake_keys = {f"{PREFIX}bakes": Value.array(ValueType.STR, map(str, bakes))} if bakes else {}
    if record is None:
        return bake_keys
    plan = record.plan
    params = {name: value for name, value in dict(plan.get("params", {})).items() if not isinstance(value, list)}
    facts: dict[str, Any] = {
        "version": __version__, "method": plan.get("method"), "factor": plan.get("factor"),
        "params": json.dumps(params) if params else None, "trained_length": record.trained_length,
        "source_fingerprint": record.source_fingerprint,
    }  # fmt: skip
    if certificate is not None:
        facts |= {
            f"verified.{key}": certificate[key]
            for key in ("verdict", "suite", "grade", "longest", "made", "fingerprint")
        }
    return {f"{PREFIX}{key}": Value.of(_TYPES[type(v)], v) for key, v in facts.items() if type(v) in _TYPES} | bake_keys


def stamp_inexact(deviation: Deviation) -> dict[str, Value]:
    """Return the keys of a file whose tables differ from the tables of the checkpoint.

    KL gets the value NOT_MEASURED, because a measurement needs the finished file.
    """
    facts = {
        "": str(deviation), ".pairs": deviation.pairs, ".ratio": deviation.ratio, ".attention_factor": deviation.factor,
        ".tenth_radian_from": deviation.tenth, ".radian_from": deviation.radian, ".rms": deviation.rms, ".kl": NOT_MEASURED,
    }  # fmt: skip
    return {f"{INEXACT}{key}": Value.of(_TYPES[type(v)], v) for key, v in facts.items() if v is not None}


def states(view: GgufCheckpoint, deviation: Deviation) -> bool:
    """Return whether a file declares this deviation of its tables from the checkpoint."""
    return all(
        (INEXACT + key) in view.values and _near(view.values[INEXACT + key].decode(), figure)
        for key, figure in (
            (".pairs", deviation.pairs),
            (".ratio", deviation.ratio),
            (".attention_factor", deviation.factor),
        )
    )


def _near(stored: object, figure: float) -> bool:
    return isinstance(stored, (int, float)) and (stored == figure or math.isclose(stored, figure, rel_tol=1e-3))


def removal(view: GgufCheckpoint) -> list[FileEdit]:
    """Return the edits that remove ropetool's own keys from a file.

    Use this for a file that is about to change, because the keys describe its earlier state.
    """
    ours = frozenset(key for key in view.values if key.startswith(PREFIX))
    return view.edits_of(Patch(remove=ours))
