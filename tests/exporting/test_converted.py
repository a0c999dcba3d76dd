"""The record of what llama.cpp's converter does with each class that it registers: what it promises, and a sample made again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from converter import needs_converter
from forks import run_python

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "converted"
AGAIN = """
import json, sys
sys.path[:0] = sys.argv[1:2]
import converted
converted.without_tables()
converted.child.convert = converted.forked
print(json.dumps(converted.alone(sys.argv[2])))
"""


def classes() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(
        (ROOT / "tests" / "exporting" / "converted.json").read_text(encoding="utf-8")
    )["classes"]
    return found


def test_the_record_is_of_the_releases_that_are_pinned() -> None:
    recorded = json.loads((ROOT / "tests" / "exporting" / "converted.json").read_text(encoding="utf-8"))["versions"]
    pinned = re.findall(r"(?m)^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert recorded == {name: dict(pinned)[name] for name in ("transformers", "llama-cpp-python")}, (
        "scripts/converted/converted.py"
    )


def test_the_converter_s_own_files_give_the_same_logits_for_most_classes() -> None:
    same = [
        one for one in classes().values()
        if one["outcome"] == "converted" and float(str(one["apart"])) <= (1e-3 if one["gelu"] else 2e-4)
    ]  # fmt: skip
    assert len(same) >= 65


@needs_converter
@pytest.mark.parametrize(
    "name",
    [
        "GlmForCausalLM",  # whose epsilon is put right
        "Qwen3NextForCausalLM",  # layers that keep a state, and none that drafts
        "Cohere2MoeForCausalLM",  # a key that configs of transformers 5 do not have
        "MiniMaxM3SparseForConditionalGeneration",  # keys that transformers drops
        "BambaForCausalLM",  # a part of each head turns
        "HunYuanVLForConditionalGeneration",  # image sections by which text is turned otherwise
        "ChameleonForConditionalGeneration",  # norms of heads, and tokens that are never said
        "LagunaForCausalLM",  # sliding layers that the converter does not list
        "HrmTextForCausalLM",  # two stacks of layers that run over and over
        "Llama4ForCausalLM",  # which does not come out the same
        "InternLM2ForCausalLM",  # of remote code
        "LLaDAMoEModelLM",  # which attends both ways
        "Plamo3ForCausalLM",  # a base of its own and a window in most layers; written out in torch
    ],
)
def test_a_class_does_again_what_the_record_says(name: str) -> None:
    pytest.importorskip("llama_cpp")
    done = run_python(AGAIN, SCRIPTS, name, folder=ROOT)
    assert done.code == 0, done.err
    found, known = json.loads(done.out.splitlines()[-1]), classes()[name]
    assert {key: found[key] for key in ("arch", "encoding", "outcome")} == {
        key: known[key] for key in ("arch", "encoding", "outcome")
    }
    assert (found["apart"] < 2e-4) == (float(str(known["apart"])) < 2e-4)
