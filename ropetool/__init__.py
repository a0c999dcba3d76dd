"""ropetool: extend the context window of language models, explain it, verify it.

The functions here are loaded on first use: `import ropetool` costs nothing. They return the data that the
commands print with --json.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "apply", "bake", "diff", "export", "inspect", "patch", "plan", "verify"]

if TYPE_CHECKING:
    from ropetool.applying import apply
    from ropetool.bake_plans import make_bake as bake
    from ropetool.comparison import compare as diff
    from ropetool.exporting import export_checkpoint as export
    from ropetool.inspection import inspect
    from ropetool.planning import make_plan as plan
    from ropetool.verification.checkpoints import verify_checkpoint as verify
    from ropetool.verification.patching import patch

_HOMES = {
    "inspect": ("ropetool.inspection", "inspect"),
    "plan": ("ropetool.planning", "make_plan"),
    "bake": ("ropetool.bake_plans", "make_bake"),
    "apply": ("ropetool.applying", "apply"),
    "diff": ("ropetool.comparison", "compare"),
    "export": ("ropetool.exporting", "export_checkpoint"),
    "verify": ("ropetool.verification.checkpoints", "verify_checkpoint"),
    "patch": ("ropetool.verification.patching", "patch"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        value = getattr(importlib.import_module(module), attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
