"""Checkpoints that the tests of `ropetool diff` change themselves, and what the command says of two."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import copied, set_config, set_tensors, write_config
from running import Done, run
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def edited(source: Path, name: str, change: Callable[[Tensors], Tensors | None], **keys: Any) -> Path:
    """Write a copy with the tensors as `change` leaves or returns them, and these keys of config.json."""
    return set_config(set_tensors(copied(source, Path(name)), change), **keys)


def multiplied(factor: float, pattern: str, rows: Any = slice(None)) -> Callable[[Tensors], None]:
    """Return a change that multiplies these rows in float64 and rounds once."""

    def change(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if re.search(pattern, name):
                tensor[rows] = (tensor[rows].double() * factor).to(tensor.dtype)

    return change


def unchanged(_: Tensors) -> None:
    """Leave the tensors as they are."""


def diff(a: Path | str, b: Path | str, code: int) -> Any:
    """Return the comparison as JSON, after the text form was seen to end with the same code and verdict."""
    text = run("diff", a, b)
    assert text.code == code, text.out + text.err
    assert text.out.splitlines()[-1].startswith("the same in meaning" if code == 0 else "differs: ")
    done = run("diff", a, b, "--json")
    assert done.code == code
    assert (done.json["schema"], done.json["same"], bool(done.json["differences"])) == (1, code == 0, code == 3)
    return done.json


def relations(found: Any) -> dict[str, str]:
    return {entry["name"]: entry["relation"] for entry in found["tensors"]["not_identical"]}


def weights_of(text: Done) -> list[str]:
    """Return the lines about single tensors."""
    return text.out.partition("\nweights\n")[2].split("\n\n")[1].splitlines()


def written(name: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    folder = write_config(Path(name), config)
    stored = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    return folder
