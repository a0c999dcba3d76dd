"""The laboratory's models do what their papers say, its runs can be cut and go on, and its page says what was recorded."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    """Have gradients, whatever a test before this one has left switched off, and one thread, as the scripts have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode(False), torch.enable_grad():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    module = script("lab/train")
    module.model, module.training = sys.modules["lab_model"], sys.modules["lab_training"]
    module.rotation, module.designing = sys.modules["lab_rotation"], sys.modules["lab_designs"]
    return module


@pytest.fixture(scope="module")
def sizes(lab: ModuleType) -> Any:
    return lab.rotation.Sizes(vocabulary=11, width=16, inner=8, layers=4, heads=2, trained=12)


@dataclass(frozen=True)
class Formula:
    """A design in the words of its source, for one number at a time.

    windows: layers that see so many tokens (of 4; the lab's sizes here give HWFA windows of 3, and half the length is 6).
    still: layers that do not rotate. logn: layers with ln n / ln L. beyond: where distances begin to count otherwise, and by what.
    """

    base: float = 1e4
    windows: tuple[int, int, int, int] = (0, 0, 0, 0)
    still: tuple[int, ...] = ()
    logn: tuple[int, ...] = ()
    key_norm: bool = False
    gates: bool = False
    bias: str = ""
    beyond: tuple[float, float] | None = None
    positions: str = "plain"
    heads: int = 2


EVERY = (0, 1, 2, 3)
HWFA = Formula(windows=(3, 3, 3, 0), still=(3,), logn=(3,))
FORMULAS: dict[str, Formula] = {
    "plain": Formula(),
    "log-n": Formula(logn=EVERY),
    "hwfa": HWFA,
    "key-norm": Formula(key_norm=True),
    "alibi": Formula(still=EVERY, bias="alibi"),
    "pose": Formula(positions="pose"),
    "randomized": Formula(positions="randomized"),
    "base-1e6": Formula(base=1e6),
    "hwfa2": Formula(windows=(1, 1, 0, 1), logn=(2,)),
    "coca": Formula(gates=True),
    "key-norm-no-rope": Formula(key_norm=True, still=EVERY),
    "hwfa-rotated": replace(HWFA, still=()),
    "hwfa-wide": replace(HWFA, windows=(6, 6, 6, 0)),
    "hwfa-no-log-n": replace(HWFA, logn=()),
    "base-1e3": Formula(base=1e3),
    "base-1e5": Formula(base=1e5),
    "hwfa-windows-unrotated": replace(HWFA, still=EVERY),
    "hwfa-windows-alone": Formula(windows=(3, 3, 3, 3)),
    "hwfa-two-full": Formula(windows=(3, 3, 0, 0), still=(2, 3), logn=(2, 3)),
    "rerope-trained": Formula(beyond=(6, math.inf)),
    "inverse-leaky-rerope": Formula(logn=EVERY),
    "kerple": Formula(still=EVERY, bias="kerple"),
    "sandwich": Formula(still=EVERY, bias="sandwich"),
    "xpos": Formula(bias="xpos"),
    "coca-one-head": Formula(gates=True, heads=1),
    "plain-one-head": Formula(heads=1),
}
ONE_HEAD = ("hwfa", "alibi", "sandwich", "xpos", "kerple")
FORMULAS.update({f"post-norm-{name}-one-head": replace(FORMULAS[name], heads=1) for name in ONE_HEAD})
INVERSE_LEAKY_TRAINED = Formula(logn=EVERY, beyond=(3, 1 / 16))
LENGTH = 20
R1, R2 = (0.3, 0.9), (0.5, 1.5)  # what KERPLE learned, for each head


def naive(q: Any, k: Any, positions: Any, formula: Formula, layer: int, trained: int, change: Any) -> Any:
    """Return the scores of a layer in float64 from the formulas, one number at a time; q and k: (heads, length, channels)."""
    heads, length, d = q.shape
    f = formula.base ** (-2 * np.arange(d // 2) / d) / (change.factor if change.method == "linear" else 1)
    out = np.full((heads, length, length), -np.inf)
    for h, m in itertools.product(range(heads), range(length)):
        for n in range(m + 1):
            if formula.windows[layer] and m - n >= formula.windows[layer]:
                continue
            a = q[h, m, : d // 2] + 1j * q[h, m, d // 2 :]
            b = k[h, n, : d // 2] + 1j * k[h, n, d // 2 :] if not formula.gates else a * np.maximum(k[h, n], 0)
            if formula.key_norm:
                b = b / math.sqrt((abs(b) ** 2).sum())
            shrunk = (
                ((np.arange(d // 2) * 2 / d + 0.4) / 1.4) ** ((m - n) / (trained / 2)) if formula.bias == "xpos" else 1
            )
            t = counted(positions[m] - positions[n], formula, change)
            score = (a * b.conj() * np.exp(1j * f * t * (layer not in formula.still)) * shrunk).sum().real
            score /= 1 if formula.key_norm else math.sqrt(d)
            score += bias(formula.bias, m - n, h, heads, d)
            temperature = math.log(m + 1) / math.log(trained)
            if layer in formula.logn:
                score *= temperature
            elif change.logn:
                score *= max(1, temperature)
            out[h, m, n] = score
    return out


def counted(t: float, formula: Formula, change: Any) -> float:
    """Return how far a distance counts."""
    window, leak = (change.window, change.leak) if change.window else formula.beyond or (math.inf, 1)
    return window + (t - window) / leak if t > window else t


def bias(name: str, t: int, head: int, heads: int, d: int) -> float:
    """Return what is added to a score at a distance."""
    if name == "alibi":
        return -t * 2 ** (-8 * (head + 1) / heads)
    if name == "kerple":
        return -math.log1p(math.exp(R1[head])) * math.log1p(math.log1p(math.exp(R2[head])) * t)
    if name == "sandwich":
        m = np.stack([np.sin(7 * 1e4 ** (-2 * np.arange(d // 2) / d)), np.cos(7 * 1e4 ** (-2 * np.arange(d // 2) / d))])
        n = np.stack(
            [
                np.sin((7 - t) * 1e4 ** (-2 * np.arange(d // 2) / d)),
                np.cos((7 - t) * 1e4 ** (-2 * np.arange(d // 2) / d)),
            ]
        )
        return float((m * n).sum() / (8 * (head + 1) / heads))
    return 0.0


def apart(
    lab: ModuleType,
    name: str,
    sizes: Any,
    layer: int,
    change: Any,
    *,
    formula: Formula | None = None,
    against: Any = None,
    training: bool = False,
) -> float:
    """Return how far the scores of a design are from a formula, which is its own if none is given."""
    design, formula = lab.DESIGNS[name], formula or FORMULAS[name]
    model = lab.model.Model(design, sizes).double().train(training)
    heads, rng = formula.heads, np.random.default_rng(3)
    if design.learned:
        for part in model.layers:
            for key, values in (("r1", R1), ("r2", R2)):
                part.learned[key].data = torch.tensor(values[:heads], dtype=torch.float64)
    q = torch.from_numpy(rng.normal(size=(1, heads, LENGTH, 16 // heads)))
    k = torch.from_numpy(rng.normal(size=(1, heads, LENGTH, 16 // heads // (2 if design.gates else 1))))
    positions = lab.rotation.draw_positions(formula.positions, 1, LENGTH, 96, rng)
    with torch.no_grad():
        got = model.layers[layer].scores(q, k, positions, change)[0].numpy()
    expected = naive(q[0].numpy(), k[0].numpy(), positions[0].numpy(), formula, layer, sizes.trained, against or change)
    seen = np.isfinite(expected)
    if got.shape != expected.shape or not np.array_equal(np.isfinite(got), seen):
        return math.inf
    return float(abs(got[seen] - expected[seen]).max())


@pytest.mark.parametrize("layer", EVERY)
@pytest.mark.parametrize("name", FORMULAS)
def test_attention_is_that_of_the_formulas(lab: ModuleType, sizes: Any, name: str, layer: int) -> None:
    for method in lab.DESIGNS[name].extensions:
        change = lab.extensions(sizes, 8)[method]
        if change.method in ("", "linear"):  # the other tables are compared elsewhere
            assert apart(lab, name, sizes, layer, replace(change, window=change.window and 8)) < 1e-12


def test_inverse_leaky_rerope_trains_with_long_steps(lab: ModuleType, sizes: Any) -> None:
    none = lab.rotation.Extension()
    assert apart(lab, "inverse-leaky-rerope", sizes, 1, none, training=True, formula=INVERSE_LEAKY_TRAINED) < 1e-12
    assert apart(lab, "inverse-leaky-rerope", sizes, 1, none, training=True) > 1e-6


def test_every_design_is_tested(lab: ModuleType) -> None:
    for name, design in lab.DESIGNS.items():
        if name.startswith("post-norm-"):
            before = lab.DESIGNS[name.removeprefix("post-norm-").removesuffix("-one-head")]
            assert replace(design, post_norm=False, heads=0) == replace(before, extensions=("none",))
        else:
            assert name in FORMULAS


DEFECTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "another base": ("plain", 3, {"base": 10001.0}),
    "no log-n": ("log-n", 3, {"logn": ()}),
    "log-n in one kind of layer": ("hwfa", 3, {"logn": ()}),
    "rotation where HWFA has none": ("hwfa", 3, {"still": ()}),
    "a window off by one": ("hwfa", 0, {"windows": (4, 4, 4, 0)}),
    "HWFA2 does not rotate": ("hwfa2", 2, {"still": (2,)}),
    "keys as they come": ("key-norm", 3, {"key_norm": False}),
    "no slope": ("alibi", 3, {"bias": ""}),
    "KERPLE without its logarithm": ("kerple", 0, {"bias": "alibi"}),
    "Sandwich without its product": ("sandwich", 0, {"bias": ""}),
    "xPos that does not shrink": ("xpos", 0, {"bias": ""}),
    "ReRoPE that goes on counting": ("rerope-trained", 0, {"beyond": None}),
    "ReRoPE with a window off by one": ("rerope-trained", 0, {"beyond": (7, math.inf)}),
    "one window too many": ("hwfa-two-full", 2, {"windows": (3, 3, 3, 0)}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_formula_is_seen(lab: ModuleType, sizes: Any, defect: str) -> None:
    name, layer, changed = DEFECTS[defect]
    wrong = replace(FORMULAS[name], **changed)
    assert apart(lab, name, sizes, layer, lab.rotation.Extension(), formula=wrong) > 1e-6


def test_a_gate_of_coca_that_may_be_negative_and_a_wrong_change_are_seen(
    lab: ModuleType, sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = lab.rotation.Extension()
    rerope = replace(none, window=8)
    assert apart(lab, "plain", sizes, 3, rerope, formula=replace(FORMULAS["plain"], beyond=(8, math.inf))) < 1e-12
    for wrong in (replace(rerope, window=9), replace(rerope, leak=16), replace(rerope, logn=True)):
        assert apart(lab, "plain", sizes, 3, wrong, against=rerope) > 1e-6
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x)
    assert apart(lab, "coca", sizes, 3, none) > 1e-6


def test_a_layer_normalises_before_each_part_or_after_each_sum(lab: ModuleType, sizes: Any) -> None:
    x, positions, none = torch.randn(2, 5, 16), torch.arange(5)[None].double(), lab.rotation.Extension()
    for name in ("plain", "post-norm-plain-one-head"):
        layer = lab.model.Layer(lab.DESIGNS[name], sizes, 0)
        norm = lambda y: y / (y.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt()  # noqa: E731
        before, after = (norm, lambda y: y) if name == "plain" else (lambda y: y, norm)
        carried = 1 if name == "plain" else (2 * sizes.layers) ** (1 / 4)  # alpha of DeepNorm's decoder
        expected = after(carried * x + layer.attention(before(x), positions, none))
        expected = after(carried * expected + layer.inner(before(expected)))
        torch.testing.assert_close(layer(x, positions, none), expected)


def test_a_method_of_ropetool_gives_its_table(lab: ModuleType, sizes: Any) -> None:
    extension = lab.rotation.Extension
    frequencies, factor = lab.rotation.table(1e4, sizes, extension("ntk", 8))
    textbook = (1e4 * 8 ** (8 / 6)) ** (-np.arange(0, 8, 2) / 8)
    assert np.allclose(frequencies, textbook, rtol=1e-12)
    assert factor == 1
    assert lab.rotation.table(1e4, sizes, extension("yarn", 8))[1] == pytest.approx(0.1 * math.log(8) + 1)


def reached(model: Any, none: Any, length: int, target: int) -> list[int]:
    """Return which inputs change what the layers before the last one give at a token."""
    x = torch.randn(1, length, model.embedding.embedding_dim, requires_grad=True)
    y = x
    for layer in model.layers[:-1]:
        y = layer(y, torch.arange(length)[None].double(), none)
    y[0, target].sum().backward()
    assert x.grad is not None
    return torch.nonzero(x.grad[0].abs().sum(dim=-1)).flatten().tolist()


def test_the_windows_of_hwfa_reach_three_quarters_of_the_trained_length(lab: ModuleType) -> None:
    for layers, trained in itertools.product(range(2, 9), (48, 64, 100, 512)):
        w = lab.designing.largest_window(lab.rotation.Sizes(layers=layers, trained=trained))
        assert (w - 1) * (layers - 1) + 1 <= 0.75 * trained < w * (layers - 1) + 1
    sizes = lab.rotation.Sizes(vocabulary=5, width=8, inner=8, layers=4, heads=1, trained=16)
    torch.manual_seed(0)
    model = lab.model.Model(lab.DESIGNS["hwfa"], sizes)
    field = (4 - 1) * (4 - 1) + 1  # w is 4: 3 times 3 tokens before itself, of 12 that are allowed
    assert reached(model, lab.rotation.Extension(), 24, 20) == list(range(20 - field + 1, 21))


def test_positions_are_what_the_papers_say(lab: ModuleType) -> None:
    rng = np.random.default_rng(0)
    draw = partial(lab.rotation.draw_positions, length=8, target=64, rng=rng)
    assert draw("plain", 5).tolist() == [list(range(8))]
    randomized = draw("randomized", 4000).numpy()
    assert (np.diff(randomized) > 0).all()
    assert (randomized.min(), randomized.max()) == (0, 63)
    # Of a random subset the i-th of k out of n numbers from 0 has the mean i (n + 1) / (k + 1) - 1.
    assert np.allclose(randomized.mean(axis=0), np.arange(1, 9) * 65 / 9 - 1, atol=0.6)
    assert lab.rotation.draw_positions("randomized", 1, 64, 64, rng).tolist() == [list(range(64))]
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
    design = lab.DESIGNS["pose"]

    def report(step: int, loss: float) -> None:
        if step == stop:
            raise KeyboardInterrupt

    run = partial(lab.train, design, sizes, recipe, partial(lab.text_batch, design, sizes, recipe, documents), folder)
    if stop:
        with pytest.raises(KeyboardInterrupt):
            run(report)
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
        logits = torch.nn.functional.one_hot(tokens.roll(self.back - 1, dims=1), 11).float()
        return logits[:, -keep:]


def test_scores_are_of_the_last_tokens_and_of_the_same_ones(lab: ModuleType, sizes: Any) -> None:
    documents = [np.random.default_rng(n).integers(0, 11, 16 * 96) for n in range(3)]
    copies, plain, none = Copies(12), lab.DESIGNS["plain"], lab.rotation.Extension()

    def scores(model: Any, middle: bool = False) -> Any:
        rows = lab.contexts(sizes, documents, 16, middle)
        return lab.score(model, plain, sizes, rows, none, len(documents))

    measured = scores(copies, middle=True)
    assert measured["repeated"]["accuracy"] == [1, 1, 1]
    assert max(measured["longer"]["accuracy"]) < 0.3
    short, long, repeated, *between = np.split(np.array([row[-12:] for rows in copies.seen for row in rows]), 5)
    assert (short == long).all()
    assert (short == repeated).all()
    assert all((short == other).all() for other in between)
    assert {rows.shape[1] for rows in copies.seen} == {12, 24, 48, 96}
    documents[1][:] = 4  # a text of one token, which any copy knows
    measured = scores(Copies(5))
    assert "double" not in measured
    for context in ("trained", "longer", "repeated"):
        assert measured[context]["accuracy"][1] == 1
        assert max(measured[context]["accuracy"][::2]) < 0.3
    rows = np.arange(96)[None] % 11
    right, _ = lab.training.hits(Copies(11), plain, sizes, rows, none)
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
    tokens, _, targets = lab.text_batch(lab.DESIGNS["plain"], sizes, recipe, documents, 0)
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


def test_the_first_half_of_a_training_reads_short_rows(lab: ModuleType) -> None:
    sizes, recipe = lab.rotation.Sizes(trained=512), lab.training.Recipe(steps=10, batch=8, first=64)
    documents = [np.arange(2000)]
    shapes = [lab.text_batch(lab.DESIGNS["plain"], sizes, recipe, documents, step)[0].shape for step in (0, 4, 5, 9)]
    assert shapes == [(64, 64), (64, 64), (8, 512), (8, 512)]  # the same number of tokens


def test_the_page_says_what_was_recorded(lab: ModuleType) -> None:
    records = {each.name: lab.known(each.name) for each in lab.LABS}
    for each in lab.LABS:
        made = {name: json.loads(json.dumps(each.made(design, recipe))) for name, design, recipe in each.runs()}
        assert {name: run["made"] for name, run in records[each.name].items()} == {
            name: made[name] for name in records[each.name]
        }
    assert {name: lab.page.on_page(name) for name in ("lab", "lab-designs")} == lab.page.parts()
    empty = lab.page.text({each.name: {} for each in lab.LABS})
    for each in lab.LABS:
        rows = sum(len(lab.DESIGNS[name].extensions) for name in each.designs)
        assert f"{rows} of {rows} rows are not measured yet." in empty


def test_a_row_of_several_seeds_shows_their_spread(lab: ModuleType) -> None:
    large = lab.LABS[1]
    accuracy = [[0.1, 0.3], [0.2, 0.4], [0.3, 0.5]]  # of two texts each; their means are 0.2, 0.3 and 0.4
    runs = [{"scores": {"none": {context: {"accuracy": values} for context in large.contexts}}} for values in accuracy]
    cells = lab.page._measured(large, runs, "none")
    assert cells[0] == "30.0 ± 24.8"  # 4.303 for two degrees of freedom, times 10 / sqrt(3)
    assert cells[5:] == ["+0.0 ± 0.0", "+0.0 ± 0.0"]


def test_a_fine_tune_begins_with_the_extension() -> None:
    finetune = script("lab/finetune")
    assert {name: run["made"] for name, run in finetune.known("finetuned").items()} == {
        name: json.loads(json.dumps(tuning.made)) for name, tuning in finetune.TUNINGS.items()
    }
    own = 1e4 ** (-np.arange(0, 64, 2) / 64)
    for name, table in (("control", own), ("linear-8x", own / 8), ("base-500", 500.0 ** (-np.arange(0, 64, 2) / 64))):
        model = finetune.extended(finetune.TUNINGS[name])
        assert np.allclose(model.model.model.rotary_emb.inv_freq.numpy(), table, rtol=1e-6)
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        logits = model(tokens, torch.arange(37)[None].double(), keep=5)
        whole = model.model(tokens).logits
    torch.testing.assert_close(logits, whole[:, -5:])


def test_again_forgets_figures_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = script("lab/train")
    records, training = sys.modules["lab_records"], sys.modules["lab_training"]
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setenv("ROPETOOL_CACHE", str(tmp_path / "cache"))
    small = training.LABS[0]
    runs = [(small, *run) for run in small.runs() if run[0] in ("plain", "hwfa")]
    places = [
        training.weights(design, small.sizes, recipe, train.machine.cache() / "lab") for _, _, design, recipe in runs
    ]
    for (_, name, _, _), place in zip(runs, places, strict=True):
        records.keep("small", name, {"made": name})
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    train.forget_all(runs[:1])
    assert records.known("small") == {runs[1][1]: {"made": runs[1][1]}}
    assert [place.exists() for place in places] == [False, True]
