"""The keys of ours in a GGUF file: what was done to the model, and how that was verified. Nobody computes by them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ropetool import __version__
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.provenance import Provenance
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.rope.deviation import Deviation

PREFIX = "ropetool."
VERIFIED = f"{PREFIX}verified."
INEXACT = f"{PREFIX}inexact"  # and, behind it, the figures of a file whose tables are not exactly the checkpoint's
KL = f"{INEXACT}.kl"  # nats a token
NOT_MEASURED = -1.0  # of KL, where no model could be run
_TYPES = {str: ValueType.STR, int: ValueType.U32, float: ValueType.F32}


def stamp(
    made: Provenance | None, baked: Sequence[str] = (), certificate: Mapping[str, Any] | None = None
) -> dict[str, Value]:
    """Return the keys for the export of a checkpoint that ropetool made, or into whose weights the export put something.

    certificate: of that checkpoint as it is now; a stale one says nothing of it.
    """
    bakes = [*(made.plan.get("bakes", ()) if made is not None else ()), *baked]
    found = {f"{PREFIX}bakes": Value.array(ValueType.STR, map(str, bakes))} if bakes else {}
    if made is None:
        return found
    plan = made.plan
    params = {name: value for name, value in dict(plan.get("params", {})).items() if not isinstance(value, list)}
    stated: dict[str, Any] = {
        "version": __version__, "method": plan.get("method"), "factor": plan.get("factor"),
        "params": json.dumps(params) if params else None, "trained_length": made.trained_length,
        "source_fingerprint": made.source_fingerprint,
    }  # fmt: skip
    if certificate is not None:
        stated |= {
            f"verified.{key}": certificate[key]
            for key in ("verdict", "suite", "grade", "longest", "made", "fingerprint")
        }
    return {f"{PREFIX}{key}": Value.of(_TYPES[type(v)], v) for key, v in stated.items() if type(v) in _TYPES} | found


def stamp_inexact(found: Deviation) -> dict[str, Value]:
    """Return the keys of a file whose tables are not exactly the checkpoint's; KL is not known before the file is there."""
    stated = {
        "": str(found), ".pairs": found.pairs, ".ratio": found.ratio, ".attention_factor": found.factor,
        ".tenth_radian_from": found.tenth, ".radian_from": found.radian, ".rms": found.rms, ".kl": NOT_MEASURED,
    }  # fmt: skip
    return {f"{INEXACT}{key}": Value.of(_TYPES[type(v)], v) for key, v in stated.items() if v is not None}


def states(view: GgufCheckpoint, found: Deviation) -> bool:
    """Return whether a file says that its tables are so far from the checkpoint's."""
    return all(
        (INEXACT + key) in view.values and _near(view.values[INEXACT + key].decode(), figure)
        for key, figure in ((".pairs", found.pairs), (".ratio", found.ratio), (".attention_factor", found.factor))
    )


def _near(stated: object, figure: float) -> bool:
    return isinstance(stated, (int, float)) and (stated == figure or math.isclose(stated, figure, rel_tol=1e-3))


def removal(view: GgufCheckpoint) -> list[FileEdit]:
    """Return the edits that take our keys out of a file, which is about to be another than the one they speak of."""
    ours = frozenset(key for key in view.values if key.startswith(PREFIX))
    return view.edits_of(Patch(remove=ours))
