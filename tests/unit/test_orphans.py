"""Nothing that starts within the block outlives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deployments.orphans import no_orphans

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
# Starts a process, says which, and ends without waiting for it.
LEAVE_ONE = (
    sys.executable,
    "-c",
    "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)",
    *SLEEP,
)


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE)  # noqa: S603 - our own


def test_a_child_that_lives_on_is_killed_with_the_block() -> None:
    with no_orphans():
        child = start(*SLEEP)
        path = Path(f"/proc/{child.pid}")
        assert path.exists()

    assert not path.exists()
    child.communicate()


def test_an_orphan_is_killed_with_the_block() -> None:
    with no_orphans():
        orphan = start(*LEAVE_ONE).communicate(timeout=20)[0].strip()
        path = Path(f"/proc/{orphan}")
        assert path.exists()

    assert not path.exists()


def test_what_was_started_before_is_left_alone() -> None:
    before = start(*SLEEP)

    with no_orphans():
        pass

    assert before.poll() is None
    before.kill()
    before.communicate()
