"""`inspect`, `extend` and `apply` on GGUF files as a user sees them: the whole output, names, `--force`, JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf_files import Tiny, llama3_divisors, model, write
from running import COST_AT_8, run, snapshot

pytestmark = pytest.mark.usefixtures("here")

YARN = ("--method", "yarn", "--factor", "8")


INSPECTED = """\
model-yarn-8x.gguf: llama, family: llama

full_attention
  layers            0; head_dim 64, rotary_dim 64, interleaved layout
  rope type         yarn, theta 10000, factor 8, original_context_length 512
  trained length    512 tokens
  context length    4096 tokens
  attention factor  1.20794 on cos and sin, so 1.45913 on scores

  bands, turns counted in 512 tokens
    turns    pairs  at 4096 tokens
    over 32  4      every angle seen many times: any length is safe
    1 to 32  9      every angle seen
    under 1  19     stays inside the arc seen in training

KV cache, one sequence
  per token       256 bytes
  at 4096 tokens  1.00 MiB

runtimes
  as above  llama.cpp

to extend it to 8192 tokens
  512 -> 8192, in place of the current scaling
    ropetool extend model-yarn-8x.gguf --method yarn --target-length 8192 --from original
  4096 -> 8192, on top of the current scaling
    ropetool extend model-yarn-8x.gguf --method yarn --target-length 8192 --from current
"""

PLANNED = """\
plan for llama
  method    yarn, factor 8
  lengths   original 512, new context 4096
  from      the original table: the current scaling is replaced
  runtimes  llama.cpp
  output    {here}/model-yarn-8x.gguf

encodings
  yarn keys  kept: decodes to the requested table

edits
  metadata  llama.context_length                        512 -> 4096 (u32)
  metadata  llama.rope.scaling.type                     (absent) -> "yarn" (str)
  metadata  llama.rope.scaling.factor                   (absent) -> 8.0 (f32)
  metadata  llama.rope.scaling.original_context_length  (absent) -> 512 (u32)
  tensors   rope_freqs.weight                           32 divisors: {divisors} -> 32 divisors, all 1

the same without writing a file
  llama.cpp: not possible with flags: the file itself must contain rope_freqs.weight
"""

WRITTEN = """\
{here}/model-yarn-8x.gguf
  context      512 -> 4096 tokens, yarn factor 8
  edited       model-yarn-8x.gguf
  other files  none
  sidecars     model-yarn-8x.gguf.README.md, model-yarn-8x.gguf.Modelfile

served by
  llama.cpp: llama-server -m {here}/model-yarn-8x.gguf -c 4096
  KoboldCpp: koboldcpp --model {here}/model-yarn-8x.gguf --contextsize 4096  # Context Size in its window, without custom RoPE
  LM Studio: lms load --context-length 4096  # Context Length in its window, RoPE frequency base and scale left alone
  Ollama: ollama create model-yarn-8x -f {here}/model-yarn-8x.gguf.Modelfile  # Ollama 0.30 and later, which run llama.cpp

next
  KV cache    1.00 MiB for one sequence of 4096 tokens
  measure it  ropetool verify {here}/model-yarn-8x.gguf
"""


def test_an_extension_from_plan_to_inspection() -> None:
    model(Path("model.gguf"))
    done = run("extend", "model.gguf", *YARN)
    assert (done.code, done.out, done.err) == (0, WRITTEN.format(here=Path.cwd()), f"Note: {COST_AT_8}\n")
    made = [f"model-yarn-8x.gguf{suffix}" for suffix in ("", ".Modelfile", ".README.md", ".ropetool.json")]
    names = [*made, "model.gguf"]
    assert sorted(path.name for path in Path().iterdir()) == names
    assert run("inspect", "model-yarn-8x.gguf").out == INSPECTED


def test_a_dry_run_shows_values_and_types_and_writes_nothing() -> None:
    model(Path("model.gguf"), divisors=llama3_divisors())
    before = snapshot(Path())
    done = run("extend", "model.gguf", *YARN, "--from", "original", "--original-length", "512", "--dry-run")
    divisors = ", ".join(f"{number:.9g}" for number in llama3_divisors())
    assert (done.code, done.out) == (0, PLANNED.format(here=Path.cwd(), divisors=divisors))
    assert snapshot(Path()) == before


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--method", "yarn", "--target-length", "2048"), "model-yarn-2048.gguf"),
        (("--method", "abf", "--factor", "4", "--rope-theta", "1e6"), "model-abf-1e6.gguf"),
    ],
)
def test_default_names(options: tuple[str, ...], name: str) -> None:
    model(Path("model.gguf"))
    done = run("extend", "model.gguf", *options)
    assert done.out.splitlines()[0] == str(Path.cwd() / name)
    assert Path(name).is_file()


def test_force_replaces_an_earlier_output_and_its_provenance() -> None:
    model(Path("model.gguf"))
    run("extend", "model.gguf", *YARN, "-o", "out.gguf")
    before = snapshot(Path())
    again = ("extend", "model.gguf", "--method", "yarn", "--factor", "2", "-o", "out.gguf")
    done = run(*again)
    assert (done.code, done.err) == (
        1, "Error: out.gguf: exists already\nTry: pass another -o, or --force to replace it\n",
    )  # fmt: skip
    assert snapshot(Path()) == before
    assert run(*again, "--force").code == 0
    assert run("inspect", "out.gguf", "--json").json["rope"]["full_attention"]["factor"] == 2
    assert '"factor": 2.0' in Path("out.gguf.ropetool.json").read_text()


def test_a_plan_file_is_applied_under_the_name_that_extend_would_give() -> None:
    model(Path("model.gguf"))
    assert run("extend", "model.gguf", *YARN, "--dry-run", "--plan-out", "plan.json").code == 0
    done = run("apply", "model.gguf", "plan.json", "--json")
    assert done.json["output"] == str(Path.cwd() / "model-yarn-8x.gguf")
    assert done.json["edited"] == ["model-yarn-8x.gguf"]
    assert run("inspect", "model-yarn-8x.gguf").out == INSPECTED


SCHEMA = {
    "schema", "source", "format", "family", "arch", "trained_length", "trained_length_is", "stated", "rope", "runtimes", "kv_cache_bytes",
    "notes",
}  # fmt: skip
ENTRY = {
    "rope_type", "rope_theta", "head_dim", "rotary_dim", "layout", "factor", "attention_factor", "score_rotary",
    "score_plain", "temperature", "sliding_window", "max_position_embeddings", "original_max_position_embeddings",
    "layers", "regimes", "inv_freq", "wavelength", "turns",
}  # fmt: skip


def test_the_json_of_an_inspection_is_that_of_a_checkpoint() -> None:
    model(Path("model.gguf"), divisors=llama3_divisors())
    found = run("inspect", "model.gguf", "--json", "--target-length", "1000").json
    assert set(found) == {*SCHEMA, "advice"}
    assert (found["schema"], found["format"], found["family"], found["arch"]) == (1, "gguf", "llama", "llama")
    entry = found["rope"]["full_attention"]
    assert set(entry) == ENTRY
    assert (entry["rope_type"], entry["layout"], len(entry["inv_freq"])) == ("table", "interleaved", 32)
    assert entry["inv_freq"][-1] == pytest.approx(10000.0 ** (-62 / 64) / 8, rel=1e-6)
    assert found["trained_length"] is None  # a vector alone does not say from which length it came
    assert found["stated"] == {
        "llama.context_length": 512, "llama.rope.freq_base": 10000.0, "rope_freqs.weight": "F32 [32]",
    }  # fmt: skip
    reading = found["runtimes"]["llama.cpp"]
    assert (reading["context_length"], list(reading["layers"])) == (512, ["full_attention"])
    assert found["kv_cache_bytes"] == {"per_token": 256, "at_target": 256_000}


def headers_only(path: Path, arch: str, **keys: Any) -> Path:
    """Write a file without tensors: keys of blocks and heads, numbers as u32 or lists of them."""
    return write(path, arch, {key.replace("__", "."): value for key, value in keys.items()})


HEADS = {"block_count": 4, "context_length": 512, "embedding_length": 256, "attention__head_count": 4}


@pytest.mark.parametrize(("heads", "per_token"), [(2, 4 * 2 * 64 * 4), ([4, 2, 1, 2], 9 * 64 * 4), (None, 16 * 64 * 4)])
def test_key_heads_may_differ_by_layer(heads: Any, per_token: int) -> None:
    """A cache has two values of two bytes for each channel of a key head."""
    more = {} if heads is None else {"attention__head_count_kv": heads}
    headers_only(Path("m.gguf"), "llama", **HEADS, **more)
    done = run("inspect", "m.gguf", "--json")
    assert done.json["kv_cache_bytes"] == {"per_token": per_token, "at_target": 512 * per_token}
    assert done.json["notes"] == [
        (
            "the file has a vocabulary but no tensors: the values shown come from its keys. Inspect the model's own "
            "GGUF file"
        )
    ]


LITE = {
    "block_count": 27, "context_length": 4096, "embedding_length": 2048, "attention__head_count": 16,
    "rope__dimension_count": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "keys", "per_token"),
    [
        # DeepSeek-V2-Lite: keys of latent and decoupled channels alone; in files of old, keys and values of every head
        ("deepseek2", {**LITE, "attention__head_count_kv": 1, "attention__key_length": 576,
                       "attention__value_length": 512, "attention__key_length_mla": 192,
                       "attention__value_length_mla": 128}, 27 * 576 * 2),
        ("deepseek2", {**LITE, "attention__head_count_kv": 16, "attention__key_length": 192,
                       "attention__value_length": 128}, 27 * 16 * (192 + 128) * 2),
        # of other architectures those keys say nothing
        ("llama", {**HEADS, "attention__key_length_mla": 32, "attention__value_length_mla": 32}, 4 * 4 * 2 * 64 * 2),
        ("llama", {**HEADS, "attention__value_length": 32}, 4 * 4 * (64 + 32) * 2),
        ("llama", {**HEADS, "attention__key_length": 32}, 4 * 4 * (32 + 64) * 2),  # values: embedding_length / heads
        ("mimo2", {**HEADS, "attention__sliding_window": 128, "attention__sliding_window_pattern": [1, 1, 1, 0],
                   "attention__key_length_swa": 80, "attention__value_length_swa": 40},
         3 * 4 * (80 + 40) * 2 + 4 * 2 * 64 * 2),
    ],
)  # fmt: skip
def test_the_cache_keeps_keys_and_values_of_their_own_widths(arch: str, keys: dict[str, Any], per_token: int) -> None:
    headers_only(Path("m.gguf"), arch, **keys)
    assert run("inspect", "m.gguf", "--json").json["kv_cache_bytes"]["per_token"] == per_token


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        (["a", "b", "c", "d"], "is arr of str; llama.cpp reads it only as u32 or arr of bool or arr of i32 or arr of u32"),
        ([4, 2], "has 2 elements; llama.cpp requires a number for each layer, 4 here"),
    ],
)  # fmt: skip
def test_key_heads_that_llama_cpp_does_not_load_are_named(heads: Any, said: str) -> None:
    headers_only(Path("m.gguf"), "llama", **HEADS, attention__head_count_kv=heads)
    done = run("inspect", "m.gguf")
    assert done.code == 0
    assert f"\nruntimes\n  refuses  llama.cpp\n           - llama.attention.head_count_kv {said}\n" in done.out
    assert "KV cache" not in done.out
    refused = run("extend", "m.gguf", *YARN)
    assert refused.code == 1
    assert f"llama.cpp cannot load this file: llama.attention.head_count_kv {said}" in refused.err


def test_an_architecture_without_rotation_can_be_inspected() -> None:
    headers_only(Path("m.gguf"), "gpt2", **HEADS)
    done = run("inspect", "m.gguf", "--json")
    assert (done.code, done.json["family"], done.json["arch"]) == (0, None, "gpt2")
    assert done.json["rope"]["full_attention"]["rope_type"] == "none"
    assert run("inspect", "m.gguf").code == 0


def test_a_file_that_llama_cpp_would_abort_on_says_so() -> None:
    model(Path("m.gguf"), keys={"rope.scaling.type": "llama3"})
    done = run("inspect", "m.gguf")
    assert done.code == 0
    refusal = "- llama.rope.scaling.type is 'llama3': llama.cpp aborts the whole process"
    assert f"\nruntimes\n  refuses  llama.cpp\n           {refusal}" in done.out
    assert '  llama.rope.scaling.type  "llama3"\n' in done.out


def test_a_file_without_rope_keys_says_so() -> None:
    Tiny("llama").write(Path("plain.gguf"))
    done = run("inspect", "plain.gguf")
    assert done.err == (
        "Note: the file sets no rope keys: llama.cpp uses its defaults, shown here. `ropetool extend` adds the "
        "keys it needs\n"
    )
    assert done.out.endswith("  2048 -> 4096\n    ropetool extend plain.gguf --method yarn --target-length 4096\n")


def test_a_file_without_rotary_positions_says_so() -> None:
    Tiny("gpt2", {"attention.layer_norm_epsilon": (gguf.GGUFValueType.FLOAT32, 1e-5)}).write(Path("still.gguf"))
    done = run("inspect", "still.gguf")
    assert done.err == (
        "Note: gpt2 has no rotary positions: there is nothing to extend; `ropetool families` lists models "
        "that have them\n"
    )
    assert "  layers          0; head_dim 64, no rotation\n" in done.out
    assert "trained" not in done.out


def test_on_top_of_a_table_only_where_the_architecture_has_vectors() -> None:
    """qwen2 files hold one base and a scaling: nothing can be put on top of that."""
    for arch in ("llama", "qwen2"):
        Tiny(
            arch, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 512}
        ).write(Path(f"{arch}.gguf"))
    assert "--from current" in run("inspect", "llama.gguf").out
    out = run("inspect", "qwen2.gguf").out
    assert "--from original" in out
    assert "--from current" not in out
