"""``specdec serve`` as a process: ready when it says so, the same tokens as in process, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.processes import children

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SPECDEC = Path(sys.executable).with_name("specdec")
_READY_S = 120
_STOP_S = 30


@pytest.fixture
def config_file(tiny_config: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tiny_config), encoding="utf-8")
    return path


class Served:
    """A running ``specdec serve`` and every process it has been seen to start."""

    def __init__(self, config_file: Path, ready_file: Path) -> None:
        self.ready_file = ready_file
        self.process = subprocess.Popen(  # noqa: S603 - our own program
            [SPECDEC, "serve", config_file, "--ready-file", ready_file],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started: set[int] = set()

    def wait(self, seconds: float) -> bool:
        """Whether it became ready in time; notes its processes on the way."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            self.started |= children(self.process.pid)
            if self.ready_file.exists():
                return True
            time.sleep(0.1)
        return False

    def stop(self, *signals: signal.Signals) -> int:
        """Send the signals and wait; the exit code."""
        self.started |= children(self.process.pid)
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.05)
        self.output = self.process.communicate(timeout=_STOP_S)
        return self.process.returncode

    def left(self) -> set[int]:
        """Processes that outlive it by more than a moment."""
        deadline = time.monotonic() + 10
        while (
            alive := {pid for pid in self.started if _is_alive(pid)}
        ) and time.monotonic() < deadline:
            time.sleep(0.1)
        return alive


@pytest.fixture
def served(config_file: Path, tmp_path: Path) -> Iterator[Served]:
    running = Served(config_file, tmp_path / "ready.json")
    yield running
    if running.process.poll() is None:
        running.stop(signal.SIGTERM)


def _is_alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            != "Z"
        )
    except OSError:
        return False


def generated(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603 - our own program
        [
            SPECDEC,
            "generate",
            "the quick brown",
            "--json",
            "--temperature",
            "0.9",
            "--seed",
            "11",
            "--max-tokens",
            "24",
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (line,) = done.stdout.splitlines()
    answer: dict[str, Any] = json.loads(line)
    return answer


def test_a_server_says_where_it_is_answers_like_one_process_and_leaves_nothing(
    served: Served, config_file: Path
) -> None:
    assert served.wait(_READY_S)
    addresses = json.loads(served.ready_file.read_text(encoding="utf-8"))
    remote = generated("--address", addresses["grpc"])
    local = generated("--local", "--config", str(config_file))
    assert set(addresses) == {"grpc", "http"}
    assert remote["token_ids"] == local["token_ids"]
    assert (remote["text"], remote["seed"], remote["finish_reason"]) == (
        local["text"],
        11,
        local["finish_reason"],
    )
    assert remote["speculation"]["num_draft_tokens"] > 0
    assert served.stop(signal.SIGINT) == 0
    assert served.left() == set()


@pytest.mark.parametrize("seconds", [1.0, 5.0, 9.0])
def test_ctrl_c_while_starting_leaves_nothing(served: Served, seconds: float) -> None:
    served.wait(seconds)
    assert served.stop(signal.SIGINT) in {0, 130}
    assert served.left() == set()


def test_an_impatient_second_ctrl_c_does_not_break_the_clean_up(served: Served) -> None:
    assert served.wait(_READY_S)
    assert served.stop(signal.SIGTERM, signal.SIGINT, signal.SIGINT) in {0, 130}
    assert served.left() == set()


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(config_file: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(  # noqa: S603 - our own program
            [SPECDEC, "serve", config_file],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "SPECDEC_SERVER__GRPC_PORT": str(port)},
        )
    assert done.returncode == 2
    assert done.stderr == f"error: server.grpc_port: {port} is in use on this machine\n"
