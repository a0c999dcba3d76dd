"""Extending GGUF files of every architecture that llama.cpp rotates: what is written, and what stands against the rest.

Oracle: the published formulas in mpmath (scripts/golden/golden_formulas.py) against llama.cpp's formulas on the written keys
(gguf_headers.py). Neither knows ropetool.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import gguf_files
import gguf_headers as headers
import numpy as np
import pytest
from loading import script
from running import run, snapshot
from variants import VARIANTS

import ropetool
from ropetool.errors import InvalidRope, LossyExport, NotACheckpoint, UnknownFamily
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import inspection
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.verification.readback.comparing import read_back

pytestmark = pytest.mark.usefixtures("here")

FACTOR = 4
ROTATING = [name for name in archs.names() if name not in archs.WITHOUT_ROTATION]

CELLS = {
    name: VARIANTS[name]
    for name in (
        "linear", "ntk", "abf", "ntk-by-parts", "attention", "yarn", "yarn, factor none", "yarn, factor 1.3", "yarn, beta 16",
        "llama3", "mixed-ntk", "length",
    )
}  # fmt: skip

# What llama.cpp does not let a file of an architecture say, and the words of the refusal.
NO_ROTATION = dict.fromkeys(
    ("afmoe", "cohere2", "cohere2moe", "exaone-moe", "llama4", "maple", "muse-glimmer"),
    "full-attention layers do not rotate",
)
NORM_AFTER = dict.fromkeys(sorted(headers.NORM_BEHIND), "normalises queries and keys after the rotation")
ONE_FACTOR = "rotation and score share one factor"  # src/models/glm-dsa.cpp reads no yarn_log_multiplier
LEAKS = dict.fromkeys(  # cparams.yarn_attn_factor reaches every layer; freq_scale does not
    ("gemma-embedding", "gemma3", "gemma3n", "mimo2", "modern-bert", "plamo3"),
    "its sliding layers share the factor on cos and sin",
)
SAME_BASE = dict.fromkeys(("mellum", "olmo2"), "its sliding layers share the base")
# The only graphs that ask for vectors (ggml_rope_ext's c) and whose loader makes them.
VECTORS = {
    "apertus", "arcee", "deci", "exaone", "exaone4", "gemma4", "granite", "granite_swa", "granitehybrid", "granitemoe",
    "llama", "llama-embed", "minicpm", "minicpm3", "mistral3", "nanbeige", "phi3", "phimoe", "step35",
}  # fmt: skip
READS_NO_VECTORS = {name: "does not read rope_freqs for this architecture" for name in ROTATING if name not in VECTORS}
READS_NO_BETAS = {
    name: "reads neither yarn_beta_fast nor rope_freqs" for name in ROTATING if name not in VECTORS | {"grok"}
}
NO_FACTOR = {"deepseek4": "cancels YaRN's factor"}
TWO_BASES = {"dots3note": "sliding layers have a separate base, but share the scaling factors"}
FIXED = dict.fromkeys(sorted(headers.FIXED), "always rotates with the base 10000")
FACTORS = {**NORM_AFTER, **NO_FACTOR, **LEAKS, "glm-dsa": ONE_FACTOR, "gemma4": LEAKS["gemma3"],
           "step35": LEAKS["gemma3"], **TWO_BASES}  # fmt: skip
# Without a scaling factor there is no ln s by which their multiplier could take the factor off the whole score again.
NO_LOGARITHM = dict.fromkeys(
    ("deepseek2", "deepseek32", "mistral4"), "the whole score is multiplied by 1.15385 instead of 1"
)
REFUSED: dict[str, dict[str, str]] = {
    "linear": {"glm-dsa": ONE_FACTOR, **TWO_BASES},
    "ntk": SAME_BASE,
    "abf": SAME_BASE,
    "ntk-by-parts": {**LEAKS, **TWO_BASES},
    "attention": {**FACTORS, **NO_LOGARITHM},
    "yarn": {**NORM_AFTER, **NO_FACTOR, **TWO_BASES, "glm-dsa": ONE_FACTOR},
    "yarn, factor none": {**LEAKS, **TWO_BASES},
    "yarn, factor 1.3": FACTORS,
    "yarn, beta 16": {**READS_NO_BETAS, "gemma4": LEAKS["gemma3"], "step35": LEAKS["gemma3"]},
    "llama3": READS_NO_VECTORS,
    "mixed-ntk": READS_NO_VECTORS,
    "length": {},
}
SERVED = {
    "linear": 114, "ntk": 114, "abf": 114, "ntk-by-parts": 109, "attention": 97, "yarn": 108, "yarn, factor none": 109,
    "yarn, factor 1.3": 100, "yarn, beta 16": 18, "llama3": 19, "mixed-ntk": 19, "length": 125,
}  # fmt: skip


formulas = script("golden/golden_formulas.py")


def refusal(cell: str, arch: str) -> str:
    unrotated = "" if cell == "length" else {**NO_ROTATION, **FIXED}.get(arch)
    return unrotated or REFUSED[cell].get(arch, "")


def wanted(cell: str, arch: str) -> headers.Rotation:
    """Return what the published formula makes of the header's base table."""
    method, options = CELLS[cell]
    mla = arch in headers.MLA
    rotary = headers.ROTARY if arch in headers.LATENT_KEYS | headers.HALVED else headers.HEAD
    source = {
        "head_dim": rotary, "partial_rotary_factor": 1.0, "length": headers.CONTEXT,
        "rope_theta": headers.SLIDING_THETA if arch in headers.FIXED else headers.THETA,
        **({"mscale": 1.0} if mla else {}),
    }  # fmt: skip
    params, factor = options.get("params", {}), options.get("attention_factor", "auto")
    found = formulas.table(method, {"source": source, "factor": FACTOR, "attention_factor": factor, "params": params})
    return headers.Rotation(np.array(found["inv_freq"]), found["attention_factor"], found["softmax_multiplier"])


def close(one: headers.Rotation, other: headers.Rotation) -> bool:
    """Return whether both agree to the 6e-8 by which float32 keys may be off, and 1e-6 in all."""
    factors = np.array([[r.attention_factor, r.softmax_multiplier] for r in (one, other)])
    return bool(
        np.allclose(one.inv_freq, other.inv_freq, rtol=1e-6, atol=0) and np.allclose(*factors, rtol=1e-6, atol=0)
    )


def decoded(path: Path, kind: str = "full_attention") -> headers.Rotation:
    rope = inspection.inspect(path).rope
    assert isinstance(rope, RopeSet)
    entry = rope.entries[kind]
    assert entry.table is not None
    assert len(entry.table.regimes) == 1
    return headers.Rotation(entry.table.regimes[0].inv_freq, entry.attention_factor, entry.softmax_multiplier)


def test_the_table_of_served_architectures_is_complete() -> None:
    assert len(ROTATING) == 125
    for cell in CELLS:
        refused = [arch for arch in ROTATING if refusal(cell, arch)]
        assert len(ROTATING) - len(refused) == SERVED[cell], cell


@pytest.mark.parametrize("arch", ROTATING)
def test_every_method_is_written_as_llama_cpp_reads_it_or_refused(arch: str) -> None:
    source = headers.write(Path("m.gguf"), arch)
    before = snapshot(Path())
    for number, (cell, (method, options)) in enumerate(CELLS.items()):
        reason = refusal(cell, arch)
        if reason:
            with pytest.raises((LossyExport, InvalidRope)) as refused:
                ropetool.plan(source, method, factor=FACTOR, **options)
            assert reason in refused.value.message, cell
            continue
        output = ropetool.apply(
            ropetool.plan(source, method, factor=FACTOR, **options), source, f"{number}.gguf"
        ).output
        assert close(headers.rotation(output), wanted(cell, arch)), cell
        if arch in NO_ROTATION:  # only a longer context can be stated, and the full layers have no table
            assert cell == "length"
        else:
            assert close(decoded(output), headers.rotation(output)), cell
        _check_sliding(arch, source, output)
    assert before.items() <= snapshot(Path()).items()


def _check_sliding(arch: str, source: Path, output: Path) -> None:
    """Assert that sliding layers rotate as before, or as the full ones where they did so before and are scaled along."""
    if arch not in headers.SCALED | headers.UNSCALED | headers.PLAIN:
        return
    found = headers.rotation(output, sliding=True)
    along = arch in headers.SCALED - {"dots3note"}  # its sliding layers always have another base
    assert close(found, headers.rotation(output) if along else headers.rotation(source, sliding=True))
    assert close(decoded(output, "sliding_attention"), found)


@pytest.mark.parametrize(("cell", "arch"), [(cell, arch) for cell in CELLS for arch in sorted(REFUSED[cell])][::7])
def test_what_is_refused_names_a_command_that_works(cell: str, arch: str) -> None:
    source = headers.write(Path("m.gguf"), arch)
    method, options = CELLS[cell]
    with pytest.raises((LossyExport, InvalidRope)) as refused:
        ropetool.plan(source, method, factor=FACTOR, **options)
    program, *arguments = shlex.split(refused.value.try_)
    assert (program, run(*arguments, "--dry-run").code) == ("ropetool", 0)


def test_layers_without_positions_are_given_a_longer_context() -> None:
    source = headers.write(Path("m.gguf"), "cohere2")
    with pytest.raises(InvalidRope, match="only the configured context length limits it") as refused:
        ropetool.plan(source, "yarn", factor=FACTOR)
    done = run(*shlex.split(refused.value.try_)[1:], "-o", "out.gguf")
    assert done.code == 0, done.err
    before, after = headers.values(source), headers.values(Path("out.gguf"))
    assert after["cohere2.context_length"][1] == FACTOR * headers.CONTEXT
    assert {key for key in before if before[key] != after[key]} == {"cohere2.context_length"}


def test_a_file_that_states_no_context_is_given_one() -> None:
    """llama.cpp does not load it before, and says which key it misses."""
    headers.write(Path("m.gguf"), "qwen3next")
    write_patched(read_header(Path("m.gguf")), Patch(remove={"qwen3next.context_length"}), Path("none.gguf"))
    refused = run("extend", "none.gguf", "--method", "yarn", "--factor", "4", "--dry-run")
    assert "does not contain qwen3next.context_length" in refused.err
    assert "--method length --target-length N" in refused.err
    length = ("extend", "none.gguf", "--method", "length", "--target-length", "262144")
    done = run(*length, "--dry-run")
    assert (done.code, "--override-kv qwen3next.context_length=int:262144" in done.out) == (0, True)
    done = run(*length, "-o", "out.gguf")
    assert (done.code, headers.values(Path("out.gguf"))["qwen3next.context_length"]) == (0, ("UINT32", 262144))
    assert {check.name: check.verdict for check in read_back(Path("out.gguf"))}["tables"] == "pass"


@pytest.mark.parametrize("arch", sorted(set(archs.UNDESCRIBED) - {"clip"}))
def test_what_is_not_described_is_refused_with_the_reason(arch: str) -> None:
    source = headers.write(Path("m.gguf"), arch)
    with pytest.raises(UnknownFamily) as refused:
        ropetool.plan(source, "yarn", factor=FACTOR)
    assert (
        f'ropetool cannot extend GGUF files of "{arch}": llama.cpp {archs.UNDESCRIBED[arch]}' in refused.value.message
    )
    assert run(*shlex.split(refused.value.try_.partition(",")[0])[1:]).code == 0


@pytest.mark.parametrize(
    ("arch", "head"),
    [("qwen3", "qwen3, family: qwen3"), ("llama4", "llama4, family: llama4_text"),
     ("deepseek2", "architecture: deepseek2 (decoded)"), ("eagle3", "architecture: eagle3 (not decoded)"),
     ("nosuch", "architecture: nosuch (not decoded)")],
)  # fmt: skip
def test_a_file_is_headed_by_its_family_or_its_architecture(arch: str, head: str) -> None:
    done = run("inspect", headers.write(Path("m.gguf"), arch))
    assert (done.code, done.out.splitlines()[0]) == (0, f"m.gguf: {head}")


@pytest.mark.parametrize("arch", sorted(archs.DRAFTS))
def test_a_model_that_drafts_for_another_is_left_as_it_is(arch: str) -> None:
    source = headers.write(Path("m.gguf"), arch)
    for command in (
        ("bake", source, "attention-factor", "--dry-run"),
        ("extend", source, "--method", "length", "--factor", "2"),
    ):
        done = run(*command)
        assert (done.code, done.err.count("Error: ")) == (1, 1)
        assert f"llama.cpp {archs.DRAFTS[arch]}" in done.err
        assert "stops" not in done.err


def test_a_projector_is_called_one_before_its_architecture_is_asked_for() -> None:
    with pytest.raises(NotACheckpoint, match="is the image or audio projector"):
        ropetool.plan(headers.write(Path("m.gguf"), "clip"), "yarn", factor=FACTOR)


# --- facts that come from elsewhere than the file's tables


def test_mla_files_carry_their_own_multiplier() -> None:
    """A file that states mscale_all_dim 0.707 is extended by it; without one it is 1, as DeepSeek-V3 has it."""
    stated = {"rope__scaling__type": ("string", "yarn"), "rope__scaling__factor": ("float32", 40.0),
              "rope__scaling__original_context_length": ("uint32", 4096)}  # fmt: skip
    for multiplier in (0.707, 1.0):
        more = {**stated, "rope__scaling__yarn_log_multiplier": ("float32", 0.1 * multiplier)}
        source = headers.write(Path(f"m{multiplier}.gguf"), "deepseek2", **more)
        plan = ropetool.plan(source, "yarn", factor=8, reading="original")
        found = headers.rotation(ropetool.apply(plan, source, f"o{multiplier}.gguf").output)
        assert found.softmax_multiplier == pytest.approx((1 + 0.1 * multiplier * np.log(8)) ** 2, rel=1e-6)
        assert found.attention_factor == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("arch", ["qwen35", "gemma3", "deepseek2", "granitehybrid", "mimo2"])
def test_verify_reads_an_output_back(arch: str) -> None:
    source = headers.write(Path("m.gguf"), arch)
    output = ropetool.apply(ropetool.plan(source, "yarn", factor=FACTOR), source, "out.gguf").output
    verdicts = {check.name: check.verdict for check in read_back(output)}
    assert (verdicts["tables"], verdicts["files"]) == ("pass", "pass")
    header = read_header(output)
    write_patched(header, Patch({f"{arch}.rope.scaling.factor": Value.of(ValueType.F32, 5.0)}), Path("planted.gguf"))
    Path("planted.gguf").replace(output)
    assert {check.name: check.verdict for check in read_back(output)}["tables"] == "fail"


def test_layers_that_keep_a_state_have_no_keys_in_the_cache() -> None:
    found = inspection.inspect(headers.write(Path("m.gguf"), "qwen35"))  # every fourth layer attends
    assert found.rope is not None
    assert found.rope.entries["full_attention"].layers == (3, 7)
    assert found.cache_bytes(1) == 2 * 2 * headers.HEAD * 2 * 2  # layers, heads, channels of keys and values, bytes


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        *((name, "normalises queries and keys after the rotation") for name in sorted(headers.NORM_BEHIND)),
        ("deepseek4", "cancels YaRN's factor"), ("cogvlm", "always rotates with the base 10000"),
        ("deepseek2-ocr", "always rotates with the base 10000"), ("graniteswitch", "its adapters add"),
        ("mamba", "nothing rotates"),
    ],
)  # fmt: skip
def test_a_bake_that_no_weight_can_carry_says_why(arch: str, reason: str) -> None:
    done = run("bake", headers.write(Path("m.gguf"), arch), "attention-factor", "--dry-run")
    assert (done.code, f"cannot bake into {arch} models: " in done.err, reason in done.err) == (
        1,
        True,
        True,
    )


@pytest.mark.parametrize("arch", ["qwen3", "qwen3moe"])
def test_shipped_lengths_are_carried_over_from_the_families(arch: str) -> None:
    source = headers.write(Path("m.gguf"), arch, context_length=("uint32", 40960))
    plan = ropetool.plan(source, "yarn", factor=4)
    assert (plan.trained_length, plan.max_position_embeddings) == (32768, 131072)
    assert inspection.inspect(source).trained_length == 32768


INSPECTED = [
    *NORM_AFTER, *NO_FACTOR, *TWO_BASES, *FIXED, *NO_ROTATION, *LEAKS, "glm-dsa", "gemma4", "deepseek2", "olmo2", "llama",
    "jamba", "mamba2", "nemotron_h", "bloom", "kimi-linear", "t5",
]  # fmt: skip


@pytest.mark.parametrize("arch", INSPECTED)
def test_the_lines_that_inspect_prints_can_be_carried_out(arch: str) -> None:
    headers.write(Path("m.gguf"), arch)
    lines = run("inspect", "m.gguf").out.partition("\nto extend it to ")[2].splitlines()
    (line,) = [line for line in lines if line.strip().startswith("ropetool extend ")]
    done = run(*shlex.split(line)[1:], "--dry-run")
    assert done.code == 0, (line, done.err)


def test_what_the_ambiguity_of_a_scaled_file_advises_can_be_carried_out() -> None:
    """Keys say what to do with one base: yarn on top of yarn needs vectors, which only llama reads of these two."""
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 512}
    for arch, way in (("qwen2", "original"), ("llama", "current")):
        gguf_files.model(Path(f"{arch}.gguf"), arch, {**scaling, "context_length": 1024})
        refused = run("extend", f"{arch}.gguf", "--method", "yarn", "--factor", "2")
        line = refused.err.splitlines()[1].removeprefix("Try: ")
        assert f"--from {way}" in line
        done = run(*shlex.split(line)[1:], "--dry-run")
        assert done.code == 0, (line, done.err)
        assert "new context 2048" in done.out
