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

from conformance_kit import mistakes
from conformance_kit.cases import MISTAKES, OFF_BY_ONE, PARTIAL, Calls, Case, config
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.identify.hypotheses import hypotheses
from ropetool.rope.tables import Regime, RopeSet
from ropetool.verification.runners.torch_library import quiet
from ropetool.verification.runners.torch_rotation import set_tables

Array = npt.NDArray[np.float64]
RIGHT = "right"
ROUNDED = "q8_0"


@dataclass(frozen=True)
class Table:
    """A way to compute a case.

    name: of the mistake, or RIGHT.
    says: what the name leaves open.
    changes: of the config, if they make the mistake.
    """

    name: str
    says: str
    rope: RopeSet
    changes: Mapping[str, Any] | None = None


def tables(folder: Path, case: Case) -> list[Table]:
    """Return the right table of a checkpoint and all wrong ones.

    A mistake of MISTAKES changes only the table. If it also changes the multiplier of the score, as in MLA, the case has a
    change of the config for it.
    """
    intended, *others = hypotheses(HfCheckpoint.open(folder))
    listed = [Table(RIGHT, intended.says, intended.rope)]
    left_out = {*case.wrong, *case.not_asked}
    listed += [
        Table(one.name, one.says, one.rope) for one in others if one.name in MISTAKES and one.name not in left_out
    ]
    for name, changes in case.wrong.items():
        with _changed(folder, case, changes) as other:
            says = mistakes.SAYS[name] if name == PARTIAL else ""
            listed.append(Table(name, says, hypotheses(HfCheckpoint.open(other))[0].rope, changes))
    listed += [Table(name, mistakes.SAYS[name], intended.rope) for name in case.engines]
    return listed


@contextlib.contextmanager
def _changed(folder: Path, case: Case, changes: Mapping[str, Any] | None) -> Iterator[Path]:
    """Yield a copy of a checkpoint whose config has changes; without any, the checkpoint."""
    if changes is None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(shutil.copytree(folder, Path(scratch) / "model"))
        before = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kept = {key: before[key] for key in ("architectures", "torch_dtype")}
        (copied / "config.json").write_text(json.dumps({**kept, **config(case, changes)}), encoding="utf-8")
        yield copied


def log_probs(folder: Path, case: Case, table: Table, ids: Sequence[int]) -> list[Array]:
    """Return for each prompt the log probabilities of every token behind each of its tokens.

    Shapes: (tokens, vocabulary) each. Units: nats.
    """
    import torch
    from bake_models import everything_in_float64

    calls = case.calls
    by_prompt: dict[int, Array] = {}
    with _changed(folder, case, table.changes) as place, everything_in_float64(), torch.no_grad():
        model = load(place, "float64")
        family = HfCheckpoint.open(place).family
        for row in calls.rows():
            positions = mistakes.positions(table.name, calls, row)
            rotation = (
                "" if calls.share and table.name == OFF_BY_ONE else table.name
            )  # a later turn that starts late rotates queries and keys alike
            for regimes, prompts in _by_table(table.rope, calls, row):
                groups = {family.rope_groups.get(kind, kind): regime for kind, regime in regimes.items()}
                set_tables(model, groups, family.nested)
                length = max(calls.lengths[prompt] for prompt in prompts)
                with mistakes.mistaken(model, rotation, table.rope, length):
                    logits = _logits(model, ids[:length], positions[:length])
                scores = torch.log_softmax(logits, -1).numpy()
                by_prompt |= {prompt: scores[: calls.lengths[prompt]] for prompt in prompts}
    return [by_prompt[prompt] for prompt in range(len(calls.lengths))]


def own_log_probs(folder: Path, calls: Calls, ids: Sequence[int], dtype: str) -> list[Array]:
    """Return the same of unchanged transformers, which reads the config itself and computes every prompt afresh.

    dtype: of torch, or `q8_0` for float32 with the inputs of matrices rounded as ggml rounds them for weights in q8_0.
    """
    import torch

    rounded = dtype == ROUNDED
    with torch.no_grad():
        scores = []
        for length in calls.lengths:
            model = load(folder, "float32" if rounded else dtype)  # again: a dynamic table keeps to the longest call
            if rounded:
                _round_inputs(model)
            logits = _logits(model, ids[:length], range(length))
            scores.append(torch.log_softmax(logits, -1).numpy())
    return scores


def _logits(model: Any, ids: Sequence[int], positions: Sequence[int]) -> Any:
    import torch

    rows, places = torch.tensor([list(ids)]), torch.tensor([list(positions)])
    # Without a mask, transformers takes a jump of the positions for the beginning of another sequence.
    mask = {} if list(positions) == list(range(len(ids))) else {"attention_mask": torch.ones_like(rows)}
    return model(rows, position_ids=places, use_cache=False, **mask).logits[0].double()


def _round_inputs(model: Any) -> None:
    """Round the inputs of all linear layers to blocks of 32 numbers of 8 bits, as ggml does for weights in q8_0."""
    import torch

    def rounded(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        blocks = arguments[0].unflatten(-1, (-1, 32))
        step = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
        numbers = torch.where(step > 0, blocks / step.clamp(min=1e-20), 0).round().clamp(-127, 127)
        return ((numbers * step).flatten(-2), *arguments[1:])

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)


def load(folder: Path, dtype: str) -> Any:
    import torch
    import transformers

    with quiet(transformers):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager"
        ).eval()


def _by_table(rope: RopeSet, calls: Calls, row: Sequence[int]) -> Iterator[tuple[Mapping[str, Regime], list[int]]]:
    """Yield the tables by which the prompts of a row are computed, each with the indexes of its prompts."""
    groups: list[tuple[Mapping[str, Regime], list[int]]] = []
    for prompt in row:
        length = calls.lengths[prompt]
        regimes = {kind: entry.table.at(length) for kind, entry in rope.entries.items() if entry.table is not None}
        same = next(
            (group for known, group in groups if all(_same(known[kind], regimes[kind]) for kind in regimes)), None
        )
        if same is None:
            groups.append((regimes, [prompt]))
        else:
            same.append(prompt)
    yield from groups


def _same(one: Regime, other: Regime) -> bool:
    return one.attention_factor == other.attention_factor and np.array_equal(one.inv_freq, other.inv_freq)
