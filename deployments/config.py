"""The configuration, with ``deployments.config_source`` the only reader of YAML and the environment.

A file names what differs from the defaults; ``SPECDEC_<SECTION>__<FIELD>`` in the environment overrides it, for example
``SPECDEC_DRAFTER__KIND=ngram``. Unknown keys are refused. The defaults are the embedded demo: the packaged SmolLM2-135M-Instruct, drafted
for by a 4-bit copy of itself.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deployments.config_source import place, read_environment, read_file
from specdec_core.errors import InvalidArgumentError
from specdec_core.params import MAX_DRAFT_TOKENS
from specdec_core.types import AcceptanceRule

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_MODEL = "packaged:smollm2-135m-instruct"
_MIN_TOKEN_BUDGET = (
    4 * (MAX_DRAFT_TOKENS + 1) // 3 + 1
)  # the longest draft fits beside waiting prefills

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Section):
    """Where a model comes from and how it is held."""

    model: str = Field(
        default=_DEFAULT_MODEL,
        description="Local folder, .gguf file, hub name org/name, or packaged:NAME.",
    )
    revision: str | None = Field(default=None, description="Revision of a hub name.")
    device: str = Field(default="cpu", description="torch device: cpu, cuda, cuda:0.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Type of the weights and of the KV."
    )
    threads: Count = Field(default=1, description="CPU threads of one model step.")
    kv_tokens: Count = Field(
        default=32768, description="KV budget in tokens over all sessions of a replica."
    )
    max_context: Count | None = Field(
        default=None, description="Tokens of prompt and output together; the model's own if absent."
    )


class ReplicaConfig(_Section):
    """How many replicas, and what each asks of Ray."""

    num_replicas: Count = 1
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0


class TargetConfig(ModelConfig):
    """The target: the model whose output is served."""

    tensor_parallel: Literal[1] = Field(
        default=1, description="Ranks of one replica; only 1 in this version."
    )
    quantization: Literal["none", "int8", "int4"] = Field(
        default="none", description="Weight-only; changes the model that is served."
    )
    numerics: Literal["fast", "deterministic"] = Field(
        default="fast",
        description="deterministic: logits do not depend on what shares a forward, to the bit; CPU, float32, unquantised.",
    )
    max_sessions: Count = Field(default=64, description="Sessions of one replica.")
    token_budget: Annotated[int, Field(ge=_MIN_TOKEN_BUDGET)] = Field(
        default=256, description="New tokens of one step, about."
    )
    answer_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="A target that is silent for longer is replaced."
    )
    replicas: ReplicaConfig = ReplicaConfig()


class _DrafterConfig(_Section):
    num_draft_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] = Field(
        default=3, description="Drafted per round unless a request says otherwise."
    )
    max_draft_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] = Field(
        default=16, description="The most a request may ask for."
    )
    deadline_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="A round whose draft takes longer goes on without it."
    )
    max_sessions: Count = Field(default=256, description="Sessions of one replica.")
    replicas: ReplicaConfig = ReplicaConfig()

    @model_validator(mode="after")
    def _default_within_cap(self) -> Self:
        if self.num_draft_tokens > self.max_draft_tokens:
            raise ValueError(
                f"num_draft_tokens {self.num_draft_tokens} is above max_draft_tokens {self.max_draft_tokens}"
            )
        return self


class _NeuralDrafterConfig(_DrafterConfig):
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Count = 1
    kv_tokens: Count = 32768


class NoDrafterConfig(_Section):
    """No drafter: plain decoding."""

    kind: Literal["none"] = "none"


class NgramDrafterConfig(_DrafterConfig):
    """Prompt lookup: continues the longest, most recent match of the last tokens."""

    kind: Literal["ngram"] = "ngram"
    max_ngram: Annotated[int, Field(ge=1, le=16)] = 3
    min_ngram: Annotated[int, Field(ge=1, le=16)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is above max_ngram {self.max_ngram}")
        return self


class LmDrafterConfig(_NeuralDrafterConfig):
    """A smaller model with the target's vocabulary."""

    kind: Literal["lm"] = "lm"
    model: str
    revision: str | None = None
    quantization: Literal["none", "int8", "int4"] = "none"
    group_size: Literal[32, 64, 128, 256] = 64


class QuantizedDrafterConfig(_NeuralDrafterConfig):
    """A weight-only quantised copy of the target."""

    kind: Literal["quantized"] = "quantized"
    quantization: Literal["int8", "int4"] = "int4"
    group_size: Literal[32, 64, 128, 256] = 64


class LayerSkipDrafterConfig(_NeuralDrafterConfig):
    """The first layers of the target, its norm and its head."""

    kind: Literal["layer_skip"] = "layer_skip"
    num_layers: Count


DrafterConfig = Annotated[
    NoDrafterConfig
    | NgramDrafterConfig
    | LmDrafterConfig
    | QuantizedDrafterConfig
    | LayerSkipDrafterConfig,
    Field(discriminator="kind"),
]
DraftingConfig = (
    NgramDrafterConfig | LmDrafterConfig | QuantizedDrafterConfig | LayerSkipDrafterConfig
)
NeuralConfig = LmDrafterConfig | QuantizedDrafterConfig | LayerSkipDrafterConfig


class CoordinatorConfig(_Section):
    """The coordinators: sessions, acceptance, the public API."""

    acceptance_rule: AcceptanceRule = AcceptanceRule.COUPLED
    max_sessions: Count = Field(
        default=256,
        description="Generations of one replica at a time; more are refused with RESOURCE_EXHAUSTED.",
    )
    shadow_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="Finished requests that the target re-scores as a check."
    )
    replicas: ReplicaConfig = ReplicaConfig(num_cpus=0.5)


class ServerConfig(_Section):
    """Where clients connect."""

    host: str = Field(
        default="127.0.0.1",
        description="Address that the HTTP proxy binds; Ray binds gRPC on every address.",
    )
    grpc_port: Port = 9000
    http_port: Port = 8000


class Config(_Section):
    """All of it."""

    target: TargetConfig = TargetConfig()
    drafter: DrafterConfig = QuantizedDrafterConfig()
    coordinator: CoordinatorConfig = CoordinatorConfig()
    server: ServerConfig = ServerConfig()
    cache_dir: Path = Field(
        default=Path("~/.cache/specdec"), description="Conversions and downloads."
    )

    @property
    def max_draft_tokens(self) -> int:
        """The most that a request may ask for; 0 without a drafter."""
        return 0 if isinstance(self.drafter, NoDrafterConfig) else self.drafter.max_draft_tokens

    @property
    def num_cpus(self) -> float:
        """CPUs that all replicas together ask of Ray."""
        deployed = [self.target.replicas, self.coordinator.replicas]
        if not isinstance(self.drafter, NoDrafterConfig):
            deployed.append(self.drafter.replicas)
        return sum(each.num_replicas * each.num_cpus for each in deployed)

    @property
    def cache_folder(self) -> Path:
        return self.cache_dir.expanduser()


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Config:
    """The defaults, overridden by the file, by the environment, and by ``overrides``, a mapping of sections.

    Raises:
        InvalidArgumentError: naming the key as it was written.
    """
    values = read_file(path) if path else {}
    if cache_dir := environ.get("SPECDEC_CACHE"):
        values["cache_dir"] = cache_dir
    from_overrides = (
        ([section, key], value)
        for section, fields in overrides.items()
        for key, value in fields.items()
    )
    for keys, value in (*read_environment(environ), *from_overrides):
        if keys == ["drafter", "kind"]:
            _forget_other_kind(values.get("drafter"), value)
        place(values, keys, value)
    return parse_config(values)


def parse_config(values: Mapping[str, Any]) -> Config:
    """Validate a mapping.

    Raises:
        InvalidArgumentError: naming the first key that is wrong and what is allowed.
    """
    try:
        return Config.model_validate(_with_default_kind(values))
    except ValidationError as error:
        first = error.errors()[0]
        section, *rest = first["loc"] or ("config",)
        if section == "drafter" and rest and rest[0] in _KINDS:
            del rest[0]  # pydantic names the kind it chose, which nobody wrote there
        raise InvalidArgumentError(".".join(map(str, (section, *rest))), first["msg"]) from error


_KINDS: Mapping[str, type[_Section]] = {
    "none": NoDrafterConfig,
    "ngram": NgramDrafterConfig,
    "lm": LmDrafterConfig,
    "quantized": QuantizedDrafterConfig,
    "layer_skip": LayerSkipDrafterConfig,
}
_DEFAULT_KIND = "quantized"


def _forget_other_kind(drafter: object, kind: object) -> None:
    """Drop what only another kind of drafter has, so that the kind alone can be overridden."""
    if not isinstance(drafter, dict):
        return
    before, after = (_KINDS.get(str(name)) for name in (drafter.get("kind", _DEFAULT_KIND), kind))
    if before and after:
        for field in before.model_fields.keys() - after.model_fields.keys():
            drafter.pop(field, None)


def _with_default_kind(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A drafter section that names no kind is the default one's."""
    drafter = values.get("drafter")
    if not isinstance(drafter, dict) or "kind" in drafter:
        return values
    return {**values, "drafter": {"kind": _DEFAULT_KIND, **drafter}}
