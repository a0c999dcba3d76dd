"""The conformance kit tells broken engines from honest ones: 15 public bugs are planted, and honest engines vary what they may."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import planted_engines as engines
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("scripts", "tests/baking")]

from conformance_kit import cases, kept, record  # noqa: E402

answering = importlib.import_module("answering")
LEAST_NAMED_OR_FAILING, LEAST_HONEST = 14, 30


class Bug(NamedTuple):
    """A planted bug. named: the wrong table that the scorer must name; None if no table of the kit has both faults at once."""

    case: str
    engine: engines.Engine
    named: str | None


# By the thread that reported the bug.
BUGS = {
    "ohdearquant/lattice#96": Bug("qwen3-5-yarn", engines.driver(engines.rotating(engines.neighbouring)), cases.PAIRS),
    "jmaczan/tiny-vllm#4": Bug("llama-base", engines.driver(engines.rotating(engines.neighbouring)), cases.PAIRS),
    "Integral2u/SharpMind#4": Bug("glm4-partial", engines.driver(engines.rotating(engines.halves)), cases.PAIRS),
    "ooples/AiDotNet#2074": Bug("mistral-yarn", engines.driver(engines.read_as_gguf), cases.PAIRS),
    "ggml-org/llama.cpp#22611": Bug("llama-quantised", engines.driver(engines.repacked), cases.PAIRS),
    "kvcache-ai/ktransformers#1959": Bug("qwen3-moe-yarn", engines.driver(engines.keys_not_written_back), cases.KEYS),
    "pegainfer#220": Bug(
        "llama-long", engines.driver(engines.rows_of_table(4096, lambda at, count: at.clamp(max=count - 1))), cases.CLAMPED
    ),
    "airockchip/rknn-llm#501": Bug("smollm3-yarn", engines.driver(engines.every_layer_rotates), "every layer rotates"),
    "sgl-project/sglang#13495": Bug(
        "deepseek-v32-indexer", engines.driver(engines.rotating(engines.neighbouring)), cases.INDEXER
    ),
    "huggingface/optimum-intel#1877": Bug("deepseek-v3-mscale", engines.driver(engines.score_and_pairs), None),
    "ml-explore/mlx-lm#1189": Bug(
        "deepseek-v4-groups", engines.driver(engines.groups({"main": engines.yarn(1e4, 32), "compress": engines.yarn(1e4, 32)})),
        "the base of the windowed layers and YaRN everywhere",
    ),
    "1CatAI/1Cat-vLLM#251": Bug(
        "deepseek-v4-groups", engines.driver(engines.groups({"main": engines.yarn(1e4, 32)})), "YaRN in the windowed layers too"
    ),
    "Blaizzy/mlx-vlm#1710": Bug("qwen3-moe-yarn", engines.driver(engines.unscaled(1e4, 32)), "scaling dropped"),
    "jundot/omlx#3594": Bug("qwen3-5-yarn", engines.driver(engines.unscaled(5e5, 64)), "scaling dropped"),
}  # fmt: skip
# A launch option that has no effect: the config is right, the engine is right, and so are its answers.
UNSEEN = ("meta-oss-cookbook#37",)

# The same faults in other shapes, and mistakes that no thread of the year has.
MORE = {
    "a table that repeats": Bug(
        "llama-long", engines.driver(engines.rows_of_table(4096, lambda at, count: at % count)), cases.WRAPPED
    ),
    "the score alone": Bug("deepseek-v3-mscale", engines.driver(engines.score_not_multiplied), "the score not multiplied"),
    "the attention in halves": Bug(
        "deepseek-v32-indexer", engines.driver(engines.rotating(engines.halves, "apply_rotary_pos_emb_interleave")), cases.ATTENTION
    ),
    "the attention of DeepSeek V3 in halves": Bug(
        "deepseek-v3-mscale", engines.driver(engines.rotating(engines.halves, "apply_rotary_pos_emb_interleave")), cases.PAIRS
    ),
    "the attention of DeepSeek V2 in halves": Bug(
        "deepseek-v2-mscale", engines.driver(engines.rotating(engines.halves_of_complex, "apply_rotary_emb")), cases.PAIRS
    ),
    "DeepSeek V4 in halves": Bug("deepseek-v4-groups", engines.driver(engines.rotating(engines.last_in_halves)), cases.PAIRS),
    "blocks of DeepSeek V4": Bug("deepseek-v4-groups", engines.driver(engines.blocks_not_rotated), cases.UNROTATED_BLOCKS),
    "neighbours in Gemma 4": Bug(
        "gemma4-proportional", engines.driver(engines.rotating(engines.alone(engines.neighbouring))), cases.PAIRS
    ),
    "a partial rotation in Gemma 4": Bug("gemma4-proportional", engines.driver(engines.partial(3e4, 64, 16)), cases.PARTIAL),
    "windows of gpt-oss": Bug("gpt-oss-yarn", engines.driver(engines.windows_by(150000.0, 32)), cases.WRONG_TYPE),
    "the next query": Bug("llama-base", engines.driver(engines.next_query(5e5, 32)), cases.OFF_BY_ONE),
    "a turn one late": Bug("llama-turns", engines.driver(engines.later_turns(lambda at: at + 1)), cases.OFF_BY_ONE),
    "a turn from 0": Bug("llama-turns", engines.driver(engines.later_turns(lambda at: at - at[:, :1])), cases.RESTART),
    "a batch one late": Bug("llama-batch", engines.driver(engines.later_turns(lambda at: at + 1)), cases.OFF_BY_ONE),
    "a batch from 0": Bug("llama-batch", engines.driver(engines.later_turns(lambda at: at - at[:, :1])), cases.RESTART),
    "a batch at the longest": Bug(
        "llama-batch", engines.driver(engines.later_turns(lambda at: at.amax(0, keepdim=True).expand_as(at))), cases.LONGEST
    ),
    "scaled windows": Bug(
        "gemma3-linear",
        engines.driver(engines.groups({
            "full_attention": engines.plain(1e6, 32), "sliding_attention": engines.plain(1e4, 32) / 8})),
        cases.WRONG_TYPE,
    ),
}  # fmt: skip

HONEST: dict[str, tuple[str, engines.Engine]] = {
    **{
        f"{case} in {dtype} with {attention}": (case, engines.driver(None, dtype, attention))
        for case, dtypes, attentions in (
            ("llama-base", ("float32", "bfloat16", "float64"), ("eager", "sdpa")),
            ("llama-turns", ("float32", "bfloat16"), ("eager", "sdpa")),
            ("llama-batch", ("float32", "bfloat16"), ("eager", "sdpa")),
            ("gemma3-linear", ("float32", "bfloat16"), ("sdpa",)),
            ("qwen3-5-yarn", ("float32", "bfloat16"), ("sdpa",)),
            ("deepseek-v32-indexer", ("float32", "bfloat16"), ("sdpa",)),
            ("deepseek-v3-mscale", ("float32", "bfloat16"), ("sdpa",)),
            ("deepseek-v4-groups", ("float32", "bfloat16"), ("eager",)),
            ("smollm3-yarn", ("float32", "bfloat16"), ("sdpa",)),
            ("glm4-partial", ("bfloat16",), ("sdpa",)),
            ("llama-long", ("float32",), ("sdpa",)),
        )
        for dtype in dtypes
        for attention in attentions
    },
    "llama-base in pieces of 128": ("llama-base", engines.in_pieces(128)),
    "llama-base in pieces of 300 with sdpa": ("llama-base", engines.in_pieces(300, "sdpa")),
    "llama-base on a static cache": ("llama-base", engines.in_pieces(256, static=True)),
    "gemma3-linear in pieces": ("gemma3-linear", engines.in_pieces(200)),
    "qwen3-5-yarn in pieces": ("qwen3-5-yarn", engines.in_pieces(192)),
    "deepseek-v3-mscale in pieces": ("deepseek-v3-mscale", engines.in_pieces(333)),
    "llama-long in pieces": ("llama-long", engines.in_pieces(1000, "sdpa")),
    "llama-base in a batch, padded left": ("llama-base", engines.in_one_batch(left=True)),
    "llama-base in a batch, padded right": ("llama-base", engines.in_one_batch(left=False)),
    "mistral-yarn in a batch with sdpa": ("mistral-yarn", engines.in_one_batch(left=True, attention="sdpa")),
    "neighbouring rows": ("llama-base", engines.driver(engines.interleaved_by(engines.neighbouring))),
    "complex numbers": ("mistral-yarn", engines.driver(engines.interleaved_by(engines.as_complex))),
    "a table of 8192 rows": ("llama-long", engines.driver(engines.rows_of_table(8192, lambda at, count: at), attention="sdpa")),
    "the numbers of the quantised file": ("llama-quantised", engines.driver(engines.gguf_engine)),
    "experts in a batch": ("qwen3-moe-yarn", engines.driver(engines.experts("batched_mm"))),
    "experts in groups": ("qwen3-moe-yarn", engines.driver(engines.experts("grouped_mm"))),
}  # fmt: skip
NEEDED = sorted({bug.case for bug in (*BUGS.values(), *MORE.values())} | {case for case, _ in HONEST.values()})


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases that are needed here, with the golden values of the recorded kit."""
    folder = tmp_path_factory.mktemp("planted") / "kit"
    kept.rebuild(folder, NEEDED)
    return folder


def scored(kit: Path, case: str, engine: engines.Engine, patch: pytest.MonkeyPatch, dtype: str = "float32") -> Any:
    """Return what the scorer reports of an engine's answers to a case."""
    job = answering._job(kit, "hf", case)
    given = json.loads(json.dumps({"prompts": engine(job, patch)}))
    golden = json.loads((kit / "golden" / f"{case}.json").read_text())
    return record.scorer().judged(golden, given, dtype)


@pytest.mark.parametrize("bug", [*BUGS, *MORE])
def test_a_planted_bug_is_named_or_fails(kit: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    case, engine, named = {**BUGS, **MORE}[bug]
    result = scored(kit, case, engine, monkeypatch)
    assert (result["level"], result["nearest"]) == (1, named)


def test_nearly_all_public_bugs_are_planted() -> None:
    assert len(BUGS) >= LEAST_NAMED_OR_FAILING
    assert len(BUGS) + len(UNSEEN) == 15


def test_the_page_lists_the_planted_bugs() -> None:
    text = (ROOT / "scripts" / "conformance_kit" / "conformance.md").read_text(encoding="utf-8")
    rows = [line for line in text.partition("## Public bugs")[2].partition("## Limits")[0].splitlines() if "#" in line]
    assert len(rows) == 15
    for thread, bug in BUGS.items():
        row = next(row for row in rows if thread.split("/")[-1] in row)
        assert f"| {bug.case} | {bug.named or 'fails, no table fits'} |" in row


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_engine_is_exact(kit: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case, engine = HONEST[name]
    result = scored(kit, case, engine, monkeypatch, "bfloat16" if "bfloat16" in name else "float32")
    assert (result["level"], result["said"]) == (3, "")


def test_there_are_enough_honest_engines() -> None:
    assert len(HONEST) >= LEAST_HONEST


def test_the_quantised_file_holds_the_numbers_of_the_checkpoint(kit: Path) -> None:
    job = answering._job(kit, "hf", "llama-quantised")
    model = engines.DRIVER._load(job["path"], torch.float32, "eager")
    stored = {name: values.clone() for name, values in model.state_dict().items()}
    engines.from_gguf(model, job)
    engines.reorder(model, engines.part)
    assert [name for name, values in model.state_dict().items() if not torch.equal(values, stored[name])] == []
    kinds = {tensor.tensor_type.name for tensor in engines.gguf_file(job).tensors if len(tensor.shape) == 2}
    assert kinds == {"Q8_0"}


def test_an_engine_with_quantised_matrices_has_bounds_of_its_own(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rounds the inputs of every matrix, and that is too rough for float32."""
    from conformance_kit import goldens

    case = "llama-quantised"
    golden = json.loads((kit / "golden" / f"{case}.json").read_text())
    rounding = engines.driver(lambda model, patch, job: goldens._round_inputs(model))
    given = json.loads(json.dumps({"prompts": rounding(answering._job(kit, "hf", case), monkeypatch)}))
    scorer = record.scorer()
    assert scorer.judged(golden, given, "float32")["level"] == 1
    assert scorer.judged(golden, {**given, "quantised": "q8_0"}, "float32")["level"] == 3
