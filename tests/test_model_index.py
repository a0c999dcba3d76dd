"""The results of `verify` in the front matter of a card, as huggingface_hub reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import yaml
from running import run

import ropetool
from ropetool.plans import model_card, model_index
from ropetool.plans.model_card import with_results

hub = pytest.importorskip("huggingface_hub")

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
THEIRS = """license: mit
model-index:
# measured by me
  - name: mine  # a name
    results:
      - task: {type: text-generation}
        dataset: {type: piqa, name: PIQA}
        metrics:
        - {type: acc, value: 0.50}
# the end
tags: [a]
"""
FIGURES = [
    {"question": "short texts", "length": 256, "ratio": 1.14123, "lower": 1.06612, "upper": 1.23, "texts": 20},
    {"question": "whole length", "length": 2048, "ratio": 1.3, "lower": 1.14, "upper": 1.49, "texts": 12},
]
CERTIFICATE = {
    "suite": "default", "texts": {"origin": "package", "documents": 21},
    "summary": {"verdict": "costs", "file": "true", "figures": FIGURES},
}  # fmt: skip


def entry(**changes: Any) -> dict[str, Any]:
    """Return the entry of a certificate whose summary has these changes."""
    summary = {"verdict": "costs", "file": "true", "figures": FIGURES, **changes}
    found = model_index.entry({**CERTIFICATE, "summary": summary}, "model-yarn-8x")
    assert found is not None
    return found


def results(card: str | Path) -> list[Any]:
    """Return the results in a card, as the Hub's library reads them."""
    loaded = hub.ModelCard.load(card) if isinstance(card, Path) else hub.ModelCard(card)
    return list(loaded.data.eval_results or ())


def metrics(card: str | Path) -> dict[str, Any]:
    """Return the values of ropetool's metrics in a card by their types."""
    ours = [result for result in results(card) if result.dataset_type.startswith("ropetool-")]
    assert len({result.metric_type for result in ours}) == len(ours)
    return {result.metric_type: result.metric_value for result in ours}


def test_the_hub_reads_every_figure_with_its_bounds() -> None:
    found = {result.metric_type: result for result in results(with_results("# Mine\n", entry()))}
    assert {kind: result.metric_value for kind, result in found.items()} == {
        "ropetool-verdict": "costs", "ropetool-file-check": "correct", "perplexity-ratio-short-texts": 1.1412,
        "perplexity-ratio-at-length": 1.3,
    }  # fmt: skip
    short, long = found["perplexity-ratio-short-texts"], found["perplexity-ratio-at-length"]
    assert short.metric_args == {"length": 256, "lower": 1.0661, "upper": 1.23, "texts": 20}
    assert long.metric_args == {"length": 2048, "lower": 1.14, "upper": 1.49, "texts": 12}
    assert short.metric_name == "Perplexity ratio on short texts of 256 tokens (95 % bounds 1.066 to 1.230)"
    assert (long.dataset_name, long.dataset_args) == ("built-in texts of ropetool", {"documents": 21})
    assert {result.task_type for result in found.values()} == {"text-generation"}


def test_what_was_not_answered_is_left_out() -> None:
    card = with_results("", entry(verdict="right as far as measured", file="not known", figures=FIGURES[:1]))
    assert metrics(card) == {"ropetool-verdict": "right as far as measured", "perplexity-ratio-short-texts": 1.1412}
    assert metrics(with_results("", entry(file="false", figures=[])))["ropetool-file-check"] == "wrong"
    later = {**FIGURES[0], "question": "of a later version"}
    assert "perplexity-ratio-short-texts" not in metrics(with_results("", entry(figures=[later])))
    assert model_index.entry({"suite": "default", "summary": None}, "x") is None
    assert model_index.entry({"suite": "default"}, "x") is None


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("front", ["", "license: mit\n", "tags:\n- a\n# the end\n", THEIRS])
def test_lines_of_others_stay_and_an_entry_is_replaced(front: str, newline: str) -> None:
    front = front.replace("\n", newline)
    once = model_index.with_entry(front, entry(), newline)
    left = iter(once.splitlines(keepends=True))
    assert all(line in left for line in front.splitlines(keepends=True))  # in their order
    assert "\n" not in once.replace(newline, "")
    before, after = yaml.safe_load(front) or {}, yaml.safe_load(once)
    assert after.pop("model-index") == [entry(), *before.pop("model-index", [])]
    assert after == before
    assert model_index.with_entry(once, entry(), newline) == once
    again = model_index.with_entry(once, entry(verdict="keep"), newline)
    assert again == once.replace("value: costs", "value: keep")
    assert model_index.with_entry(again, None, newline) == front


@pytest.mark.parametrize(
    "front",
    ["license: [mit\n", "- a list\n", "a text\n", "model-index: none\n", "model-index: {a: b}\n", "model-index: [{name: a}]\n",
     "{license: mit}\n", "a: b\n...\n", "license: \x07\n", "a: &a [*a]\nb: *c\n", "[" * 2000, "x" * (1 << 20)],
    ids=lambda front: front[:20].strip(),
)  # fmt: skip
def test_other_front_matter_stays_as_it_is(front: str) -> None:
    assert model_index.with_entry(front, entry()) == front
    assert model_index.with_entry(front, None) == front


@pytest.mark.parametrize("value", ["", " []", " null", " ~  # none"])
def test_an_empty_index_is_replaced(value: str) -> None:
    found = yaml.safe_load(model_index.with_entry(f"a: b\nmodel-index:{value}\nc: d\n", entry()))
    assert found == {"a": "b", "model-index": [entry()], "c": "d"}


def test_results_that_the_hubs_library_merged_are_replaced_too(tmp_path: Path) -> None:
    card = hub.ModelCard(f"---\n{model_index.with_entry(THEIRS, entry())}---\n# Mine\n")
    card.save(tmp_path / "README.md")
    merged = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert len(yaml.safe_load(merged.split("---")[1])["model-index"]) == 1
    again = with_results(merged, entry(verdict="keep"))
    assert metrics(again)["ropetool-verdict"] == "keep"
    assert [result.metric_value for result in results(again) if result.dataset_type == "piqa"] == [0.5]
    gone = results(with_results(again, None))
    assert [result.dataset_type for result in gone] == ["piqa"]


@pytest.mark.parametrize("name", ["a\nlicense: evil", "a: b # c", "'\"", "\u2028x", "größe", "- x", "\udcff"])
def test_a_hostile_name_stays_one_text(name: str) -> None:
    found = model_index.entry(CERTIFICATE, name)
    front = yaml.safe_load(model_index.with_entry("license: mit\n", found))
    assert (front["license"], front["model-index"][0]["results"]) == ("mit", entry()["results"])
    assert "\n" not in front["model-index"][0]["name"]


def test_the_card_beside_a_gguf_file_gets_them(tmp_path: Path) -> None:
    source = gguf_files.model(tmp_path / "m.gguf")
    made = ropetool.apply(ropetool.plan(source, "linear", factor=2), source, tmp_path / "out.gguf").output
    card = tmp_path / "out.gguf.README.md"
    checks = {"verdict": "pass", "longest": 1024, "checks": [], "made": "2026-11-21", "command": ""}
    model_card.refresh(made, {**CERTIFICATE, **checks})
    assert metrics(card)["perplexity-ratio-at-length"] == 1.3
    assert hub.ModelCard.load(card).data.model_name == "out.gguf"
    card.write_text("---\nlicense: mit\n---\n# Without ropetool's section\n", encoding="utf-8")
    model_card.refresh(made, {**CERTIFICATE, **checks})
    assert metrics(card) == {}


def test_verify_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, "model")
    Path("model/README.md").write_text(f"---\n{THEIRS}---\n# Mine\n", encoding="utf-8")
    assert run("extend", "model", "-m", "yarn", "--factor", "2", "-o", "X").code == 0
    assert metrics(Path("X/README.md")) == {}
    done = ropetool.verify("X", far_text=False).to_json()
    card = Path("X/README.md").read_text(encoding="utf-8")
    answers = done["answers"]
    assert metrics(Path("X/README.md")) == {
        "ropetool-verdict": answers["verdict"], "ropetool-file-check": "correct",
        "perplexity-ratio-short-texts": round(answers["short"]["ratio"], 4),
        "perplexity-ratio-at-length": round(answers["long"]["ratio"], 4),
    }  # fmt: skip
    (long,) = [found for found in results(Path("X/README.md")) if found.metric_type == "perplexity-ratio-at-length"]
    expected = {key: answers["long"][key] for key in ("length", "lower", "upper", "texts")}
    assert long.metric_args == pytest.approx(expected, abs=1e-4)
    assert long.metric_args["length"] == 512
    assert THEIRS.partition("model-index:\n")[2].partition("tags")[0].partition("  - name: mine")[2] in card
    ropetool.verify("X", far_text=False)
    assert Path("X/README.md").read_text(encoding="utf-8") == card

    run("export", "X", "-o", "x.gguf", "--no-check")
    exported = results(Path("x.gguf.README.md"))
    ours = [found for found in exported if found.dataset_type.startswith("ropetool-")]
    assert len(ours) == 4
    assert all(found.metric_name.endswith(" of the checkpoint before the export") for found in ours)
    record = json.loads(Path("x.gguf.ropetool.json").read_text(encoding="utf-8"))
    assert "summary" not in (record.get("certificate") or {})

    assert run("bake", "X", "attention-factor", "-o", "baked").code == 0  # another model, of which nothing is measured
    assert metrics(Path("baked/README.md")) == {}
    assert [found.dataset_type for found in results(Path("baked/README.md"))] == ["piqa"]
