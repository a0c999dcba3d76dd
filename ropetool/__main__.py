"""The console script: runs the command line, and ends the process with it."""

from __future__ import annotations

import os
import signal

from ropetool import cli
from ropetool.cli.signals import FIRST_CODE


def main() -> None:
    """Run the command line; where a signal ended it, end the process too, whatever its threads still have to do."""
    try:
        cli.main()
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code > FIRST_CODE:
            os._exit(ended.code)  # what it wrote is flushed line by line
        raise
    except KeyboardInterrupt:  # after the command, when Ctrl-C has its usual handler again
        os._exit(FIRST_CODE + signal.SIGINT)


if __name__ == "__main__":
    main()
