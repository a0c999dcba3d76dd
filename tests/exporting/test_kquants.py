"""K-quants and IQ types through libllama: their bytes, importance matrices, and the demo model quantised."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import Any

import gguf_files
import models
import numpy as np
import pytest
from gguf_files import write
from gguf_logits import quantised

from ropetool.cli import main
from ropetool.errors import CheckpointError, ConfigError, CorruptFile, MissingDependency, MissingFile, OutputError
from ropetool.escaping import install_line
from ropetool.gguf_export import kquants
from ropetool.gguf_export.imatrix import read_imatrix
from ropetool.gguf_model import outtypes
from ropetool.verification.runners import llama_library

llama_cpp = pytest.importorskip("llama_cpp")

DEMO = Path(kquants.__file__).parents[1] / "demo" / "model"
WIDE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 32,
}  # fmt: skip
BOUNDS = {"q8_0": 0.001, "q4_k_m": 0.02}  # nats a token; measured .0003 and .0067


def write_imatrix(path: Path, weights: dict[str, np.ndarray], calls: int = 4) -> Path:
    """Write the GGUF form of llama-imatrix: sums of squares over calls."""
    tensors = {}
    for name, values in weights.items():
        tensors[f"{name}.in_sum2"] = (values * calls).reshape(1, -1).astype(np.float32)
        tensors[f"{name}.counts"] = np.full((1, 1), calls, np.float32)
    return write(path, "imatrix", {"general.type": "imatrix"}, tensors)


def names_of(path: Path) -> list[str]:
    return [name for name, (_, shape, _) in gguf_files.tensors(path).items() if len(shape) > 1]


def up_of(source: Path, dtype: str) -> np.ndarray:
    values = models.weights(json.loads((source / "config.json").read_text()), dtype)[
        "model.layers.1.mlp.up_proj.weight"
    ][1]
    return (values.astype("<u4") << 16).view("<f4") if dtype == "BF16" else values.astype("<f4")


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
def test_libllama_gets_the_numbers_as_they_are(dtype: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype=dtype, **WIDE)
    result = models.export(source, outtype="q4_k_m")
    assert result.output == tmp_path / "model-Q4_K_M.gguf"
    assert result.outtype == "q4_k_m"
    assert "matrices are quantised to q4_k_m by llama.cpp's own quantiser" in result.notes
    found = gguf_files.tensors(result.output)
    assert found["blk.1.ffn_up.weight"] == ("Q4_K", (256, 256), quantised(up_of(source, dtype), "Q4_K"))
    assert found["output.weight"][0] == "Q6_K"
    assert found["blk.0.attn_norm.weight"][0] == "F32"
    assert {kind for kind, _, _ in found.values()} == {"Q4_K", "Q6_K", "F32"}
    assert gguf_files.keys(result.output)["general.file_type"] == 15
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    ("outtype", "changes", "types"),
    [
        ("q4_k_m", {"hidden_size": 128}, {"Q5_0", "Q8_0"}),
        ("iq4_xs", {"intermediate_size": 288}, {"IQ4_NL", "Q5_0"}),
        ("q6_k", {"intermediate_size": 260}, {"F16"}),
        ("q6_k", {}, set()),
    ],
)
def test_rows_that_are_no_whole_blocks_are_told(
    outtype: str, changes: dict[str, Any], types: set[str], tmp_path: Path
) -> None:
    result = models.export(models.checkpoint(tmp_path / "model", dtype="BF16", **{**WIDE, **changes}), outtype=outtype)
    found = gguf_files.tensors(result.output)
    narrow = {name: kind for name, (kind, shape, _) in found.items() if len(shape) > 1 and shape[0] % 256}
    assert set(narrow.values()) <= types
    told = [note for note in result.notes if "their rows do not fit" in note]
    assert len(told) == (1 if types else 0)
    for kind, count in Counter(narrow.values()).items():
        assert told[0].startswith(f"{len(narrow)} tensors are stored in ")
        assert (f"{kind} ({count})" if len({*narrow.values()}) > 1 else kind) in told[0]
        assert next(iter(narrow)) in told[0]
        assert f"instead of {outtype}" in told[0]
        assert "blocks of 256 numbers" in told[0]


def test_quantised_files_can_be_split(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="BF16", **WIDE)
    models.export(source, tmp_path / "whole.gguf", outtype="iq4_xs")
    models.export(source, tmp_path / "x.gguf", outtype="iq4_xs", split_max_tensors=10)
    files = sorted(tmp_path.glob("x-*.gguf"))
    parts = [gguf_files.tensors(path) for path in files]
    assert [len(part) for part in parts] == [10, 10, 1]
    assert {name: value for part in parts for name, value in part.items()} == gguf_files.tensors(
        tmp_path / "whole.gguf"
    )
    assert gguf_files.keys(files[0]).keys() - gguf_files.keys(tmp_path / "whole.gguf").keys() == {
        "split.no", "split.count", "split.tensors.count"
    }  # fmt: skip


# --- importance matrices


@pytest.mark.parametrize("legacy", [False, True], ids=["gguf", "legacy"])
def test_importance_goes_into_the_blocks(legacy: bool, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="F32", **WIDE)
    plain = models.export(source, tmp_path / "plain.gguf").output
    rng = np.random.default_rng(11)
    weights = {name: rng.uniform(0.1, 30, 256).astype(np.float32) for name in names_of(plain)}
    weights = {name: np.round(values, 1).astype(np.float32) for name, values in weights.items()}
    path = tmp_path / "imatrix"
    if legacy:
        parts = [len(weights).to_bytes(4, "little")]
        for name, values in weights.items():
            head = [
                len(name).to_bytes(4, "little"),
                name.encode(),
                (2).to_bytes(4, "little"),
                (256).to_bytes(4, "little"),
            ]
            parts += [*head, (values * 2).tobytes()]
        path.write_bytes(b"".join(parts))
    else:
        write_imatrix(path, weights)
    read = read_imatrix(path)
    assert all(np.array_equal(read[name], values) for name, values in weights.items())
    assert read.keys() == weights.keys()
    models.export(source, tmp_path / "x.gguf", outtype="q4_k_s", imatrix=path)
    kind, _, raw = gguf_files.tensors(tmp_path / "x.gguf")["blk.1.ffn_up.weight"]
    assert (kind, raw) == ("Q4_K", quantised(up_of(source, "F32"), "Q4_K", weights["blk.1.ffn_up.weight"]))
    assert raw != quantised(up_of(source, "F32"), "Q4_K")


def test_types_that_need_one_say_so(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="F16", **WIDE)
    with pytest.raises(ConfigError, match=r"llama.cpp quantises to iq2_xxs only with an importance matrix") as caught:
        models.export(source, outtype="iq2_xxs")
    assert caught.value.where == "--imatrix"
    plain = models.export(source, tmp_path / "plain.gguf").output
    weights = {name: np.ones(256, np.float32) for name in names_of(plain)}
    result = models.export(source, outtype="iq2_xxs", imatrix=write_imatrix(tmp_path / "i.gguf", weights))
    assert "IQ2_XXS" in {kind for kind, _, _ in gguf_files.tensors(result.output).values()}


def test_the_list_of_types_that_need_one_is_libllamas(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="F16", **WIDE)
    plain = models.export(source, tmp_path / "plain.gguf").output
    for number, (name, kind) in enumerate(outtypes.OUTTYPES.items()):
        if not kind.by_libllama or name not in ("q2_k", "q2_k_s", "iq3_xs", "iq3_s", "iq2_m"):
            continue
        if kind.weighted:
            with pytest.raises(CheckpointError, match="requires an imatrix"):
                kquants.quantise(plain, tmp_path / str(number), name, None)
        else:
            kquants.quantise(plain, tmp_path / str(number), name, None)


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (b"", CorruptFile, "is not an importance matrix"),
        (b"\x01\x00\x00\x00\x05\x00\x00\x00hello", CorruptFile, "is not an importance matrix"),
        (b"\xff" * 64, CorruptFile, "is not an importance matrix"),
        (b"GGUF\x03", CorruptFile, "cut off"),
        (None, MissingFile, "does not exist"),
    ],
)
def test_a_file_that_is_no_importance_matrix(
    content: bytes | None, error: type[Exception], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "imatrix"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=text):
        read_imatrix(path)


def test_importance_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = write_imatrix(tmp_path / "i", {"blk.0.ffn_up.weight": np.array([1.0, np.nan] * 128)})
    with pytest.raises(CheckpointError, match=r"the importance of blk.0.ffn_up.weight is not finite"):
        read_imatrix(path)


def test_the_file_says_which_matrix_it_was_made_with_and_what_that_lacked(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="F32", **WIDE)
    names = names_of(models.export(source, tmp_path / "plain.gguf").output)
    weights = {name: np.ones(256, np.float32) for name in names if "ffn_up" not in name}
    made = models.export(source, tmp_path / "x.gguf", outtype="q4_k_s", imatrix=write_imatrix(tmp_path / "i", weights))
    assert "the importance matrix has no entry for 2 matrices, the first blk.0.ffn_up.weight" in made.notes
    stated = gguf_files.keys(made.output)
    assert (stated["quantize.imatrix.file"], stated["quantize.imatrix.entries_count"]) == ("i", len(weights))
    whole = write_imatrix(tmp_path / "j", {name: np.ones(256, np.float32) for name in names if name.startswith("blk.")})
    made = models.export(source, tmp_path / "y.gguf", outtype="q4_k_s", imatrix=whole)
    assert not any("importance" in note for note in made.notes)


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [
        ("blk.9.ffn_up.weight", 256, "none of its 1 entries, the first blk.9.ffn_up.weight, is for a matrix of this"),
        ("blk.0.ffn_up.weight", 128, "has 128 numbers for blk.0.ffn_up.weight; it must have 256, one for each column"),
    ],
)
def test_a_matrix_of_another_model_is_refused(name: str, size: int, text: str, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="F32", **WIDE)
    path = write_imatrix(tmp_path / "i", {name: np.ones(size, np.float32)})
    with pytest.raises(CheckpointError, match=re.escape(text)) as caught:
        models.export(source, tmp_path / "x.gguf", outtype="q4_k_s", imatrix=path)
    assert caught.value.where == str(path)
    assert not (tmp_path / "x.gguf").exists()


# --- what can go wrong


def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    source = models.checkpoint(tmp_path / "model", **WIDE)
    with pytest.raises(MissingDependency, match=r"q4_k_m needs llama.cpp's quantiser") as caught:
        models.export(source, outtype="q4_k_m")
    assert install_line("llama") in caught.value.try_
    models.export(source, outtype="q8_0")


def test_a_nan_is_found_before_libllama(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", **WIDE)
    given = models.weights({**models.BY_HAND["llama"], **WIDE})
    given["model.layers.0.mlp.up_proj.weight"][1][7, 9] = np.nan
    models.write_safetensors(source / "model.safetensors", given)
    with pytest.raises(CheckpointError, match=r"model.layers.0.mlp.up_proj.weight contains NaN in row 7, column 9"):
        models.export(source, outtype="q6_k", allow_nan=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_libllamas_words_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF nonsense")
    with pytest.raises(CheckpointError, match=r"llama.cpp cannot quantise the model: .*failed to") as caught:
        kquants.quantise(tmp_path / "x.gguf", tmp_path / "y.gguf", "q4_k_m", None)
    assert caught.value.where == str(tmp_path / "y.gguf")


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model", dtype="F32", **WIDE)
    plain = models.export(source, tmp_path / "plain.gguf").output
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom ropetool.gguf_export import kquants\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000,) * 2)\n"
        "try: kquants.quantise(Path(sys.argv[1]), Path(sys.argv[2]), 'q4_k_m', None)\n"
        "except kquants.OutputError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, plain, tmp_path / "y.gguf"], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"{tmp_path / 'y.gguf'}: could not be written completely; the disk may be full\n"
        "Try: pass an -o on a different disk\n"
    )

    def fail(*_: object) -> None:
        raise OutputError(
            "could not be written completely; the disk may be full",
            where=str(tmp_path / ".x.gguf.ropetool-abc" / "small"),
        )

    monkeypatch.setattr(kquants, "quantise", fail)
    with pytest.raises(OutputError, match="could not be written") as caught:
        models.export(source, tmp_path / "x.gguf", outtype="q4_k_m")
    assert caught.value.where == str(tmp_path / "x.gguf")
    assert not list(tmp_path.glob("*x.gguf*"))


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kquants, "_in_child", stop)
    with pytest.raises(KeyboardInterrupt):
        models.export(models.checkpoint(tmp_path / "model", **WIDE), tmp_path / "x.gguf", outtype="q4_k_m")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# An export whose other process says its number through a pipe, and then has work for ever.
ENDLESS = """
import signal, sys
from ropetool.gguf_export import export_checkpoint, kquants
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
kquants._CHILD = '''
import os, threading
from ropetool.gguf_export import kquants
def endless():
    pipe = open(os.environ["PIPE"], "w", buffering=1)
    pipe.write(f"{os.getpid()}\\\\n")
    threading.Event().wait()
kquants.library = endless
''' + kquants._CHILD
export_checkpoint(sys.argv[1], sys.argv[2], outtype="q4_k_m", check=False)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_the_other_process_too(number: int, code: int, tmp_path: Path) -> None:
    source, folder = models.checkpoint(tmp_path / "model", **WIDE), tmp_path / "output"
    folder.mkdir()
    os.mkfifo(tmp_path / "pipe")
    parent = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, source, folder / "x.gguf"], stderr=subprocess.DEVNULL,
        env={**os.environ, "PIPE": str(tmp_path / "pipe")},
    )  # fmt: skip
    with (tmp_path / "pipe").open() as pipe:  # once the other process has opened it
        child = int(pipe.readline())
        parent.send_signal(number)
        assert parent.wait(60) == code
        ended = bool(select([pipe], [], [], 60)[0])  # it is closed when the process has ended
        if not ended:
            os.kill(child, signal.SIGKILL)
    assert ended
    if number != signal.SIGKILL:
        assert list(folder.iterdir()) == []


def test_sigterm_is_left_to_those_who_handle_it(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    seen: list[Any] = []

    def look(tensor: str, done: int, total: int) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    def mine(*_: object) -> None:
        raise AssertionError

    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    models.export(source, tmp_path / "x.gguf", progress=look)
    assert callable(seen[-1])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    try:
        signal.signal(signal.SIGTERM, mine)
        models.export(source, tmp_path / "y.gguf", progress=look)
        assert seen[-1] == signal.getsignal(signal.SIGTERM) == mine
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def in_parts(source: Path, target: Path) -> None:
    models.export(source, target, split_max_tensors=8)


def in_one(source: Path, target: Path) -> None:
    target.write_bytes(b"precious")


@pytest.mark.parametrize(
    ("make", "limits"),
    [
        (in_parts, {"split_max_tensors": 8}),
        (in_parts, {"split_max_tensors": 3}),
        (in_parts, {"split_max_size": "1M"}),
        (in_one, {}),
        (in_one, {"split_max_size": "1G"}),
        (in_one, {"split_max_tensors": 21}),
    ],
)
def test_what_exists_is_found_before_the_work(
    make: Callable[[Path, Path], None], limits: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = models.checkpoint(tmp_path / "model", **WIDE)
    make(source, tmp_path / "x.gguf")
    monkeypatch.delattr(kquants, "quantise")
    with pytest.raises(OutputError, match="exists already"):
        models.export(source, tmp_path / "x.gguf", outtype="q4_k_m", **limits)


@pytest.mark.parametrize("taken", ["x-00002-of-00003.gguf", "x-00001-of-00003.gguf.ropetool.json"])
def test_parts_of_others_are_found_before_the_work_with_force_too(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = models.checkpoint(tmp_path / "model", **WIDE)
    for name in (taken, "x-00001-of-00003.gguf"):
        (tmp_path / name).write_bytes(b"precious")
    monkeypatch.delattr(kquants, "quantise")
    with pytest.raises(OutputError, match="force does not replace it") as refused:
        models.export(source, tmp_path / "x.gguf", outtype="q4_k_m", split_max_tensors=8, force=True)
    assert refused.value.where == str(tmp_path / "x-00001-of-00003.gguf")
    assert (tmp_path / taken).read_bytes() == b"precious"


def test_libllama_gets_the_processors_that_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = SimpleNamespace()
    quantiser = SimpleNamespace(llama_model_quantize_default_params=lambda: given, llama_model_quantize=lambda *_: 0)
    monkeypatch.setattr(kquants, "library", lambda: quantiser)
    monkeypatch.setattr(kquants, "listening", lambda _: nullcontext([]))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert kquants.run({"source": "", "target": "", "file_type": 15, "imatrix": None, "kept": []}) == ""
    assert given.nthread == 3


# --- the demo model


TEXT, TOKENS = "Once upon a time there was", 24


def generated(path: Path) -> list[int]:
    """Return the text and the likeliest tokens that llama.cpp puts behind it."""
    lib = llama_library.library()
    model = llama_library.LlamaModel(lib, path, gpu=False, cache="F32", flash_attention=False)
    try:
        ids = llama_library.tokens_of(lib, lib.llama_model_get_vocab(model._model), TEXT)
        model.open(256, 1)
        for _ in range(TOKENS):
            ((_, logits),) = model.logits(np.array(ids), len(ids) - 1, len(ids))
            ids.append(int(logits[0].argmax()))
        return ids
    finally:
        model.close()


def by_transformers(source: Path) -> list[int]:
    """Return the same of the checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    ids = torch.tensor([tokenizer.encode(TEXT, add_special_tokens=False)])
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    found: list[int] = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0].tolist()
    return found


def test_the_demo_model_generates_text_and_passes_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for outtype, bound in BOUNDS.items():
        path = models.export(DEMO, tmp_path / f"{outtype}.gguf", outtype=outtype).output
        text = generated(path)
        assert len(set(text)) > 8
        if outtype == "q8_0":  # with four bits it is another one
            assert text == by_transformers(DEMO)
        options = [
            "--against",
            str(DEMO),
            "--max-kl",
            str(bound),
            "--suite",
            "quick",
            "--lengths",
            "256",
            "--segments",
            "8",
        ]
        with pytest.raises(SystemExit) as ended:
            main(["verify", str(path), *options, "--json"])
        assert ended.value.code == 1, capsys.readouterr().err  # partial: nothing is longer than its trained length
        (found[outtype],) = [
            check["figure"] for check in json.loads(capsys.readouterr().out)["checks"] if check["name"] == "KL"
        ]
    assert BOUNDS["q8_0"] / 10 < found["q8_0"] < BOUNDS["q8_0"] < found["q4_k_m"]  # the bound sees four bits
