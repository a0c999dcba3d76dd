"""What the laboratory adds to commands and options, by name. Nothing outside of it imports it."""

from __future__ import annotations

import importlib
from typing import Any

ADDITIONS = {
    "SPACES": "ropetool.lab.tuning.spaces",
    "tune": "ropetool.lab.tuning.tuning",
    "tune_command": "ropetool.lab.tuning.command",
    "lm_eval_lines": "ropetool.lab.lm_eval",
    "lm_eval_result": "ropetool.lab.lm_eval",
    "yardstick_trials": "ropetool.lab.yardsticks.beside",
    "yardsticks_beside": "ropetool.lab.yardsticks.beside",
    "yardsticks_named": "ropetool.lab.yardsticks.named",
}


def addition(name: str) -> Any:
    """Return what stands under a name of ADDITIONS; its module is loaded now."""
    return getattr(importlib.import_module(ADDITIONS[name]), name)
