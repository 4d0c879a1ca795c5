"""The process's first steps: Ctrl-C works while the libraries load, which takes seconds."""

from __future__ import annotations

import os
import sys

from deployments.cli.interrupts import unwind_on_signals

_INTERRUPTED = 130
_USAGE = 2


def run() -> None:
    """Run the command line of this process."""
    unwind_on_signals()
    try:
        from deployments.cli.main import main  # noqa: PLC0415 - see above
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"error: {error.name} is missing; run: pip install 'specdec[server]'\n")
        sys.exit(_USAGE)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        code
    )  # what was started is stopped by now; the threads of Ray and gRPC can crash an interpreter that is taken apart
