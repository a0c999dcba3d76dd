"""Yardsticks in real models: one layer of each kind against transformers, told by position_ids what each key's distance is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import configs
import models
import numpy as np
import pytest
import torch
from models import SILENT, config_of, copied
from transformers import AutoConfig
from verifying import rope_of

import ropetool
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError
from ropetool.lab.yardsticks import attention as computing
from ropetool.lab.yardsticks.named import Yardstick, parse
from ropetool.lab.yardsticks.runner import yardstick_runner
from ropetool.rope.tables import Array
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Runner

TRAINED = configs.TRAINED
DEMO = Path(ropetool.__file__).parent / "demo" / "model"
ONE = {"num_hidden_layers": 1}
FULL = {**ONE, "layer_types": ["full_attention"]}
# Grouped queries, neighbours as pairs, half of each head, norms before the rotation, fused rows, channels behind that do not
# rotate, capped scores, sinks, a table for each kind of layer.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": ONE, "cohere": ONE, "glm4": ONE, "qwen3": ONE, "olmo2": ONE, "gpt_neox": ONE, "stablelm": ONE, "phi3": ONE,
    "gemma2": FULL, "gpt_oss": FULL, "gemma3_text": FULL, "qwen2_vl_text": ONE,
}  # fmt: skip
TOKENS = 90
PLACES = (0, 17, 40, 63, 89)
Rule = Callable[[int, int], float | None]
RULES: dict[str, Rule] = {
    "rerope(32)": lambda m, n: min(m - n, 32),
    "leaky-rerope(32,4)": lambda m, n: m - n if m - n < 32 else 32 + (m - n - 32) / 4,
    "self-extend(4,32)": lambda m, n: m - n if m - n < 32 else m // 4 - n // 4 + 24,
    "dpe(32,4,4,4,4,4,4,4,4)": lambda m, n: m - n if m - n < 32 else m // 4 - n // 4 + 24,
    "string(40,8)": lambda m, n: m - n if m - n < 40 else m - n - 32,
    "sliding-window(32)": lambda m, n: m - n if m - n < 32 else None,
    "lambda(32,3)": lambda m, n: min(m - n, 32) if m - n < 32 or n < 3 else None,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, write_tokenizer: Callable[..., None]) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("families")

    def source(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            changes = FAMILIES.get(family, {})
            if family == "gemma3_text":
                rope = {"full_attention": {"rope_type": "default", "rope_theta": 40000.0}}
                changes = {**changes, "rope_parameters": rope}
            models.write(folder, family, changes)
            write_tokenizer(folder)
        return folder

    return source


def measured_by(spec: str, runner: TorchRunner, trained: int = TRAINED) -> Runner:
    """Return the runner of a yardstick beside a loaded checkpoint."""
    nested = HfCheckpoint.open(runner.path).family.nested
    found = parse(spec, trained, 4 * trained)
    return yardstick_runner(found, runner, rope_of(runner.path), trained=trained, nested=nested)


def logits(runner: Runner, ids: list[int]) -> Array:
    return np.concatenate([np.array(piece, dtype=np.float64) for _, piece in runner.logits(ids)])


@cache
def loaded(path: Path) -> Any:
    """Return the model as transformers loads it."""
    dtype = getattr(torch, dtype_of(path.name))
    return models.auto_class(AutoConfig.from_pretrained(path)).from_pretrained(path, dtype=dtype)


def dtype_of(family: str) -> str:
    """Return float64 wherever torch computes in it; its experts do not."""
    return "float32" if family == "gpt_oss" else "float64"


def by_position_ids(path: Path, ids: list[int], place: int, rule: Rule) -> Array:
    """Return the logits of one place by transformers alone, whose last query has each key at the distance of a rule."""
    model = loaded(path)
    distances = [rule(place, n) for n in range(place + 1)]
    known = [distance for distance in distances if distance is not None]
    positions = [max(known) - distance if distance is not None else 0.0 for distance in distances]
    with torch.inference_mode():
        found = model(
            input_ids=torch.tensor([ids[: place + 1]]),
            position_ids=torch.tensor([positions], dtype=torch.float64),
            attention_mask=torch.tensor([[int(distance is not None) for distance in distances]]),
            use_cache=False,
        )
    return np.asarray(found.logits[0, -1], dtype=np.float64)


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_gives_what_transformers_does_with_those_distances(
    family: str, spec: str, sources: Callable[[str], Path]
) -> None:
    ids = models.TOKENS[:TOKENS]
    path = sources(family)
    found = logits(measured_by(spec, TorchRunner(path, dtype=dtype_of(family))), ids)
    for place in PLACES:
        wanted = by_position_ids(path, ids, place, RULES[spec])
        assert np.abs(found[place] - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("spec", "off"),
    [
        ("rerope(32)", lambda m, n: min(m - n, 33)),
        ("leaky-rerope(32,4)", lambda m, n: m - n if m - n < 33 else 33 + (m - n - 33) / 4),
        ("sliding-window(32)", lambda m, n: m - n if m - n < 31 else None),
    ],
)
def test_a_window_off_by_one_is_seen(spec: str, off: Rule, sources: Callable[[str], Path]) -> None:
    ids = models.TOKENS[:TOKENS]
    found = logits(measured_by(spec, TorchRunner(sources("llama"), dtype="float64")), ids)
    wanted = by_position_ids(sources("llama"), ids, 89, off)
    assert np.abs(found[89] - wanted).max() > 1e-3 * np.abs(wanted).max()


def test_a_window_is_that_of_a_model_which_has_one(sources: Callable[[str], Path], tmp_path: Path) -> None:
    """Two layers deep, by transformers' own sliding window: Mistral's, with the same weights."""
    ids = models.TOKENS[:200]
    for name, window in (("plain", None), ("windowed", 48)):
        models.write(tmp_path / name, "mistral", {"sliding_window": window})
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(sources("llama") / file, tmp_path / name)
    own = logits(TorchRunner(tmp_path / "windowed", dtype="float64"), ids)
    plain = TorchRunner(tmp_path / "plain", dtype="float64")
    found = logits(measured_by("sliding-window(48)", plain), ids)
    assert np.abs(found - own).max() < 1e-6 * np.abs(own).max()
    assert np.abs(logits(plain, ids) - own).max() > 1e-2 * np.abs(own).max()


def demo_row(tokens: int) -> list[int]:
    return [0, *np.random.default_rng(tokens).integers(3, 2048, tokens - 1).tolist()]


@pytest.mark.parametrize(
    "spec", ["rerope(256)", "leaky-rerope(256,4)", "self-extend(4,256)", "lambda(256,2)", "rerope(256)+log-n"]
)
def test_within_its_window_it_is_the_model_itself(spec: str) -> None:
    runner = TorchRunner(DEMO, device="cpu")
    row = demo_row(250)
    found, own = measured_by(spec, runner, 256).score([row], 64, lambda _: None), runner.score([row], 64)
    assert np.abs(found.losses - own.losses).max() < 1e-4
    assert np.array_equal(found.hits, own.hits)


def test_the_model_is_itself_again_behind_a_yardstick_and_behind_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TorchRunner(DEMO, device="cpu")
    row = demo_row(400)
    own = runner.score([row], 64).losses
    yard = measured_by("rerope(64)", runner, 256)
    assert np.abs(yard.score([row], 64, lambda _: None).losses - own).max() > 0.1
    assert np.array_equal(runner.score([row], 64).losses, own)

    def fail(*_: Any, **__: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(computing.blocked, "attend", fail)
    with pytest.raises(ValueError, match="planted"):
        yard.score([row], 64, lambda _: None)
    assert np.array_equal(runner.score([row], 64).losses, own)
    assert runner.model.fixed_table


def test_log_n_scales_the_queries_beyond_the_trained_length() -> None:
    runner = TorchRunner(DEMO, device="cpu", dtype="float64")
    row = demo_row(300)
    scaled = Yardstick("", scale="log-n")  # no distance is changed
    found = logits(yardstick_runner(scaled, runner, rope_of(DEMO), trained=256, nested=False), row)
    body = runner.model._model.model
    # A query at place m, m + 1 tokens into the text, is longer by ln(m + 1) / ln 256 where that is above 1.
    factors = torch.clamp(torch.log(torch.arange(1, 301, dtype=torch.float64)) / np.log(256), min=1.0)
    hooks = [
        layer.self_attn.q_proj.register_forward_hook(lambda _, __, output: output * factors[:, None])
        for layer in body.layers
    ]
    wanted = logits(runner, row)
    for hook in hooks:
        hook.remove()
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert np.abs(found - logits(runner, row))[256:].max() > 1e-3


def test_a_scale_behind_a_table_replaces_its_attention_factor(tmp_path: Path) -> None:
    """YaRN with factor 1 on cos and sin by transformers, and queries made longer by a hook, as in the test above."""
    row = demo_row(700)
    keys = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "attention_factor": 1.0}
    yarn = TorchRunner(scaled_demo(tmp_path / "yarn", **keys), device="cpu")
    m = torch.arange(1, 701, dtype=torch.float32)
    scales = {
        "log-n": torch.clamp(torch.log(m) / np.log(256), min=1.0),
        "temperature": (0.1 * torch.log(torch.clamp(m / 256, min=1.0)) + 1) ** 2,
    }
    for name, scale in scales.items():
        measured = (
            measured_by(f"yarn(4)+{name}", TorchRunner(DEMO, device="cpu"), 256).score([row], 64, lambda _: None).losses
        )
        hooks = [
            layer.self_attn.q_proj.register_forward_hook(lambda _, __, output, scale=scale: output * scale[:, None])
            for layer in yarn.model._model.model.layers
        ]
        expected = yarn.score([row], 64).losses
        for hook in hooks:
            hook.remove()
        assert np.abs(measured - expected).max() < 2e-3
        assert np.abs(measured - yarn.score([row], 64).losses).max() > 1e-2


def scaled_demo(folder: Path, **rope: Any) -> Path:
    """Return the demo with other rope keys, for transformers to compute with."""
    keys = {**config_of(DEMO).get("rope_parameters", {}), "rope_theta": 10000.0, **rope}
    return copied(DEMO, folder, rope_parameters=keys, rope_scaling=SILENT, rope_theta=SILENT)


@pytest.mark.parametrize(
    ("spec", "rope"),
    [
        ("dynamic-ntk", {"rope_type": "dynamic", "factor": 1.0}),
        ("dynamic-yarn", {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 256}),
        ("yarn(8)", {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}),
        ("linear(3)", {"rope_type": "linear", "factor": 3.0}),
        ("ntk(2)", {"rope_type": "default", "rope_theta": 10000.0 * 2 ** (64 / 62)}),
    ],
)
def test_scaled_tables_are_those_of_transformers(spec: str, rope: dict[str, Any], tmp_path: Path) -> None:
    runner = TorchRunner(DEMO, device="cpu")
    row = demo_row(640)  # 2.5 times the trained length
    found = measured_by(spec, runner, 256).score([row], 64, lambda _: None).losses
    wanted = TorchRunner(scaled_demo(tmp_path / "scaled", **rope), device="cpu").score([row], 64).losses
    assert np.abs(found - wanted).max() < 2e-3
    if spec.startswith("dynamic"):
        short = measured_by(spec, runner, 256).score([row[:200]], 64, lambda _: None).losses
        assert np.abs(short - runner.score([row[:200]], 64).losses).max() < 1e-4


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("deepseek_v3", "changes queries or keys between their rotation"),
        ("falcon", "does not use transformers' attention interface"),
        ("hunyuan_v1_dense", "changes queries or keys between their rotation"),
        ("gemma4_text", "queries and keys separately"),
        ("ministral3", "already grow with the position"),
        ("ministral", "every layer has a window"),
    ],
)
def test_models_that_do_not_let_it_be_done_are_refused_in_a_sentence(
    family: str, words: str, sources: Callable[[str], Path]
) -> None:
    runner = TorchRunner(sources(family))
    with pytest.raises(
        ConfigError, match="reference attention variants work with models that rotate whole heads"
    ) as caught:
        measured_by("rerope", runner)
    assert words in str(caught.value)


def test_a_table_that_follows_the_length_is_refused(dynamic: Path) -> None:
    with pytest.raises(ConfigError, match="its own table depends on the text length"):
        measured_by("rerope", TorchRunner(dynamic), 64)


def test_layers_with_a_window_of_their_own_stay_as_they_are(sources: Callable[[str], Path]) -> None:
    """Gemma 3's layers with windows: with the full layer's distances capped nowhere, everything is the model's own."""
    path = sources("olmo3")
    runner = TorchRunner(path, dtype="float64")
    ids = models.TOKENS[:300]
    own = logits(runner, ids)
    assert np.abs(logits(measured_by("rerope(512)", runner), ids) - own).max() < 1e-6 * np.abs(own).max()
    assert np.abs(logits(measured_by("rerope(16)", runner), ids) - own).max() > 1e-2 * np.abs(own).max()
