"""The laboratory's models do what their papers say, its runs can be cut and go on, and its page says what was recorded."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from loading import script


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """Have gradients, whatever a test before this one has left switched off in the process."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    module = script("lab/train")
    module.model, module.training = sys.modules["lab_model"], sys.modules["lab_training"]
    return module


@pytest.fixture(scope="module")
def sizes(lab: ModuleType) -> Any:
    return lab.Sizes(vocabulary=11, width=16, inner=8, layers=4, heads=2, trained=12)


NAMES = (
    "plain", "log-n", "hwfa", "key-norm", "alibi", "pose", "randomized", "base-1e6", "hwfa2", "coca", "key-norm-no-rope",
    "hwfa-rotated", "hwfa-wide", "hwfa-no-log-n", "base-1e3", "base-1e5",
)  # fmt: skip


def naive(q: Any, k: Any, positions: Any, design: Any, sizes: Any, full: bool, change: Any) -> Any:
    """Return the scores of a layer in float64 from the formulas, one number at a time; q and k: (heads, length, channels)."""
    heads, length, d = q.shape
    f = design.base ** (-2 * np.arange(d // 2) / d) / (change.factor if change.method == "linear" else 1)
    out = np.full((heads, length, length), -np.inf)
    for h, m in itertools.product(range(heads), range(length)):
        for n in range(m + 1):
            if design.window and not full and m - n >= design.window:
                continue
            a = q[h, m, : d // 2] + 1j * q[h, m, d // 2 :]
            b = k[h, n, : d // 2] + 1j * k[h, n, d // 2 :] if not design.coca else a * np.maximum(k[h, n], 0)
            if design.key_norm:
                b = b / math.sqrt((abs(b) ** 2).sum())
            t = positions[m] - positions[n]
            if change.window and full and t > change.window:
                t = change.window + (t - change.window) / change.leak
            turned = not design.alibi and (not full or design.rotates)
            score = (a * b.conj() * np.exp(1j * f * t * turned)).sum().real
            score /= 1 if design.key_norm else math.sqrt(d)
            score -= (m - n) * 2 ** (-8 * (h + 1) / heads) * design.alibi
            temperature = math.log(m + 1) / math.log(sizes.trained)
            if design.logn == "all" or (design.logn == "full" and full):
                score *= temperature
            elif change.logn:
                score *= max(1, temperature)
            out[h, m, n] = score
    return out


def drawn(lab: ModuleType, design: Any, sizes: Any, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and positions of one row."""
    rng = np.random.default_rng(3)
    q = torch.from_numpy(rng.normal(size=(1, sizes.heads, length, sizes.head)))
    k = torch.from_numpy(rng.normal(size=(1, sizes.heads, length, sizes.head // (2 if design.coca else 1))))
    return q, k, lab.model.draw_positions(design.positions, 1, length, 96, rng)


def apart(lab: ModuleType, design: Any, real: Any, sizes: Any, full: bool, change: Any, real_change: Any) -> float:
    """Return how far the scores of a design are from the formulas of another one."""
    q, k, positions = drawn(lab, design, sizes, 40)
    got = lab.model.scores(q, k, positions, design, sizes, full, change)[0].numpy()
    want = naive(q[0].numpy(), k[0].numpy(), positions[0].numpy(), real, sizes, full, real_change)
    seen = np.isfinite(want)
    if not np.array_equal(np.isfinite(got), seen):
        return math.inf
    return float(abs(got[seen] - want[seen]).max())


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_attention_is_that_of_the_formulas(lab: ModuleType, sizes: Any, name: str, full: bool) -> None:
    design = lab.designs(sizes)[name]
    for change in lab.extensions(design).values():
        if change.method in ("", "linear"):  # the other tables are compared elsewhere
            change = replace(change, window=change.window and 8)
            assert apart(lab, design, design, sizes, full, change, change) < 1e-12


def test_every_design_is_tested(lab: ModuleType, sizes: Any) -> None:
    assert tuple(lab.designs(sizes)) == NAMES


DEFECTS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "another base": ("plain", True, {"base": 10001.0}),
    "no log-n": ("log-n", True, {"logn": ""}),
    "log-n in one kind of layer": ("hwfa", True, {"logn": ""}),
    "rotation where HWFA has none": ("hwfa", True, {"rotates": True}),
    "a window off by one": ("hwfa", False, {"window": 5}),
    "HWFA2 does not rotate": ("hwfa2", True, {"rotates": False}),
    "keys as they come": ("key-norm", True, {"key_norm": False}),
    "no slope": ("alibi", True, {"alibi": False}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_switch_is_seen(lab: ModuleType, sizes: Any, defect: str) -> None:
    name, full, changed = DEFECTS[defect]
    design = lab.designs(sizes)[name]
    none = lab.Extension()
    assert apart(lab, replace(design, **changed), design, sizes, full, none, none) > 1e-6


def test_a_gate_of_coca_that_may_be_negative_and_a_window_off_by_one_are_seen(
    lab: ModuleType, sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = lab.designs(sizes)["plain"]
    rerope = lab.Extension(window=8)
    assert apart(lab, plain, plain, sizes, True, lab.Extension(window=9), rerope) > 1e-6
    assert apart(lab, plain, plain, sizes, True, lab.Extension(window=8, leak=16), rerope) > 1e-6
    assert apart(lab, plain, plain, sizes, True, lab.Extension(logn=True), lab.Extension()) > 1e-6
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x)
    coca = lab.designs(sizes)["coca"]
    assert apart(lab, coca, coca, sizes, True, lab.Extension(), lab.Extension()) > 1e-6


def test_a_method_of_ropetool_gives_its_table(lab: ModuleType, sizes: Any) -> None:
    frequencies, factor = lab.model.table(lab.Design(), sizes, lab.Extension("ntk", 8))
    textbook = (1e4 * 8 ** (8 / 6)) ** (-np.arange(0, 8, 2) / 8)
    assert np.allclose(frequencies, textbook, rtol=1e-12)
    assert factor == 1
    assert lab.model.table(lab.Design(), sizes, lab.Extension("yarn", 8))[1] == pytest.approx(0.1 * math.log(8) + 1)


def reached(model: Any, length: int, target: int) -> list[int]:
    """Return which inputs change what the layers before the last one give at a token."""
    x = torch.randn(1, length, model.embedding.embedding_dim, requires_grad=True)
    y = x
    for layer in model.layers[:-1]:
        y = layer(y, torch.arange(length)[None].double(), model.none)
    y[0, target].sum().backward()
    assert x.grad is not None
    return torch.nonzero(x.grad[0].abs().sum(dim=-1)).flatten().tolist()


def test_the_windows_of_hwfa_reach_three_quarters_of_the_trained_length(lab: ModuleType) -> None:
    for layers, trained in itertools.product(range(2, 9), (48, 64, 100, 512)):
        w = lab.model.largest_window(lab.Sizes(layers=layers, trained=trained))
        assert (w - 1) * (layers - 1) + 1 <= 0.75 * trained < w * (layers - 1) + 1
    sizes = lab.Sizes(vocabulary=5, width=8, inner=8, layers=4, heads=1, trained=16)
    torch.manual_seed(0)
    model = lab.model.Model(lab.designs(sizes)["hwfa"], sizes)
    model.none = lab.Extension()
    field = (4 - 1) * (4 - 1) + 1  # w is 4: 3 times 3 tokens before itself, of 12 that are allowed
    assert reached(model, 24, 20) == list(range(20 - field + 1, 21))


def test_positions_are_what_the_papers_say(lab: ModuleType) -> None:
    rng = np.random.default_rng(0)
    draw = partial(lab.model.draw_positions, length=8, target=64, rng=rng)
    assert draw("plain", 5).tolist() == [list(range(8))]
    randomized = draw("randomized", 4000).numpy()
    assert (np.diff(randomized) > 0).all()
    assert (randomized.min(), randomized.max()) == (0, 63)
    # Of a random subset the i-th of k out of n numbers from 0 has the mean i (n + 1) / (k + 1) - 1.
    assert np.allclose(randomized.mean(axis=0), np.arange(1, 9) * 65 / 9 - 1, atol=0.6)
    assert lab.model.draw_positions("randomized", 1, 64, 64, rng).tolist() == [list(range(64))]
    pose = draw("pose", 4000).numpy()
    steps = np.diff(pose)
    assert (pose[:, 0] == 0).all()
    assert ((steps != 1).sum(axis=1) <= 1).all()
    skipping = (steps != 1).any(axis=1)
    assert 0.95 < skipping.mean() < 1  # of 57 numbers of positions that may be skipped one is none
    assert set(np.argmax(steps[skipping], axis=1)) == set(range(7))  # the border is anywhere
    assert set(pose[:, -1]) == set(range(7, 64))  # so every distance up to the target is met
    assert set((pose[:, 1:, None] - pose[:, None, :-1]).ravel()) >= set(range(1, 64))


def trained(lab: ModuleType, sizes: Any, folder: Path, stop: int = 0) -> dict[str, torch.Tensor]:
    """Return the weights of a run of seven steps that is cut after `stop` and begun again."""
    recipe = lab.Recipe(steps=7, batch=2, saved_every=2)
    documents = [np.random.default_rng(n).integers(1, 11, 400) for n in range(2)]
    design = lab.designs(sizes)["pose"]

    def said(step: int, loss: float) -> None:
        if step == stop:
            raise KeyboardInterrupt

    run = partial(lab.train, design, sizes, recipe, partial(lab.text_batch, design, sizes, recipe, documents), folder)
    if stop:
        with pytest.raises(KeyboardInterrupt):
            run(said)
    return dict(run().state_dict())


def test_a_run_that_was_cut_ends_in_the_same_weights(
    lab: ModuleType, sizes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(lab, sizes, tmp_path / "whole")
    cut = trained(lab, sizes, tmp_path / "cut", stop=6)
    assert all(torch.equal(cut[name], weight) for name, weight in whole.items())
    assert len(list((tmp_path / "cut").iterdir())) == 1
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda place: load(place) | {"step": 3})  # a defect: a step more than was kept
    defect = trained(lab, sizes, tmp_path / "defect", stop=4)
    assert any(not torch.equal(defect[name], weight) for name, weight in whole.items())


class Copies(torch.nn.Module):
    """A model that says again what stood `back` tokens before."""

    def __init__(self, back: int) -> None:
        super().__init__()
        self.back = back
        self.seen: list[np.ndarray] = []

    def forward(self, tokens: Any, positions: Any, extension: Any, keep: int) -> torch.Tensor:
        self.seen.append(tokens.numpy())
        said = torch.nn.functional.one_hot(tokens.roll(self.back - 1, dims=1), 11).float()
        return said[:, -keep:]


def test_scores_are_of_the_last_tokens_and_of_the_same_ones(lab: ModuleType, sizes: Any) -> None:
    documents = [np.random.default_rng(n).integers(0, 11, 16 * 96) for n in range(3)]
    copies = Copies(12)
    found = lab.score(copies, lab.Design(), sizes, documents, lab.Extension())
    assert found["repeated"]["accuracy"] == [1, 1, 1]
    assert max(found["longer"]["accuracy"]) < 0.3
    short, long, repeated = np.split(np.array([row[-12:] for rows in copies.seen for row in rows]), 3)
    assert (short == long).all()
    assert (short == repeated).all()
    documents[1][:] = 4  # a text of one token, which any copy knows
    found = lab.score(Copies(5), lab.Design(), sizes, documents, lab.Extension())
    for kind in ("trained", "longer", "repeated"):
        assert found[kind]["accuracy"][1] == 1
        assert max(found[kind]["accuracy"][::2]) < 0.3
    rows = np.arange(96)[None] % 11
    right, _ = lab.training.hits(Copies(11), lab.Design(), sizes, rows, lab.Extension())
    assert right.shape == (1, 6)
    assert right.all()


def test_even_pairs_ask_for_the_first_symbol(lab: ModuleType, sizes: Any) -> None:
    tokens, _, targets = lab.training.pairs_batch("plain", sizes, 50, 9, np.random.default_rng(0))
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        assert wanted[:2] == [-100, -100]
        assert wanted[2:] == [4 if symbol == row[1] else 3 for symbol in row[2:]]
    assert {1, 2} == set(tokens[:, 1:].flatten().tolist())


def test_rows_repeat_and_held_out_text_is_not_trained_on(
    lab: ModuleType, sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [np.arange(1, 1000)]
    recipe = lab.Recipe(batch=400, repeats=0.5)
    tokens, _, targets = lab.text_batch(lab.Design(), sizes, recipe, documents, 0)
    assert torch.equal(targets[:, :-1], tokens[:, 1:])
    bodies = [row[1:] if row[0] == 0 else row for row in tokens.tolist()]
    again = sum(len(set(body)) < len(body) for body in bodies)
    assert 150 < again < 250
    assert 150 < sum(row[0] == 0 for row in tokens.tolist()) < 250
    monkeypatch.setattr(lab.training, "HELD_OUT", 3000)
    text = "".join(f"{n} " for n in range(2000))
    document = lab.training.long_documents()[0]
    monkeypatch.setattr(lab.training, "long_documents", lambda: [replace(document, text=text)])
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(lab.training.TOKENIZER))
    (train,), (held_out,) = lab.training.texts()
    assert tokenizer.decode(held_out.tolist()) == text[:3000]
    assert tokenizer.decode(train.tolist()) == text[3000:]


def test_the_page_says_what_was_recorded(lab: ModuleType) -> None:
    record = lab.page.known()
    every = lab.designs(lab.SIZES)
    assert {name: row["made"] for name, row in record.items()} == {name: lab.made(every[name]) for name in record}
    methods = {name: list(lab.extensions(design)) for name, design in every.items()}
    assert lab.page.on_page() == lab.page.text(record, methods)
    assert lab.page.text({}, methods).count("not run") == sum(map(len, methods.values()))
