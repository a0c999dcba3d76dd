"""Parity of rotation: the check that the runtime's code rotates by the table that ropetool decodes.

It builds rotary modules from the config. It does not read weights or run remote code.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import CheckpointError, ConfigError, MissingDependency
from ropetool.rope.tables import Array, LayerRope, Regime, RopeSet
from ropetool.runtimes import inspection
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, Check
from ropetool.verification.runners.torch_library import library, quiet

ROTATION = "rotation"
TORCH_TOLERANCE = 3e-6  # transformers computes its tables in float32, whose powers have errors of up to 1e-6


def check_rotation(target: Path | Checkpoint) -> Check:
    """Return the check that transformers or llama.cpp itself rotates by the decoded table.

    It fails with the reason if the checkpoint cannot be read, and does not run if the runtime is not installed.
    """
    try:
        checkpoint = open_checkpoint(target)
        return _by_llama_cpp(checkpoint) if isinstance(checkpoint, GgufCheckpoint) else _by_transformers(checkpoint)
    except MissingDependency as error:
        return Check(ROTATION, None, None, NOT_RUN, f"{error.message}: {error.try_}")
    except (CheckpointError, ConfigError) as error:
        return Check(ROTATION, None, None, FAIL, error.without_folders())


def _by_llama_cpp(target: GgufCheckpoint) -> Check:
    from ropetool.verification.runners import llama_probe  # only for GGUF files

    probed = llama_probe.probe(target.path)
    if probed.difference is None:
        return Check(ROTATION, None, None, NOT_ASKED, probed.detail)
    verdict = PASS if probed.difference <= llama_probe.TOLERANCE else FAIL
    comparison = "same rotation as in ropetool's table" if verdict == PASS else "rotation differs from ropetool's table"
    figure = probed.difference if math.isfinite(probed.difference) else None
    return Check(ROTATION, figure, llama_probe.TOLERANCE, verdict, f"{probed.detail}, {comparison}")


def _by_transformers(checkpoint: HfCheckpoint) -> Check:
    transformers, torch = library("transformers"), library("torch")
    target = checkpoint.path
    reading = next(iter(inspection.inspect_checkpoint(checkpoint).readings), None)
    if reading is None:
        return Check(
            ROTATION, None, None, NOT_ASKED, "ropetool does not know this family, so it has no table to compare"
        )
    try:
        with quiet(transformers):
            model = skeleton(torch, transformers, target)
            if reading.rope is None:
                return _failed(
                    f"transformers {transformers.__version__} builds the model, but ropetool refuses it: {reading.refuses}"
                )
            figure, place = largest_difference(torch, model, reading.rope)
    except _BUILD_ERRORS as error:
        sentence = " ".join(str(error).split()).replace(os.path.abspath(target), target.name) or type(error).__name__
        return _failed(f"transformers {transformers.__version__} cannot build the model: {sentence:.300}")
    verdict = PASS if figure <= TORCH_TOLERANCE else FAIL
    detail = f"transformers {transformers.__version__} rotates by ropetool's table" if verdict == PASS else place
    return Check(ROTATION, figure if math.isfinite(figure) else None, TORCH_TOLERANCE, verdict, detail)


# The exceptions of transformers for a config from which it cannot build a model.
_BUILD_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError)


def _failed(detail: str) -> Check:
    return Check(ROTATION, None, TORCH_TOLERANCE, FAIL, detail)


def skeleton(torch: Any, transformers: Any, target: Path) -> Any:
    """Return the checkpoint's model on the meta device: all modules, without weights."""
    config = transformers.AutoConfig.from_pretrained(str(target), local_files_only=True, trust_remote_code=False)
    if type(config) not in transformers.AutoModelForCausalLM._model_mapping:
        config = config.get_text_config()  # the checkpoint is a wrapper
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def largest_difference(torch: Any, model: Any, rope: RopeSet) -> tuple[float, str]:
    """Return the largest difference of the model's rotary modules and softmax scales from a decoded rotation, and its place.

    Each module is rebuilt on the CPU for every length, as in a freshly loaded model. The module's cos and sin, which
    include the attention factor, are compared at positions 0, 1, 2 and the last one. The error of a float32 angle grows
    with the angle, so the difference is divided by 1 + angle in radians.
    """
    modules = {type(m): m.config for m in model.modules() if hasattr(m, "rope_type") and hasattr(m, "config")}
    if not modules:
        return math.inf, "the model has no rotary module"
    worst = _softmax_difference(model, rope)
    for make, config in modules.items():
        for layer_type, entry in rope.entries.items():
            for length, regime in _cases(entry, rope.max_position_embeddings):
                figure = _module_difference(torch, make(config=config), layer_type, length, regime)
                worst = max(
                    worst, (figure, f"{layer_type} at {length} tokens: the rotation of {make.__name__} differs")
                )
    return worst


def _cases(entry: LayerRope, context: int) -> list[tuple[int, Regime]]:
    """Return the lengths near which a table may change, and the decoded table there.

    These are the trained length, twice the trained length, the context length, and every switch of a table with
    regimes.
    """
    if entry.table is None:
        return []
    trained = entry.original_max_position_embeddings or context
    switches = [regime.up_to for regime in entry.table.regimes if regime.up_to is not None]
    lengths = {trained, trained + 2, 2 * trained, context, *switches, *(switch + 1 for switch in switches)}
    return [(length, entry.table.at(length)) for length in sorted(lengths)]


def _module_difference(torch: Any, module: Any, layer_type: str, length: int, regime: Regime) -> float:
    positions = np.array([0, 1, 2, length - 1])
    ids, values = torch.from_numpy(positions)[None], torch.zeros(1, 1, 1)
    nested = isinstance(module.rope_type, dict)
    if nested and layer_type not in module.rope_type:
        return math.inf
    with torch.inference_mode():
        output = module(values, ids, layer_type) if nested else module(values, ids)
    angles = positions[:, None] * regime.inv_freq
    # deepseek_v2 returns cos and sin as one complex number, all others as two tensors with every pair twice.
    cos, sin = output if isinstance(output, tuple) else (output.real, output.imag)
    return max(
        _per_angle(cos, np.cos(angles) * regime.attention_factor, angles, regime.attention_factor),
        _per_angle(sin, np.sin(angles) * regime.attention_factor, angles, regime.attention_factor),
    )


def _per_angle(output: Any, expected: Array, angles: Array, attention_factor: float) -> float:
    """Return the largest difference, divided by the attention factor and by 1 + angle.

    A module returns each pair once or twice: either all pairs and then all again, or each pair twice in a row (cohere).
    Shapes: output (1, positions, pairs or twice as many), expected and angles (positions, pairs).
    """
    values = output[0].double().numpy()
    pairs = expected.shape[1]
    if values.shape[1] % pairs:
        return math.inf
    again = values.reshape(len(expected), -1, pairs)
    in_a_row = values.reshape(len(expected), pairs, -1).transpose(0, 2, 1)
    scale = attention_factor * (1 + angles[:, None])
    figure = min(float(np.max(np.abs(given - expected[:, None]) / scale)) for given in (again, in_a_row))
    return math.inf if math.isnan(figure) else figure


def _softmax_difference(model: Any, rope: RopeSet) -> tuple[float, str]:
    """Return the largest difference of MLA's softmax scale. In other models, rope keys do not affect the softmax."""
    multiplier = rope.entries[names.FULL_ATTENTION].softmax_multiplier
    worst = 0.0
    for module in model.modules():
        if hasattr(module, "qk_nope_head_dim") and hasattr(module, "scaling"):
            channels = module.qk_nope_head_dim + module.qk_rope_head_dim
            worst = max(worst, abs(module.scaling * math.sqrt(channels) / multiplier - 1))
    return worst, "the softmax scale differs"
