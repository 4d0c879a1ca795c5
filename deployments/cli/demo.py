"""``specdec demo``: the main job on the embedded default, and what speculation gains on it."""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployments.cli.report import Report
from deployments.cli.serving import serving
from deployments.cli.terminal import console, progress, write
from deployments.config import load_config
from deployments.transport.api_records import ChatMessage, ChatPrompt, GenerationCall
from deployments.transport.generation_client import GenerationClient
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.stats import SpeculationStats

if TYPE_CHECKING:
    from deployments.transport.api_records import ModelInfo

_ANSWER_TOKENS = 160
_COMPARED_TOKENS = 64
_SHOWN = "Explain in a few sentences why the sky is blue."
_COMPARED = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "List the steps to bake a loaf of bread, and say why each matters.",
    "What is the difference between a list and a tuple in Python? Give an example.",
)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The same prompts decoded plainly and speculatively, in turns."""

    plain: tuple[Report, ...]
    speculative: tuple[Report, ...]

    @property
    def stats(self) -> SpeculationStats:
        return sum((each.outcome.speculation for each in self.speculative), SpeculationStats())

    @property
    def is_identical(self) -> bool:
        pairs = zip(self.plain, self.speculative, strict=True)
        return all(one.token_ids == other.token_ids for one, other in pairs)


def demo() -> None:
    """Serve SmolLM2-135M-Instruct locally, stream an answer, and compare plain with speculative decoding."""
    began = time.perf_counter()
    config = load_config(
        None, {"SPECDEC_SERVER__GRPC_PORT": "0", "SPECDEC_SERVER__HTTP_PORT": "0", **os.environ}
    )
    with progress("starting") as tell, serving(config, None, tell) as server:
        client = GenerationClient(f"{server.host}:{server.grpc_port}")
        info = client.describe()
        console.print(
            f"{info.name} on gRPC {server.host}:{server.grpc_port}, drafter: {info.drafter}"
        )
        _show_answer(client, info)
        comparison = _compare(client, info)
        client.close()
    _explain(comparison, info)
    write(json.dumps(_figures(comparison, time.perf_counter() - began)) + "\n")


def _show_answer(client: GenerationClient, info: ModelInfo) -> None:
    console.print(f"\n> {_SHOWN}\n")
    report = Report(time.perf_counter)
    call = _call(_SHOWN, info.default_speculation, _ANSWER_TOKENS, ignore_eos=False)
    for piece in report.follow(client.generate(call)):
        write(piece)
    write("\n")
    console.print(f"\n{report.as_line()}\n")


def _compare(client: GenerationClient, info: ModelInfo) -> _Comparison:
    plain: list[Report] = []
    speculative: list[Report] = []
    for prompt in _COMPARED:
        for reports, speculation in (
            (plain, SpeculationParams(max_draft_tokens=0)),
            (speculative, info.default_speculation),
        ):
            report = Report(time.perf_counter)
            for _ in report.follow(
                client.generate(_call(prompt, speculation, _COMPARED_TOKENS, ignore_eos=True))
            ):
                pass
            reports.append(report)
    return _Comparison(tuple(plain), tuple(speculative))


def _call(
    prompt: str, speculation: SpeculationParams, max_tokens: int, *, ignore_eos: bool
) -> GenerationCall:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos)
    return GenerationCall(
        ChatPrompt((ChatMessage("user", prompt),)), GenerationParams(sampling, speculation)
    )


def _explain(comparison: _Comparison, info: ModelInfo) -> None:
    plain, fast = _median(comparison.plain), _median(comparison.speculative)
    stats = comparison.stats
    console.print(
        f"plain {plain:.1f} tokens/s, speculative {fast:.1f} tokens/s: {fast / plain:.2f} times; "
        f"{stats.num_rounds} rounds, acceptance rate {stats.acceptance_rate:.2f}, "
        f"{stats.acceptance_length:.2f} tokens a round; same tokens: {'yes' if comparison.is_identical else 'NO'}"
    )
    if info.drafter == "quantized":
        console.print(
            "The drafter is a 4-bit copy of the target in groups of 64. The packaged weights were stored as 4-bit in groups of 32, "
            "so groups of 32 would reproduce the target exactly and accept everything; groups of 64 really differ."
        )


def _figures(comparison: _Comparison, seconds: float) -> dict[str, float]:
    stats = comparison.stats
    return {
        "tokens_per_s_plain": round(_median(comparison.plain), 3),
        "tokens_per_s_speculative": round(_median(comparison.speculative), 3),
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "acceptance_length": round(stats.acceptance_length, 4),
        "rounds": stats.num_rounds,
        "seconds_total": round(seconds, 1),
    }


def _median(reports: tuple[Report, ...]) -> float:
    return statistics.median(report.tokens_per_s for report in reports)
