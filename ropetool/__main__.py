"""The console script: runs the command group and turns every user-facing error into two lines."""

from __future__ import annotations

from ropetool.cli import main

if __name__ == "__main__":
    main()
