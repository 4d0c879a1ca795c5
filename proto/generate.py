"""Writes the Python code of every ``.proto`` beside it; ``--check`` only compares and exits 1 naming what drifted.

Run as ``python proto/generate.py`` with the ``dev`` extra installed; the pinned grpcio-tools make the output reproducible.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent
MESSAGES = ROOT / "specdec_proto" / "v1"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def compile_protos(protos: list[Path], outputs: list[str], target: Path) -> None:
    """Run protoc once with the named ``--X_out`` plugins.

    Raises:
        SystemExit: if protoc reports an error; it has printed it.
    """
    plugins = Path(sysconfig.get_path("scripts"))
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            *(f"--{output}_out={target}" for output in outputs),
            *(str(proto) for proto in protos),
        ]
    )
    if status != 0:
        raise SystemExit(status)


def generate(target: Path) -> None:
    """Generate messages and typing stubs for every file, gRPC code for those with a service."""
    protos = sorted(MESSAGES.glob("*.proto"))
    compile_protos(protos, ["python", "mypy"], target)
    services = [proto for proto in protos if "\nservice " in proto.read_text()]
    compile_protos(services, ["grpc_python", "mypy_grpc"], target)


def generated_files(root: Path) -> dict[Path, bytes]:
    """Contents of the generated files below ``root``, by relative path."""
    return {
        path.relative_to(root): path.read_bytes()
        for pattern in GENERATED
        for path in root.glob(f"specdec_proto/v1/{pattern}")
    }


def drifted(fresh: dict[Path, bytes], committed: dict[Path, bytes]) -> list[Path]:
    """Files that differ, are missing or should not be there."""
    return sorted(
        path for path in fresh.keys() | committed.keys() if fresh.get(path) != committed.get(path)
    )


def main() -> int:
    """Regenerate or check; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generate the Python code of proto/.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on drift")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = generated_files(Path(scratch))
    changes = drifted(fresh, generated_files(ROOT))
    for path in changes:
        sys.stdout.write(f"{'drifted' if check else 'wrote'} proto/{path}\n")
        if not check:
            write(ROOT / path, fresh.get(path))
    return 1 if check and changes else 0


def write(path: Path, content: bytes | None) -> None:
    """Put generated content in place, or remove a file nothing generates any more."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
