"""``specdec verify-exactness``: which generations are made, and which checks are made of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deployments.exactness.checks import PLAIN, Check, check_counters, check_identity, check_law
from deployments.exactness.runs import Run, Subject, run_of
from deployments.transport.api_records import GenerationCall, TextPrompt
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import GenerationParams, SamplingParams, SpeculationParams
from specdec_core.types import AcceptanceRule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IDENTITY_PROMPTS = (
    "The quick brown fox",
    "def fibonacci(n):\n",
    "1, 2, 3, 4, 5,",
    "Once upon a time, there was a lighthouse keeper who",
)
LAW_PROMPT = "The"
_PILOT_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """What to check, and how hard."""

    rules: tuple[AcceptanceRule, ...] = tuple(AcceptanceRule)
    temperature: float = 0.8  # of sampled runs
    top_p: float = 0.95
    num_samples: int = 1000  # of each law, plain and speculative
    num_law_tokens: int = 5  # first tokens whose joint law is tested
    num_candidates: int = 32  # tokens that the law is restricted to; 0 for the whole vocabulary
    num_identity_tokens: int = 48
    max_draft_tokens: int | None = None  # the server's default without it
    alpha: float = 1e-4  # probability that a sound system fails any of the statistical checks
    seed: int = 0  # gives the seed of every run
    at_once: int = 64  # generations under way together

    def __post_init__(self) -> None:
        if SamplingParams(temperature=self.temperature, top_p=self.top_p).is_greedy:
            raise InvalidArgumentError("temperature", "must be above 0: a law is to be tested")
        if self.num_candidates == 1:
            raise InvalidArgumentError("candidates", "must be 0, or at least 2 to choose from")

    @property
    def level(self) -> float:
        """Of one statistical check, after Bonferroni."""
        return self.alpha / len(self.rules)

    def seed_of(self, *name: str | int) -> int:
        """A 64-bit seed for the run of this name."""
        text = "/".join(str(part) for part in (self.seed, *name))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def verify(subject: Subject, plan: Plan, tell: Callable[[str], None]) -> list[Check]:
    """Run every check of ``plan``; ``tell`` gets a line before each group of generations.

    Raises:
        InvalidArgumentError: if the server drafts nothing, so that there is nothing to verify.
        SpecdecError: if a generation fails.
    """
    return _Verification(subject, plan, tell).checks()


class _Verification:
    def __init__(self, subject: Subject, plan: Plan, tell: Callable[[str], None]) -> None:
        self._subject, self._plan, self._tell = subject, plan, tell
        self._model = subject.describe()
        default = self._model.default_speculation.max_draft_tokens
        gamma = default if plan.max_draft_tokens is None else plan.max_draft_tokens
        if self._model.max_draft_tokens == 0 or gamma == 0:
            raise InvalidArgumentError(
                "max_draft_tokens", "is 0: without a drafter there is nothing to verify"
            )
        self._speculation = {rule.value: SpeculationParams(gamma, rule) for rule in plan.rules} | {
            PLAIN: SpeculationParams(0)
        }
        self._runs: dict[str, list[Run]] = {PLAIN: []}

    def checks(self) -> list[Check]:
        """All of them; counters last, of every run the others made."""
        greedy = SamplingParams(temperature=0.0, max_tokens=self._plan.num_identity_tokens)
        sampled = replace(greedy, temperature=self._plan.temperature, top_p=self._plan.top_p)
        rules = [rule.value for rule in self._plan.rules]
        coupled = (
            [AcceptanceRule.COUPLED.value] if AcceptanceRule.COUPLED in self._plan.rules else []
        )
        checks = [
            *self._check_identity("greedy identity", greedy, rules),
            *self._check_identity("seeded identity", sampled, coupled),
            *self._check_law(replace(sampled, max_tokens=self._plan.num_law_tokens), rules),
        ]
        eos = self._model.eos_token_ids
        return checks + [
            check_counters("counters", rule, runs, eos) for rule, runs in self._runs.items()
        ]

    def _check_identity(
        self, name: str, sampling: SamplingParams, rules: Sequence[str]
    ) -> list[Check]:
        """The same prompts with the same seeds, plain and under each of these rules."""
        prompts = [
            (prompt, self._plan.seed_of(name, number))
            for number, prompt in enumerate(IDENTITY_PROMPTS)
        ]
        plain = self._generate(name, PLAIN, sampling, prompts) if rules else []
        return [
            check_identity(name, rule, plain, self._generate(name, rule, sampling, prompts))
            for rule in rules
        ]

    def _check_law(self, sampling: SamplingParams, rules: Sequence[str]) -> list[Check]:
        """One plain sample against an independent one of each rule: no two runs share a seed."""
        name, level = "first-token law", self._plan.level
        sampling = self._restricted(sampling)
        samples = {
            rule: self._generate(name, rule, sampling, self._law_prompts(name, rule))
            for rule in (PLAIN, *rules)
        }
        return [check_law(name, rule, samples[PLAIN], samples[rule], level=level) for rule in rules]

    def _law_prompts(self, name: str, rule: str) -> list[tuple[str, int]]:
        numbers = range(self._plan.num_samples)
        return [(LAW_PROMPT, self._plan.seed_of(name, rule, number)) for number in numbers]

    def _restricted(self, sampling: SamplingParams) -> SamplingParams:
        """Only the likeliest tokens, as a few plain runs show them: fewer outcomes, so that differences stand out."""
        if not self._plan.num_candidates:
            return sampling
        prompts = [(LAW_PROMPT, self._plan.seed_of("pilot", n)) for n in range(_PILOT_SAMPLES)]
        pilot = self._generate("candidates", PLAIN, replace(sampling, ignore_eos=True), prompts)
        counts = Counter(token for run in pilot for token in run.tokens)
        likeliest = sorted(counts, key=lambda token: (-counts[token], token))
        return replace(sampling, allowed_token_ids=tuple(likeliest[: self._plan.num_candidates]))

    def _generate(
        self, name: str, rule: str, sampling: SamplingParams, prompts: Sequence[tuple[str, int]]
    ) -> list[Run]:
        self._tell(f"{name}, {rule}: {len(prompts)} generations")
        calls = [
            GenerationCall(
                TextPrompt(prompt), GenerationParams(sampling, self._speculation[rule], seed)
            )
            for prompt, seed in prompts
        ]
        events = self._subject.generate_many(calls, at_once=self._plan.at_once)
        runs = [run_of(call, told) for call, told in zip(calls, events, strict=True)]
        self._runs.setdefault(rule, []).extend(runs)
        return runs
