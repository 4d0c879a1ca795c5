"""Acceptance of every rule on the same prompts, drafter and sampling: what each rule costs or gains on a real pair.

The pair is the default one, SmolLM2-135M-Instruct drafted for by its 4-bit copy in groups of 64, at temperature 0.8 and top-p 0.95. Every
prompt is sampled with the same seeds under each rule, in turns. Texts differ between rules, so acceptance is a mean over texts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance
from deployments.cli.report import Report
from deployments.config import load_config
from deployments.local import LocalServer
from deployments.transport.api_records import ChatMessage, ChatPrompt, GenerationCall
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.stats import SpeculationStats
from specdec_core.types import AcceptanceRule

_HERE = Path(__file__).parent
_NUM_DRAFT_TOKENS = 4


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=_HERE / "prompts.jsonl")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--output", type=Path, default=_HERE / "results" / "rules.json")
    arguments = parser.parse_args()
    lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    server = LocalServer(load_config(None, os.environ), print_line)
    totals = dict.fromkeys(AcceptanceRule, SpeculationStats())
    for number, prompt in enumerate(prompts, 1):
        for seed in range(arguments.seeds):
            for rule in AcceptanceRule:
                totals[rule] += _run(server, prompt, rule, seed, arguments.max_tokens)
        print_line(f"prompt {number} of {len(prompts)}")
    rows = [_row(rule, stats) for rule, stats in totals.items()]
    result = {"provenance": provenance(), "num_draft_tokens": _NUM_DRAFT_TOKENS, "rows": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(rows, indent=2) + "\n")


def print_line(line: str) -> None:
    """Progress, for people."""
    sys.stderr.write(f"{line}\n")


def _run(
    server: LocalServer, prompt: str, rule: AcceptanceRule, seed: int, max_tokens: int
) -> SpeculationStats:
    sampling = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=max_tokens, ignore_eos=True)
    params = GenerationParams(sampling, SpeculationParams(_NUM_DRAFT_TOKENS, rule), seed)
    report = Report(time.perf_counter)
    for _ in report.follow(
        server.generate(GenerationCall(ChatPrompt((ChatMessage("user", prompt),)), params))
    ):
        pass
    return report.outcome.speculation


def _row(rule: AcceptanceRule, stats: SpeculationStats) -> dict[str, Any]:
    return {
        "rule": rule.value,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "acceptance_length": round(stats.acceptance_length, 4),
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
    }


if __name__ == "__main__":
    main()
