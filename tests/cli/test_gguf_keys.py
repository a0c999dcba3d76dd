"""ropetool gguf list, get, set and unset as they are typed, against the gguf package's reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import gguf_files
import numpy as np
import pytest
from running import run

from ropetool.files.gguf import Value, ValueType
from ropetool.report.gguf_keys import shortened

TEMPLATE = "{% for m in messages %}\n{{ m['content'] }}\t\x1b[31m é\n{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_files.model(tmp_path / "model.gguf")


def data(path: Path) -> list[bytes]:
    return [tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors]


def piped(*arguments: str) -> bytes:
    """Return what a pipe gets from the command; its streams hold bytes, which those of `run` do not."""
    return subprocess.run([sys.executable, "-m", "ropetool", *arguments], capture_output=True, check=True).stdout


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- list and get


def test_the_list_says_every_key_with_its_type(model: Path) -> None:
    done = run("gguf", "list", str(model))
    assert (done.code, done.err) == (0, "")
    head, *lines = done.out.splitlines()
    assert head == "model.gguf: GGUF version 3, 11 keys, 12 tensors"
    assert [line.split()[0] for line in lines] == list(gguf_files.keys(model))
    assert "  llama.context_length                    u32  512" in lines
    listed = json.loads(run("gguf", "list", str(model), "--json").out)
    assert {entry["key"]: entry["value"] for entry in listed["keys"]} == gguf_files.keys(model)


def test_long_values_are_cut_and_said_to_be(model: Path) -> None:
    tokens = [f"t{number}" for number in range(1000)]
    made = model.with_name("long.gguf")
    done = run("gguf", "set", str(model), "x.tokens", "arr:str", json.dumps(tokens), "-o", str(made))
    assert done.code == 0
    run("gguf", "set", str(made), "x.text", "str", "a" * 5000, "-o", str(made.with_name("longer.gguf")))
    listed = run("gguf", "list", str(made.with_name("longer.gguf"))).out.splitlines()
    assert listed[-2].endswith('["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", ...] 1,000 elements')
    assert listed[-1].endswith("a" * 100 + "... 5,000 characters")
    assert json.loads(piped("gguf", "get", str(made), "x.tokens")) == tokens
    entry = json.loads(run("gguf", "list", str(made), "--json").out)["keys"][-1]
    assert (entry["count"], entry["first"]) == (1000, tokens[:16])
    assert json.loads(run("gguf", "get", str(made), "x.tokens", "--json").out)["value"] == tokens


def test_what_a_terminal_would_obey_is_shown_as_an_escape(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(TEMPLATE, encoding="utf-8")
    made = tmp_path / "made.gguf"
    run("gguf", "set", str(model), "tokenizer.chat_template", "--from-file", str(tmp_path / "t.jinja"), "-o", str(made))
    (line,) = (line for line in run("gguf", "list", str(made)).out.splitlines() if "chat_template" in line)
    assert line.endswith(TEMPLATE.replace("\n", "\\n").replace("\t", "\\t").replace("\x1b", "\\x1b"))


def test_an_unknown_key_is_named_with_its_neighbours(model: Path) -> None:
    done = run("gguf", "get", str(model), "llama.context_lenght")
    assert done.code == 1
    assert done.err == (
        f"Error: {model}: does not have a key 'llama.context_lenght' (did you mean llama.context_length or llama.embedding_length?)\n"
        f"Try: ropetool gguf list {model}, which shows all of them\n"
    )


# --- set and unset


def test_a_text_from_a_file_comes_back_byte_for_byte(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(TEMPLATE, encoding="utf-8")
    made = tmp_path / "made.gguf"
    done = run(
        "gguf", "set", str(model), "tokenizer.chat_template", "--from-file", str(tmp_path / "t.jinja"), "-o", str(made)
    )
    assert (done.code, done.err) == (0, "")
    assert gguf_files.keys(made) == {**gguf_files.keys(model), "tokenizer.chat_template": TEMPLATE}
    assert data(made) == data(model)
    assert piped("gguf", "get", str(made), "tokenizer.chat_template") == TEMPLATE.encode()


def test_the_table_is_shown_before_and_after(model: Path, tmp_path: Path) -> None:
    done = run("gguf", "set", str(model), "llama.rope.freq_base", "5e5", "-o", str(tmp_path / "made.gguf"))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:2] == [
        "llama.rope.freq_base  f32 10000.0 -> f32 500000.0",
        "rotation              default, theta 10000; context 512 -> default, theta 500000; context 512",
    ]
    found = json.loads(
        run("gguf", "set", str(model), "general.name", "x", "-o", str(tmp_path / "b.gguf"), "--json").out
    )
    assert (found["before"], found["after"]["value"], found["rotation"]) == (None, "x", None)


def test_a_key_is_removed(model: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    assert run("gguf", "unset", str(model), "llama.rope.freq_base", "-o", str(made)).code == 0
    assert gguf_files.keys(made) == {
        key: value for key, value in gguf_files.keys(model).items() if key != "llama.rope.freq_base"
    }


def test_of_a_split_model_only_the_first_file_is_written_anew(tmp_path: Path) -> None:
    first = gguf_files.model(tmp_path / "model.gguf", shards=2)
    second = tmp_path / "model-00002-of-00002.gguf"
    done = run("gguf", "set", str(second), "llama.context_length", "2048", "-o", str(tmp_path / "made.gguf"))
    assert done.code == 0
    made = [tmp_path / f"made-0000{number}-of-00002.gguf" for number in (1, 2)]
    assert gguf_files.keys(made[0]) == {**gguf_files.keys(first), "llama.context_length": 2048}
    assert made[1].read_bytes() == second.read_bytes()
    refused = run("gguf", "set", str(first), "split.count", "3", "-o", str(tmp_path / "x.gguf"), "--force")
    assert refused.err == "Error: split.count: follows from the files of a split model and cannot be edited\n"


REFUSED = [
    (("llama.context_length", "f32", "4096"), "llama.context_length is f32; llama.cpp reads it only as u32"),
    (("llama.context_length", "-1"), "-1 does not fit u32, which ranges from 0 to 4294967295"),
    (("llama.rope.scaling.type", "yarnx"), "llama.rope.scaling.type is 'yarnx': llama.cpp aborts the whole process unless"),
    (("llama.rope.freq_base", "nan"), "llama.rope.freq_base is not a finite number"),
    (("llama.attention.head_count", "[]"), "llama.attention.head_count has 0 elements; llama.cpp requires a number for each"),
    (("llama.contxt", "1"), "its type is unknown"),
    (("x.y", "u33", "1"), "'u33' is not a type"),
    (("general.alignment", "64"), "must stay 32, because the data has this alignment"),
    (("general.name", "a\udcff"), "is not UTF-8 from character 1 on"),
    (("general.architecture", "lama"), "general.architecture is 'lama' (did you mean llama"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), REFUSED)
def test_what_llama_cpp_would_not_load_is_refused_in_one_sentence(
    words: tuple[str, ...], says: str, model: Path, tmp_path: Path
) -> None:
    before = left(tmp_path)
    done = run("gguf", "set", str(model), *words, "-o", str(tmp_path / "made.gguf"))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: ")
    assert says in done.err.splitlines()[0]
    assert left(tmp_path) == before


def test_force_writes_it_and_says_what_was_overridden(model: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    done = run("gguf", "set", str(model), "llama.context_length", "f32", "4096", "-o", str(made), "--force")
    assert done.code == 0
    assert "Note: llama.cpp rejects or misreads this file: llama.context_length is f32" in done.err
    assert "llama.context_length is 0" not in done.err
    assert gguf_files.keys(made)["llama.context_length"] == 4096.0


def test_a_key_that_nobody_reads_is_set_with_a_note(model: Path, tmp_path: Path) -> None:
    done = run("gguf", "set", str(model), "llama.rope.freqbase", "f32", "5", "-o", str(tmp_path / "a.gguf"))
    assert (
        done.err
        == "Note: llama.cpp and its converters do not know llama.rope.freqbase (did you mean llama.rope.freq_base or "
        "llama.rope.freq_base_swa?), so the edit has no effect there\n"
    )
    done = run("gguf", "set", str(model), "llama.rope.scaling.yarn_beta_fast", "16", "-o", str(tmp_path / "b.gguf"))
    assert (
        done.err
        == "Note: llama.cpp does not read llama.rope.scaling.yarn_beta_fast for llama models, so the edit has no effect there\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("general.name",), "expects FILE KEY [TYPE] VALUE"),
        (("general.name", "str", "a", "b"), "expects FILE KEY [TYPE] VALUE"),
        (("general.name", "x", "--from-fiel", "y"), "No such option '--from-fiel'"),
    ],
)
def test_words_that_are_no_command_line(words: tuple[str, ...], says: str, model: Path, tmp_path: Path) -> None:
    done = run("gguf", "set", str(model), *words, "-o", str(tmp_path / "made.gguf"))
    assert done.code == 2
    assert says in done.err


def test_a_negative_number_is_no_option(model: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    assert run("gguf", "set", str(model), "x.y", "i32", "-5", "-o", str(made)).code == 0
    assert gguf_files.keys(made)["x.y"] == -5


def test_an_output_is_never_written_over(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"mine")
    done = run("gguf", "set", str(model), "general.name", "x", "-o", str(other), "--force")
    assert done.code == 1
    assert "is not listed in a ropetool record" in done.err
    assert other.read_bytes() == b"mine"
    done = run("gguf", "set", str(model), "general.name", "x", "-o", str(model), "--force")
    assert done.code == 1
    assert "general.name" not in gguf_files.keys(model)


@pytest.mark.parametrize("command", [("list",), ("get", "general.name"), ("unset", "general.name", "-o", "x")])
def test_what_is_no_gguf_file(command: tuple[str, ...], tmp_path: Path) -> None:
    plain = tmp_path / "a.gguf"
    plain.write_bytes(b"not one at all")
    name, *rest = command
    done = run("gguf", name, str(plain), *rest)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"Error: {plain}: the header at byte 0 starts with b'not '; a GGUF file starts with b'GGUF'\n"


def test_a_file_that_is_cut_off(model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:200])
    done = run("gguf", "list", str(cut))
    assert done.code == 1
    assert "is cut off: the file ends at byte 200" in done.err or ", but the file ends at byte 200" in done.err


def test_a_value_from_a_file_that_is_not_there(model: Path, tmp_path: Path) -> None:
    done = run(
        "gguf", "set", str(model), "general.name", "--from-file", str(tmp_path / "none"), "-o", str(tmp_path / "x.gguf")
    )
    assert done.code == 1
    assert str(tmp_path / "none") in done.err


def test_a_file_that_is_no_language_model_is_edited_too(tmp_path: Path) -> None:
    keys = {"general.type": "mmproj", "vision.image_size": 224}
    gguf_files.write(tmp_path / "mmproj.gguf", "clip", keys, {"v.a": np.ones(32, np.float32)})
    made = tmp_path / "made.gguf"
    done = run("gguf", "set", str(tmp_path / "mmproj.gguf"), "clip.vision.image_size", "336", "-o", str(made))
    assert (done.code, done.err) == (0, "")
    assert gguf_files.keys(made) == {**gguf_files.keys(tmp_path / "mmproj.gguf"), "clip.vision.image_size": 336}
    assert run("gguf", "set", str(made), "clip.vision.image_size", "many", "-o", str(tmp_path / "x.gguf")).code == 1


def test_keys_of_ropetool_that_are_not_so_any_more_are_removed(tmp_path: Path) -> None:
    path = gguf_files.model(tmp_path / "a.gguf")
    ours = {"ropetool.method": "yarn", "ropetool.verified.verdict": "pass"}
    for number, (key, value) in enumerate(ours.items()):
        made = tmp_path / f"{number}.gguf"
        run("gguf", "set", str(path), key, "str", value, "-o", str(made))
        path = made
    for words, kept in (
        (("general.name", "x"), ours), (("tokenizer.chat_template", "x"), ours),
        (("llama.vocab_size", "96"), ours), (("llama.attention.causal", "false"), {"ropetool.method": "yarn"}),
        (("llama.rope.freq_base", "5e5"), {}),
    ):  # fmt: skip
        made = tmp_path / f"made-{words[0]}.gguf"
        assert run("gguf", "set", str(path), *words, "-o", str(made)).code == 0
        assert {key: value for key, value in gguf_files.keys(made).items() if key.startswith("ropetool.")} == kept


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes into any folder")
def test_a_folder_that_may_not_be_written(model: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = run("gguf", "set", str(model), "general.name", "x", "-o", str(closed / "x.gguf"))
    assert done.code == 1
    assert "Permission denied" in done.err


def test_elements_in_a_line_are_whole() -> None:
    listed = Value.array(ValueType.STR, ["ab", "cd", "ef", "g" * 90])
    for line in range(6, 60):
        shown, _, count = shortened(listed, line).rpartition(", ...] ")
        assert count == "4 elements"
        assert json.loads(f"{shown}]") == ["ab", "cd", "ef"][: max(1, (line + 2) // 6)]


def test_a_longer_context_alone_is_said_to_extend_nothing(tmp_path: Path) -> None:
    source = gguf_files.model(tmp_path / "m.gguf")
    longer = run("gguf", "set", source, "llama.context_length", "4096", "-o", tmp_path / "long.gguf")
    note = "this does not extend the model: text beyond its trained length fails"
    assert note in longer.err
    assert f"`ropetool extend {source} --target-length 4096`" in longer.err
    shorter = run("gguf", "set", source, "llama.context_length", "256", "-o", tmp_path / "short.gguf")
    assert (shorter.code, note in shorter.err) == (0, False)
