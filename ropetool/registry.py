"""The functions of `ropetool.lab` that commands and options load by name.

No module outside `ropetool.lab` imports it.
"""

from __future__ import annotations

import importlib
from typing import Any

ADDITIONS = {
    "SPACES": "ropetool.lab.tuning.spaces",
    "tune": "ropetool.lab.tuning.tuning",
    "tune_command": "ropetool.lab.tuning.command",
    "use_command": "ropetool.lab.usage.command",
    "lm_eval_check": "ropetool.lab.lm_eval",
    "lm_eval_lines": "ropetool.lab.lm_eval",
    "lm_eval_result": "ropetool.lab.lm_eval",
    "lm_eval_section": "ropetool.lab.lm_eval",
    "yardstick_trials": "ropetool.lab.yardsticks.beside",
    "yardsticks_beside": "ropetool.lab.yardsticks.beside",
    "yardsticks_named": "ropetool.lab.yardsticks.named",
}

# A file of these packages may define measures (ropetool.verification.measures).
MEASURE_PACKAGES = ("ropetool.verification.measures", "ropetool.lab.measures")


def addition(name: str) -> Any:
    """Import the module of a name in ADDITIONS, and return its attribute with that name."""
    return getattr(importlib.import_module(ADDITIONS[name]), name)
