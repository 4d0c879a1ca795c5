"""Every request option, alone and combined, as parameters for a model whose end-of-sequence token is ``option_matrix.EOS``."""

from __future__ import annotations

from typing import Any

from specdec_core.params import SamplingParams
from tests.support.option_matrix import EOS


def sampled(temperature: float = 0.9, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=temperature, **({"max_tokens": 16} | options))


EOS_LIKELY = ((EOS, 3.0),)
STOPPING: dict[str, SamplingParams] = {
    "eos": sampled(logit_bias=EOS_LIKELY),
    "eos shown": sampled(
        logit_bias=EOS_LIKELY, include_stop_str_in_output=True, skip_special_tokens=False
    ),
    "min_tokens": sampled(logit_bias=((EOS, 5.0),), min_tokens=7),
    "stop_token_ids": sampled(stop_token_ids=(1, 10)),
    "stop_token_ids shown": sampled(stop_token_ids=(1, 10), include_stop_str_in_output=True),
    "stop_token_ids after min_tokens": sampled(stop_token_ids=(1, 10), min_tokens=9),
    "stop across tokens": sampled(stop=("d d ", "b d")),
    "stop inside a token": sampled(stop=("b",)),
    "stop of one character": sampled(stop=("d",)),
    "stop across characters of several tokens": sampled(
        stop=("\u20ac\ufffd", "\u00ece", "b\u20ac")
    ),
    "stop shown": sampled(stop=("d d ", "b d"), include_stop_str_in_output=True),
    "stop after min_tokens": sampled(stop=("d", "b"), min_tokens=6),
    "stop in special tokens": sampled(
        logit_bias=EOS_LIKELY, ignore_eos=True, skip_special_tokens=False, stop=("eos>",)
    ),
    "stop beside logprobs": sampled(stop=("d d ", "b d"), logprobs=2, prompt_logprobs=1),
}
RUNNING: dict[str, SamplingParams] = {
    "nothing": sampled(),
    "hot": sampled(2.0),
    "cold": sampled(0.2),
    "temperature about 0": sampled(1e-6),
    "temperature just above 0": sampled(1e-4),
    "top_k": sampled(top_k=3),
    "top_p": sampled(top_p=0.7),
    "min_p": sampled(min_p=0.2),
    "typical_p": sampled(typical_p=0.5),
    "repetition_penalty": sampled(repetition_penalty=1.6),
    "presence_penalty": sampled(presence_penalty=1.5),
    "frequency_penalty": sampled(frequency_penalty=0.9),
    "rewarded repetition": sampled(frequency_penalty=-0.7, repetition_penalty=0.8),
    "logit_bias": sampled(logit_bias=((2, -2.0), (8, 2.5))),
    "bad_words": sampled(bad_words=((2, 9), (9, 2, 1), (6, 6))),
    "allowed_token_ids": sampled(allowed_token_ids=(0, 1, 3, 6, 8)),
    "ignore_eos": sampled(logit_bias=EOS_LIKELY, ignore_eos=True),
    "special tokens shown": sampled(
        logit_bias=EOS_LIKELY, ignore_eos=True, skip_special_tokens=False
    ),
    "max_tokens 1": sampled(max_tokens=1),
    "max_tokens 2": sampled(max_tokens=2),
    "logprobs 0": sampled(logprobs=0),
    "logprobs 5": sampled(logprobs=5, top_k=2),
    "logprobs of more than there are": sampled(2.0, logprobs=20),
    "prompt_logprobs": sampled(prompt_logprobs=3),
    "all truncations": sampled(1.3, top_k=8, top_p=0.95, min_p=0.02, typical_p=0.9),
    "all penalties": sampled(
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=((2, 1.5), (7, -3.0)),
    ),
    "everything": sampled(
        0.8,
        top_k=9,
        top_p=0.98,
        min_p=0.01,
        typical_p=0.97,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias=((2, 0.5), (EOS, 1.0)),
        bad_words=((4, 5), (6, 6)),
        allowed_token_ids=(0, 1, 2, 3, 4, 6, 7, 8, 9, 10, EOS),
        min_tokens=16,
        stop=("zz",),
        stop_token_ids=(5,),
        skip_special_tokens=False,
        logprobs=3,
        prompt_logprobs=2,
    ),
}
OPTIONS = STOPPING | RUNNING
