"""The console script: runs the command line, and ends the process with it."""

from __future__ import annotations

import os

from ropetool import cli

INTERRUPTED = 128  # an exit code beyond it says that a signal ended the command


def main() -> None:
    """Run the command line; where a signal ended it, end the process too, whatever its threads still have to do."""
    try:
        cli.main()
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code > INTERRUPTED:
            os._exit(ended.code)  # what it wrote is flushed line by line
        raise


if __name__ == "__main__":
    main()
