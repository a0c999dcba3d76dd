"""ropetool: extend the context window of language models, explain it, verify it.

The functions here are loaded on first use: `import ropetool` costs nothing. They return the data that the
commands print with --json.
"""

from __future__ import annotations

import sys

if (
    sys.argv[:1] == ["-m"]
    and {"ropetool", "-mropetool"} & {*sys.orig_argv}
    and not getattr(sys.flags, "safe_path", False)
):
    # `python -m` looks for every module in the working folder first, which may be somebody's download.
    del sys.path[0]

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "advise",
    "apply",
    "apply_in_place",
    "bake",
    "compare",
    "diff",
    "examine",
    "export",
    "extend",
    "import_gguf",
    "inspect",
    "patch",
    "plan",
    "recover",
    "restore",
    "tune",
    "verify",
]

if TYPE_CHECKING:
    from ropetool.choosing.comparing import compare
    from ropetool.comparison import compare as diff
    from ropetool.doctor import examine
    from ropetool.files.gguf.in_place import recover
    from ropetool.gguf_export import export_checkpoint as export
    from ropetool.gguf_import import import_gguf
    from ropetool.lab.tuning.tuning import tune
    from ropetool.plans.advice import advise
    from ropetool.plans.applying import apply
    from ropetool.plans.bakes import make_bake as bake
    from ropetool.plans.extending import extend
    from ropetool.plans.in_place import apply_in_place
    from ropetool.plans.restoring import restore
    from ropetool.plans.search import make_plan as plan
    from ropetool.runtimes.inspection import inspect
    from ropetool.verification.checkpoints import verify_checkpoint as verify
    from ropetool.verification.patching import patch

_HOMES = {
    "inspect": ("ropetool.runtimes.inspection", "inspect"),
    "advise": ("ropetool.plans.advice", "advise"),
    "plan": ("ropetool.plans.search", "make_plan"),
    "extend": ("ropetool.plans.extending", "extend"),
    "bake": ("ropetool.plans.bakes", "make_bake"),
    "apply": ("ropetool.plans.applying", "apply"),
    "apply_in_place": ("ropetool.plans.in_place", "apply_in_place"),
    "compare": ("ropetool.choosing.comparing", "compare"),
    "tune": ("ropetool.lab.tuning.tuning", "tune"),
    "restore": ("ropetool.plans.restoring", "restore"),
    "recover": ("ropetool.files.gguf.in_place", "recover"),
    "diff": ("ropetool.comparison", "compare"),
    "examine": ("ropetool.doctor", "examine"),
    "export": ("ropetool.gguf_export", "export_checkpoint"),
    "import_gguf": ("ropetool.gguf_import", "import_gguf"),
    "verify": ("ropetool.verification.checkpoints", "verify_checkpoint"),
    "patch": ("ropetool.verification.patching", "patch"),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        value = getattr(importlib.import_module(module), attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
