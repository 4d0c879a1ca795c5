"""What a configuration may say, in which order its sources count, and how a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.config import (
    Config,
    LayerSkipDrafterConfig,
    LmDrafterConfig,
    NgramDrafterConfig,
    NoDrafterConfig,
    QuantizedDrafterConfig,
    load_config,
    parse_config,
)
from specdec_core.errors import InvalidArgumentError
from specdec_core.types import AcceptanceRule


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(values: dict[str, object]) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_config(values)
    return caught.value


def test_the_default_is_the_packaged_model_with_a_four_bit_copy_in_groups_of_64() -> None:
    config = load_config(None, {})

    assert config == Config()
    assert config.target.model == "packaged:smollm2-135m-instruct"
    assert config.drafter == QuantizedDrafterConfig(quantization="int4", group_size=64)
    assert config.coordinator.acceptance_rule is AcceptanceRule.COUPLED
    assert (config.server.grpc_port, config.server.http_port) == (9000, 8000)
    assert config.max_draft_tokens == 16


def test_a_file_names_only_what_differs(tmp_path: Path) -> None:
    path = written(
        tmp_path, "target: {model: org/big, max_sessions: 8}\ndrafter: {kind: lm, model: org/small}"
    )

    config = load_config(path, {})

    assert (config.target.model, config.target.max_sessions) == ("org/big", 8)
    assert config.target.token_budget == Config().target.token_budget
    assert config.drafter == LmDrafterConfig(model="org/small")


def test_the_environment_overrides_the_file_and_the_caller_overrides_both(tmp_path: Path) -> None:
    path = written(tmp_path, "target: {threads: 2, kv_tokens: 64, dtype: bfloat16}")
    environ = {"SPECDEC_TARGET__THREADS": "3", "SPECDEC_TARGET__KV_TOKENS": "128"}

    target = load_config(path, environ, {"target": {"kv_tokens": 256}}).target

    assert (target.dtype, target.threads, target.kv_tokens) == ("bfloat16", 3, 256)


def test_the_environment_reaches_nested_sections_and_ignores_what_is_not_its_own() -> None:
    environ = {
        "SPECDEC_TARGET__REPLICAS__NUM_REPLICAS": "2",
        "SPECDEC_CACHE": "/somewhere",
        "SPECDEC_HOME": "x",
        "TARGET__MODEL": "y",
    }

    config = load_config(None, environ)

    assert config.target.replicas.num_replicas == 2
    assert config.cache_dir == Path("/somewhere")
    assert config.target.model == Config().target.model


@pytest.mark.parametrize(
    ("drafter", "expected", "cap"),
    [
        ({"kind": "none"}, NoDrafterConfig(), 0),
        (
            {"kind": "ngram", "max_ngram": 5, "min_ngram": 2},
            NgramDrafterConfig(max_ngram=5, min_ngram=2),
            16,
        ),
        (
            {"kind": "lm", "model": "m", "quantization": "int8"},
            LmDrafterConfig(model="m", quantization="int8"),
            16,
        ),
        (
            {"kind": "quantized", "group_size": 128, "max_draft_tokens": 5},
            QuantizedDrafterConfig(group_size=128, max_draft_tokens=5),
            5,
        ),
        ({"kind": "layer_skip", "num_layers": 2}, LayerSkipDrafterConfig(num_layers=2), 16),
        ({"num_draft_tokens": 2}, QuantizedDrafterConfig(num_draft_tokens=2), 16),
    ],
    ids=["none", "ngram", "lm", "quantized", "layer_skip", "no kind"],
)
def test_each_kind_of_drafter_has_its_own_fields(
    drafter: dict[str, object], expected: object, cap: int
) -> None:
    config = parse_config({"drafter": drafter})

    assert config.drafter == expected
    assert config.max_draft_tokens == cap


def test_a_kind_can_be_overridden_where_the_file_configures_another(tmp_path: Path) -> None:
    path = written(
        tmp_path, "drafter: {kind: quantized, group_size: 128, num_draft_tokens: 2, device: cpu}"
    )

    by_caller = load_config(path, {}, {"drafter": {"kind": "ngram"}})
    by_environment = load_config(path, {"SPECDEC_DRAFTER__KIND": "none"})
    same_kind = load_config(path, {}, {"drafter": {"kind": "quantized"}})

    assert by_caller.drafter == NgramDrafterConfig(num_draft_tokens=2)
    assert by_environment.drafter == NoDrafterConfig()
    assert same_kind.drafter == QuantizedDrafterConfig(group_size=128, num_draft_tokens=2)


def test_an_unknown_key_stays_refused_when_the_kind_is_overridden(tmp_path: Path) -> None:
    path = written(tmp_path, "drafter: {kind: quantized, group_sizes: 128}")

    with pytest.raises(InvalidArgumentError, match=r"^drafter\.group_sizes: "):
        load_config(path, {}, {"drafter": {"kind": "ngram"}})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"targets": {}}, "targets"),
        ({"target": {"modle": "x"}}, "target.modle"),
        ({"target": {"replicas": {"cpus": 1}}}, "target.replicas.cpus"),
        ({"drafter": {"kind": "ngram", "group_size": 64}}, "drafter.group_size"),
        ({"drafter": {"ngram": 3}}, "drafter.ngram"),
        ({"drafter": {"kind": "none", "deadline_s": 1}}, "drafter.deadline_s"),
    ],
)
def test_an_unknown_key_is_refused_by_its_dotted_name(
    values: dict[str, object], field: str
) -> None:
    error = refused(values)

    assert (error.field, error.problem) == (field, "Extra inputs are not permitted")


@pytest.mark.parametrize(
    ("values", "field", "allowed"),
    [
        ({"drafter": {"num_draft_tokens": 17}}, "drafter", "above max_draft_tokens 16"),
        ({"drafter": {"max_draft_tokens": 33}}, "drafter.max_draft_tokens", "equal to 32"),
        ({"drafter": {"num_draft_tokens": 0}}, "drafter.num_draft_tokens", "equal to 1"),
        ({"drafter": {"deadline_s": 0}}, "drafter.deadline_s", "greater than 0"),
        ({"drafter": {"kind": "oracle"}}, "drafter", "'ngram', 'lm', 'quantized', 'layer_skip'"),
        ({"drafter": {"kind": "lm"}}, "drafter.model", "Field required"),
        ({"drafter": {"kind": "layer_skip"}}, "drafter.num_layers", "Field required"),
        ({"drafter": {"kind": "ngram", "max_ngram": 1, "min_ngram": 2}}, "drafter", "above"),
        ({"target": {"token_budget": 44}}, "target.token_budget", "equal to 45"),
        ({"target": {"tensor_parallel": 2}}, "target.tensor_parallel", "should be 1"),
        ({"target": {"threads": 0}}, "target.threads", "equal to 1"),
        ({"target": {"dtype": "float8"}}, "target.dtype", "'float32', 'bfloat16' or 'float16'"),
        ({"target": None}, "target", "valid dictionary"),
        ({"server": {"grpc_port": 65536}}, "server.grpc_port", "equal to 65535"),
        ({"coordinator": {"acceptance_rule": "luck"}}, "coordinator.acceptance_rule", "'coupled'"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_is_allowed(
    values: dict[str, object], field: str, allowed: str
) -> None:
    error = refused(values)

    assert error.field == field
    assert allowed in error.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- target\n- drafter", "must be a mapping of sections"),
        ("just words", "must be a mapping of sections"),
        ("1: 2", "must be a mapping of sections"),
        ("target: {model: [", "is not YAML"),
        ("target: {revision: 2026-13-45}", "is not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)

    with pytest.raises(InvalidArgumentError, match=problem) as caught:
        load_config(path, {})
    assert caught.value.field == "config"
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "# nothing\n"), {}) == Config()


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")

    for path in (tmp_path / "missing.yaml", tmp_path, binary):
        with pytest.raises(InvalidArgumentError, match=r"^config: ") as caught:
            load_config(path, {})
        assert str(path) in caught.value.problem


def test_the_environment_cannot_turn_a_value_into_a_section(tmp_path: Path) -> None:
    path = written(tmp_path, "target: {model: x}")

    with pytest.raises(InvalidArgumentError, match=r"^target\.model: is not a section"):
        load_config(path, {"SPECDEC_TARGET__MODEL__NAME": "y"})


@pytest.mark.parametrize("value", ["{", "a: b: c", "2026-13-45"])
def test_an_environment_value_that_is_no_yaml_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^SPECDEC_TARGET__MODEL: is not YAML"):
        load_config(None, {"SPECDEC_TARGET__MODEL": value})


@pytest.mark.parametrize("kind", ["[ngram]", "{a: 1}", "5", "null"])
def test_a_kind_that_is_no_name_is_refused(kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, "drafter: {kind: ngram}")

    with pytest.raises(InvalidArgumentError, match=r"^drafter: "):
        load_config(path, {"SPECDEC_DRAFTER__KIND": kind})


def test_replicas_that_are_not_deployed_ask_for_no_cpu() -> None:
    assert Config().num_cpus == 2.5
    assert parse_config({"drafter": {"kind": "none"}}).num_cpus == 1.5


def test_a_configuration_survives_the_way_to_a_replica() -> None:
    config = parse_config(
        {"drafter": {"kind": "layer_skip", "num_layers": 3}, "cache_dir": "/cache/x"}
    )

    assert parse_config(config.model_dump(mode="json")) == config
