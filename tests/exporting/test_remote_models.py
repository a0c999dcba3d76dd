"""Configs of remote code that llama.cpp computes otherwise are refused, and two classes under one model_type are told apart."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from models import write_config

from exporting.remote_models import REMOTE
from ropetool import families
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport
from ropetool.families.wrappers import TOLD_APART
from ropetool.gguf_export.converter import computable

STATED = {name: {"architectures": [name], **remote.config} for name, remote in REMOTE.items()}
TAKEN = [(name, key) for name, config in STATED.items() for key in families.of_config(config).fixed]


def changed(config: Mapping[str, Any], keys: Sequence[str], *value: Any) -> dict[str, Any]:
    """Return a config with another value where keys lead, in the first entry of a list, or without the last of them."""
    found = copy.deepcopy(dict(config))
    part: Any = found
    *outer, last = keys
    for one in outer:
        part = part[one][0] if isinstance(part[one], list) else part[one]
    part.pop(last, None)
    if value:
        (part[last],) = value
    return found


@pytest.mark.parametrize("name", REMOTE)
def test_what_published_files_state_is_computed(name: str, tmp_path: Path) -> None:
    reason = families.of_config(STATED[name]).not_computed
    if reason:
        with pytest.raises(LossyExport, match=f"but computes something else: {re.escape(reason)}$"):
            computable.check(HfCheckpoint.open(write_config(tmp_path / "m", STATED[name])))
        return
    computable.check(HfCheckpoint.open(write_config(tmp_path / "m", STATED[name])))


@pytest.mark.parametrize(("name", "key"), TAKEN)
def test_what_llama_cpp_takes_for_granted_is_refused_otherwise(name: str, key: str, tmp_path: Path) -> None:
    keys = [*families.of_config(STATED[name]).text_path, *key.split(".")]
    other = HfCheckpoint.open(write_config(tmp_path / "other", changed(STATED[name], keys, "another")))
    with pytest.raises(LossyExport, match=f': {key} is "another"; for .*, llama.cpp computes as if it were'):
        computable.check(other)
    checkpoint = HfCheckpoint.open(write_config(tmp_path / "silent", changed(STATED[name], keys)))
    if None in families.of_config(STATED[name]).fixed[key]:
        computable.check(checkpoint)
    else:
        with pytest.raises(LossyExport, match=f": {key} is not set, and its default differs; "):
            computable.check(checkpoint)


@pytest.mark.parametrize("name", TOLD_APART)
def test_two_classes_under_one_model_type_are_told_apart_by_a_key(name: str) -> None:
    key, other = TOLD_APART[name]
    assert families.of_config({"model_type": name, key: 4}).model_type == other
    assert families.of_config({"model_type": name}).model_type == name
    assert families.of_config({"model_type": name, key: 4}).name == name
