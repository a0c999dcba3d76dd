#!/usr/bin/env python3
"""Measure the losses of tests/verification/demo_losses.json anew, by running the test file that reads them: about two minutes.

The tests name a row that is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READER = "tests/verification/test_effects.py"

if __name__ == "__main__":
    environment = {**os.environ, "ROPETOOL_MEASURE_LOSSES": "1"}
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-n", "0", READER], cwd=ROOT, env=environment).returncode)
