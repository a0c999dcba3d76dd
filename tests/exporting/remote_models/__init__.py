"""Tiny checkpoints of classes that only remote code has, by class, and who computes their logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import tokenizer_making

from exporting.remote_models.dense import DENSE
from exporting.remote_models.experts import EXPERTS
from exporting.remote_models.filling import FILLING
from exporting.remote_models.making import TOKENIZER_CONFIG, VOCABULARY, Remote, Twin, Written

__all__ = ["REMOTE", "TOKENIZER_CONFIG", "VOCABULARY", "make", "oracle", "twin_logits"]

REMOTE: dict[str, Remote] = {**DENSE, **EXPERTS, **FILLING}


def make(architecture: str, folder: Path) -> str:
    """Write the tiny checkpoint of a class, and return its model_type."""
    import torch
    from safetensors.torch import save_file

    remote = REMOTE[architecture]
    folder.mkdir(parents=True)
    config = {"architectures": [architecture], "torch_dtype": "float32", "vocab_size": VOCABULARY, **remote.config}
    models.save(folder / "config.json", config)
    models.save(folder / "tokenizer.json", tokenizer_making.by_hand())
    models.save(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    save_file({name: torch.from_numpy(one) for name, one in remote.arrays().items()}, folder / "model.safetensors")
    if remote.indexed:
        index = {"metadata": {}, "weight_map": dict.fromkeys(remote.shapes(), "model.safetensors")}
        models.save(folder / "model.safetensors.index.json", index)
    return str(config["model_type"])


def oracle(architecture: str) -> str:
    """Return who computes the logits of a class."""
    twin = REMOTE[architecture].twin
    return "mlx-lm" if twin is None else twin.architecture if isinstance(twin, Twin) else twin.source


def twin_logits(architecture: str, tokens: list[int]) -> np.ndarray:
    """Return the logits of who computes the same in this process, in float64, (tokens, rows).

    Raises: AssertionError for a weight that the class has not, or that the checkpoint has not.
    """
    import torch

    remote = REMOTE[architecture]
    assert remote.twin is not None
    with torch.no_grad():
        compute = _written if isinstance(remote.twin, Written) else _of_twin
        return np.asarray(compute(remote, torch.tensor([tokens])).numpy(), np.float64)


def _written(remote: Remote, ids: Any) -> Any:
    import torch

    assert isinstance(remote.twin, Written)
    tensors = {name: torch.from_numpy(one).double() for name, one in remote.arrays().items()}
    return remote.twin.logits(tensors, remote.config, ids[0])


def _of_twin(remote: Remote, ids: Any) -> Any:
    import torch
    import transformers

    twin = remote.twin
    assert isinstance(twin, Twin)
    kind = getattr(transformers, twin.architecture)
    weights = {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in twin.weights(remote.arrays()).items()}
    model, said = kind.from_pretrained(
        None, config=kind.config_class(vocab_size=VOCABULARY, **twin.config), state_dict=weights,
        attn_implementation="eager", experts_implementation="eager", output_loading_info=True,
    )  # fmt: skip
    assert not said["unexpected_keys"], f"the class has no {said['unexpected_keys']}"
    missing = [name for name in said["missing_keys"] if not name.endswith(("_decay", "slope_rate"))]  # made, not stored
    assert not missing, f"the checkpoint has no {missing}"
    assert not said["mismatched_keys"], f"of another shape: {said['mismatched_keys']}"
    extra = {"attention_mask": torch.zeros(1, 1, ids.shape[1], ids.shape[1])} if twin.sees_all else {}
    return model.double().eval()(ids, use_cache=False, **extra).logits[0]
