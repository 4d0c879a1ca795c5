"""Plain against speculative decoding in one process, every drafter, prompt by prompt in turns.

The target is the packaged SmolLM2-135M-Instruct in float32, greedy, one thread. Turns keep the comparison fair on a noisy machine: each
prompt is decoded by every drafter before the next prompt begins, and ratios are taken per prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance
from deployments.cli.report import Report
from deployments.config import load_config
from deployments.generation import default_speculation
from deployments.local import LocalServer
from deployments.transport.api_records import ChatMessage, ChatPrompt, GenerationCall
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.stats import SpeculationStats
from specdec_core.types import AcceptanceRule

_HERE = Path(__file__).parent
_PLAIN = "none"
_DRAFTERS: dict[str, dict[str, Any]] = {
    _PLAIN: {"kind": "none"},
    "ngram": {"kind": "ngram"},
    "quantized-int4-g64": {"kind": "quantized", "group_size": 64},
    "layer_skip-20": {"kind": "layer_skip", "num_layers": 20},
}


def main() -> None:
    """Measure and write the result file."""
    arguments = _arguments()
    prompts = [
        json.loads(line) for line in arguments.prompts.read_text(encoding="utf-8").splitlines()
    ]
    reports: dict[str, list[Report]] = {name: [] for name in _DRAFTERS}
    servers = {name: _load(drafter) for name, drafter in _DRAFTERS.items()}
    for number, prompt in enumerate(prompts, 1):
        for name, (server, speculation) in servers.items():
            reports[name].append(_run(server, speculation, prompt["prompt"], arguments.max_tokens))
        sys.stderr.write(f"prompt {number} of {len(prompts)}\n")
    result = {"provenance": provenance(), "rows": [_row(name, reports) for name in _DRAFTERS]}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result["rows"], indent=2) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=_HERE / "prompts.jsonl")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--output", type=Path, default=_HERE / "results" / "speculation.json")
    return parser.parse_args()


def _load(drafter: dict[str, Any]) -> tuple[LocalServer, SpeculationParams]:
    config = load_config(None, os.environ, {"drafter": drafter})
    return LocalServer(config, _log), default_speculation(config)


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _run(
    server: LocalServer, speculation: SpeculationParams, prompt: str, max_tokens: int
) -> Report:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    params = GenerationParams(sampling, speculation)
    report = Report(time.perf_counter)
    for _ in report.follow(
        server.generate(GenerationCall(ChatPrompt((ChatMessage("user", prompt),)), params))
    ):
        pass
    return report


def _row(name: str, reports: dict[str, list[Report]]) -> dict[str, Any]:
    mine, plain = reports[name], reports[_PLAIN]
    ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(mine, plain, strict=True)]
    stats = sum((each.outcome.speculation for each in mine), SpeculationStats())
    return {
        "drafter": name,
        "rule": AcceptanceRule.COUPLED.value,
        "tokens_per_s": round(statistics.median(each.tokens_per_s for each in mine), 2),
        "speedup_vs_plain": round(statistics.median(ratios), 3),
        "speedup_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "acceptance_length": round(stats.acceptance_length, 4),
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
        "num_drafts": stats.num_drafts,
        "same_tokens_as_plain": all(
            a.token_ids == b.token_ids for a, b in zip(mine, plain, strict=True)
        ),
    }


if __name__ == "__main__":
    main()
