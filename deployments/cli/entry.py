"""The process's first steps: Ctrl-C works while the libraries load, which takes seconds."""

from __future__ import annotations

import sys

from deployments.cli.interrupts import unwind_on_signals

_INTERRUPTED = 130


def run() -> None:
    """Run the command line of this process."""
    unwind_on_signals()
    try:
        from deployments.cli.main import main  # noqa: PLC0415 - see above
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(main(sys.argv[1:]))
