"""What deterministic numerics cost: forwards of 1 to 64 tokens after 128 and 1 024, fast and deterministic in turns.

The model is the packaged SmolLM2-135M-Instruct in float32 on one thread. Turns in one process keep the comparison fair on a noisy
machine; a round runs both kinds once, and the order within a round alternates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.provenance import provenance
from specdec_core.models.forward import Segment
from specdec_core.models.loading import LoadOptions, ModelSource, Numerics, load_model, resolve

if TYPE_CHECKING:
    from specdec_core.models.forward import CausalModel, SequenceKv

_HERE = Path(__file__).parent
_MODEL = "packaged:smollm2-135m-instruct"
_KV_LENGTHS = (128, 1024)
_TOKEN_COUNTS = (1, 4, 8, 64)
_PROMPT_CHUNK = 128


def main() -> None:
    """Measure and write the result file."""
    arguments = _arguments()
    torch.set_num_threads(1)
    models = _load()
    rows = [
        _measure(models, kv_length, count, arguments.rounds)
        for kv_length in _KV_LENGTHS
        for count in _TOKEN_COUNTS
    ]
    result = {"provenance": provenance(), "model": _MODEL, "rounds": arguments.rounds, "rows": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--output", type=Path, default=_HERE / "results" / "determinism.json")
    return parser.parse_args()


def _load() -> dict[Numerics, CausalModel]:
    cache = Path(os.environ.get("SPECDEC_CACHE", "~/.cache/specdec")).expanduser()
    folder = resolve(ModelSource(_MODEL), cache, lambda _: None)
    return {
        numerics: load_model(folder, LoadOptions(kv_tokens=2048, numerics=numerics))
        for numerics in Numerics
    }


def _measure(
    models: dict[Numerics, CausalModel], kv_length: int, count: int, rounds: int
) -> dict[str, Any]:
    sequences = {numerics: _filled(model, kv_length) for numerics, model in models.items()}
    times: dict[Numerics, list[float]] = {numerics: [] for numerics in models}
    order = list(models)
    for _ in range(rounds):
        for numerics in order:
            times[numerics].append(_forward_ms(models[numerics], sequences[numerics], count))
        order.reverse()
    for sequence in sequences.values():
        sequence.release()
    row = _row(kv_length, count, times)
    sys.stderr.write(f"{row}\n")
    return row


def _filled(model: CausalModel, kv_length: int) -> SequenceKv:
    kv = model.new_sequence()
    for _ in range(0, kv_length, _PROMPT_CHUNK):
        model.forward([Segment(kv, _tokens(kv.length, _PROMPT_CHUNK), 0)])
    return kv


def _forward_ms(model: CausalModel, kv: SequenceKv, count: int) -> float:
    length = kv.length
    started = time.perf_counter()
    model.forward([Segment(kv, _tokens(length, count), count)])
    elapsed = time.perf_counter() - started
    kv.truncate(length)
    return 1000 * elapsed


def _tokens(begin: int, count: int) -> list[int]:
    return [(7919 * position + 17) % 40000 for position in range(begin, begin + count)]


def _row(kv_length: int, count: int, times: dict[Numerics, list[float]]) -> dict[str, Any]:
    fast, deterministic = times[Numerics.FAST], times[Numerics.DETERMINISTIC]
    ratios = [slow / quick for slow, quick in zip(deterministic, fast, strict=True)]
    return {
        "kv_length": kv_length,
        "num_tokens": count,
        "fast_ms": _summary(fast),
        "deterministic_ms": _summary(deterministic),
        "ratio_of_medians": round(statistics.median(deterministic) / statistics.median(fast), 3),
        "median_ratio": round(statistics.median(ratios), 3),
    }


def _summary(times: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(times), 2), "min": round(min(times), 2)}


if __name__ == "__main__":
    main()
