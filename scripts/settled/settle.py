#!/usr/bin/env python3
"""Make every comparison of tests/settled.json in whole again, and write down what passed.

    scripts/settled/settle.py                                     all, in eight minutes; the file is written anew
    scripts/settled/settle.py exporting/test_tokenizer_parity.py  those of files below tests/; the rest stays

Due when scripts/test has become slower: other versions of other programs, or outputs that changed on purpose.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "tests" / "settled.json"
FILES = (
    "exporting/test_tokenizer_parity.py", "oracle/test_stock_converter.py", "oracle/test_stock_types.py",
    "oracle/test_split_parts.py", "oracle/test_transformers.py", "oracle/test_baked_architectures.py",
    "importing/test_import_tokenizer_parity.py",
)  # fmt: skip


def main() -> int:
    if not sys.argv[1:]:
        RESULT.unlink(missing_ok=True)
    files = [str(ROOT / "tests" / name) for name in sys.argv[1:] or FILES]
    settle = {**os.environ, "ROPETOOL_SETTLE": "1"}
    return subprocess.run([sys.executable, "-m", "pytest", *files], env=settle, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
