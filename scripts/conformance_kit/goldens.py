"""What a checkpoint computes by the right table and by each wrong one: log probabilities in float64.

The model is transformers', every cast to float32 replaced, with each table of a case set into its rotary modules. Two things
from elsewhere stand against that: transformers as it is, in float32 (`own_log_probs`), and the formulas of the papers, in the tests.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance_kit.cases import LENGTHS, MISTAKES, Case, config
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.identify.hypotheses import hypotheses
from ropetool.rope.tables import Regime, RopeSet
from ropetool.verification.runners.torch_library import quiet
from ropetool.verification.runners.torch_rotation import set_tables

Array = npt.NDArray[np.float64]
RIGHT = "right"


@dataclass(frozen=True)
class Table:
    """A way to compute a case. says: what the name leaves open. changes: of its config, where they make the mistake."""

    name: str
    says: str
    rope: RopeSet
    changes: Mapping[str, Any] | None = None


def tables(folder: Path, case: Case) -> list[Table]:
    """Return the right table of a checkpoint and all wrong ones.

    Of a mistake that changes the multiplier of the score too, as MLA has it, only the table counts here: what is left out of the
    score stands among the changes of a case.
    """
    meant, *others = hypotheses(HfCheckpoint.open(folder))
    found = [Table(RIGHT, meant.says, meant.rope)]
    left_out = {*case.wrong, *case.not_asked}
    found += [
        Table(one.name, one.says, one.rope) for one in others if one.name in MISTAKES and one.name not in left_out
    ]
    for name, changes in case.wrong.items():
        with _changed(folder, case, changes) as other:
            found.append(Table(name, "", hypotheses(HfCheckpoint.open(other))[0].rope, changes))
    return found


@contextlib.contextmanager
def _changed(folder: Path, case: Case, changes: Mapping[str, Any] | None) -> Iterator[Path]:
    """Yield a copy of a checkpoint whose config has changes; without any, the checkpoint."""
    if changes is None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(shutil.copytree(folder, Path(scratch) / "model"))
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kept = {key: stated[key] for key in ("architectures", "torch_dtype")}
        (copied / "config.json").write_text(json.dumps({**kept, **config(case, changes)}), encoding="utf-8")
        yield copied


def log_probs(folder: Path, case: Case, table: Table, ids: Sequence[int]) -> list[Array]:
    """Return for each prompt the log probabilities of every token behind each of its tokens.

    Shapes: (tokens, vocabulary) each. Units: nats.
    """
    import torch
    from bake_models import everything_in_float64

    with _changed(folder, case, table.changes) as place, everything_in_float64(), torch.no_grad():
        model = load(place, "float64")
        nested = HfCheckpoint.open(place).family.nested
        found: dict[int, Array] = {}
        for regimes, lengths in _by_table(table.rope):
            set_tables(model, regimes, nested)
            logits = model(torch.tensor([list(ids[: max(lengths)])]), use_cache=False).logits[0]
            scores = torch.log_softmax(logits.double(), -1).numpy()
            found |= {length: scores[:length] for length in lengths}
    return [found[length] for length in LENGTHS]


def own_log_probs(folder: Path, ids: Sequence[int], dtype: str) -> list[Array]:
    """Return the same of transformers as it is, which reads the config itself."""
    import torch

    with torch.no_grad():
        found = []
        for length in LENGTHS:
            model = load(folder, dtype)  # anew: a dynamic table keeps to the longest call
            logits = model(torch.tensor([list(ids[:length])]), use_cache=False).logits[0]
            found.append(torch.log_softmax(logits.double(), -1).numpy())
    return found


def load(folder: Path, dtype: str) -> Any:
    import torch
    import transformers

    with quiet(transformers):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager"
        ).eval()


def _by_table(rope: RopeSet) -> Iterator[tuple[Mapping[str, Regime], list[int]]]:
    """Yield the tables that prompts of these lengths are computed by, each with its lengths."""
    groups: list[tuple[Mapping[str, Regime], list[int]]] = []
    for length in LENGTHS:
        regimes = {kind: entry.table.at(length) for kind, entry in rope.entries.items() if entry.table is not None}
        same = next(
            (group for known, group in groups if all(_same(known[kind], regimes[kind]) for kind in regimes)), None
        )
        if same is None:
            groups.append((regimes, [length]))
        else:
            same.append(length)
    yield from groups


def _same(one: Regime, other: Regime) -> bool:
    return one.attention_factor == other.attention_factor and np.array_equal(one.inv_freq, other.inv_freq)
