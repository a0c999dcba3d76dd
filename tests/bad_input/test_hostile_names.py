"""Names and values that a terminal, a shell or a markup language would obey: shown as escapes, quoted where copied.

One name carries everything: a line end, a link of terminals, a colour, a reversed direction, markup of rich and of HTML, quotes, a command.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import configs
import gguf_files
import numpy as np
import pytest
from models import write_model
from running import Done, run
from safetensors.numpy import save_file

import ropetool
from ropetool.checkpoint import provenance
from ropetool.escaping import escaped, word
from ropetool.plans.model_card import CARD, MODELFILE

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
EVIL = "a\n\x1b]8;;x\x07\x1b[31m\u202e[red] [bold]'\"$(touch x) ;`touch y`<script>&|\\"
SHOWN = escaped(EVIL)
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
BASH = shutil.which("bash") or "/bin/bash"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    with contextlib.chdir(tmp_path):
        yield
        assert not {"x", "y"} & {path.name for path in tmp_path.rglob("*")}  # what the name would have a shell make


def clean(done: Done) -> Done:
    """Return what a command left behind: no traceback and no character that a terminal obeys."""
    for text in (done.out, done.err):
        assert not RAW.search(text), repr(RAW.search(text))
        assert "Traceback" not in text
    assert done.code in (0, 1, 3), done
    return done


def words(line: str) -> list[str]:
    """Return the words of a command line as bash takes them."""
    shell = f"shown() {{ printf '%s\\0' \"$@\"; }}; shown {line.replace(' && ', ' ; shown ')}"
    done = subprocess.run([BASH, "-c", shell], capture_output=True, check=True)
    return [os.fsdecode(part) for part in done.stdout.split(b"\0")][:-1]


def holds(line: str, path: str | Path) -> None:
    """Assert that a shell finds the path among the words of a line, whole, as it is or from the root."""
    assert {str(path), os.path.abspath(path)} & set(words(line)), (words(line), str(path))


def served_by(out: str) -> list[str]:
    """Return the command lines that serve an output, each behind the server's name."""
    return [line.strip() for line in out.partition("\nserved by\n")[2].partition("\n\n")[0].splitlines()]


def measuring(out: str) -> str:
    """Return the command line that measures an output."""
    (line,) = [line.strip() for line in out.splitlines() if line.startswith("  measure it  ")]
    return line.removeprefix("measure it").strip()


def tries(done: Done) -> str:
    (line,) = [line for line in done.err.splitlines() if line.startswith("Try: ")]
    return line.removeprefix("Try: ")


def demo(path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Return a copy of the embedded checkpoint, with another config."""
    shutil.copytree(DEMO, path)
    if change is not None:
        config = json.loads((path / "config.json").read_text())
        change(config)
        (path / "config.json").write_text(json.dumps(config, indent=2))
    return path


# --- directories


def test_every_command_shows_a_hostile_folder_and_file_and_quotes_it() -> None:
    source = demo(Path(EVIL), lambda config: config.update({EVIL: EVIL, "_name_or_path": EVIL}))
    (source / CARD).write_text("# A model\n")
    (source / f"{EVIL}.bin").write_bytes(b"pickle")  # left behind
    (source / f"{EVIL}.txt").write_text("carried")
    output = Path(f"{EVIL}-yarn-4x")

    assert clean(run("inspect", source)).out.startswith(f"{SHOWN}: llama")
    dry = clean(run("extend", source, "--method", "yarn", "--factor", "4", "--dry-run"))
    served = [line for line in dry.out.splitlines() if "serve " in line or "launch_server" in line]
    assert len(served) == 2
    for line in served:
        holds(line.partition(": ")[2], source)

    done = clean(run("extend", source, "--method", "yarn", "--factor", "4"))
    assert done.code == 0, done
    assert done.out.splitlines()[0].endswith(f"/{SHOWN}-yarn-4x")
    assert f"{SHOWN}.bin" in done.out  # left behind
    for line in served_by(done.out):
        holds(line.partition(": ")[2], output)
    holds(measuring(done.out), output)
    card = (output / CARD).read_text()
    for line in card.partition("### Serving")[2].splitlines():
        if line.startswith(("vllm", "python")):
            holds(line, output.name)
    (command,) = [line.strip() for line in card.splitlines() if line.strip().startswith("ropetool extend")]
    holds(command, source)

    for arguments in (["diff", source, output], ["diff", source, output, "--json"], ["inspect", output]):
        clean(run(*arguments))
    again = clean(run("extend", output, "--method", "yarn", "--factor", "8"))
    assert again.code == 1
    holds(tries(again), output)
    clean(run("export", output))
    ungraded = clean(run("export", output, "--require", "usable", "-o", "graded.gguf"))
    holds(tries(ungraded), output)


def test_a_plan_a_bake_and_its_record() -> None:
    source = demo(Path(EVIL))
    clean(run("extend", source, "--method", "yarn", "--factor", "4", "--plan-out", "plan.json", "--dry-run"))
    clean(run("apply", source, "plan.json", "-o", Path("made ", EVIL)))  # there is no such folder
    holds(tries(clean(run("apply", source, "plan.json", "-o", Path(EVIL * 2, "out")))), EVIL * 2)
    assert clean(run("apply", source, "plan.json")).code == 0
    output = f"{EVIL}-yarn-4x"
    assert clean(run("bake", output, "attention-factor", "--check")).code == 0
    baked = f"{output}-baked"
    clean(run("extend", source, "--method", "yarn", "--factor", "4", "-o", Path(source, "inside")))
    again = clean(run("bake", baked, "attention-factor"))
    assert again.code == 1


def test_hostile_values_in_a_config() -> None:
    for number, change in enumerate(
        [
            lambda config: config.update(model_type=EVIL),
            lambda config: config.update(rope_scaling={"rope_type": EVIL, "factor": 4.0}),
            lambda config: config.update(rope_scaling={"rope_type": "yarn", "factor": 4.0, EVIL: EVIL}),
            lambda config: config.update(layer_types=[EVIL] * 4),
            lambda config: config.update(hidden_act=EVIL, architectures=[EVIL]),
            lambda config: config.update(rope_theta=EVIL),
            lambda config: config.update(quantization_config={"quant_method": EVIL}),
            lambda config: config.update(auto_map={EVIL: EVIL}),
        ]
    ):
        source = demo(Path(f"model{number}"), change)
        clean(run("inspect", source))
        clean(run("inspect", source, "--json"))
        clean(run("extend", source, "--method", "yarn", "--factor", "4", "--dry-run"))
        clean(run("export", source))
        clean(run("diff", DEMO, source))


def test_hostile_tensor_names_shards_and_records() -> None:
    source = write_model(Path("model"), configs.config("llama", "v4"))
    index = json.loads((source / "model.safetensors.index.json").read_text())
    missing = f"{EVIL}.safetensors"
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EVIL: missing}}))
    assert clean(run("extend", source, "--method", "yarn", "--factor", "4")).code == 1
    missing = missing.replace("\\", "")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EVIL: missing}}))
    done = clean(run("extend", source, "--method", "yarn", "--factor", "4"))
    assert (done.code, words(tries(done))) == (1, ["download", missing, "into", "model"])
    (source / "model.safetensors.index.json").write_text(json.dumps(index))

    other = demo(Path("other"))
    (other / "model.safetensors").unlink()
    save_file({EVIL: np.ones((2, 2), np.float32)}, other / "model.safetensors", {EVIL: EVIL})
    found = clean(run("diff", DEMO, other))
    assert SHOWN in found.out
    clean(run("export", other))
    clean(run("bake", other, "score", "--multiplier", "2"))

    assert run("extend", demo(Path("plain")), "--method", "yarn", "--factor", "4").code == 0
    record = Path("plain-yarn-4x", "ropetool.json")
    made = json.loads(record.read_text())
    for key in ("source", "source_fingerprint"):
        record.write_text(json.dumps({**made, key: EVIL, "plan": {**made["plan"], "notes": [EVIL], "method": EVIL}}))
        for arguments in (["inspect"], ["extend", "--method", "yarn", "--factor", "8"], ["export"], ["bake"]):
            clean(run(arguments[0], record.parent, *arguments[1:], *(["attention-factor"] * (arguments == ["bake"]))))
        clean(run("diff", "plain", record.parent))


def test_the_hints_of_a_directory_that_is_none(tmp_path: Path) -> None:
    folder = Path(EVIL)
    folder.mkdir()
    (folder / f"{EVIL}.gguf").write_bytes(b"")
    holds(tries(clean(run("inspect", folder))), folder / f"{EVIL}.gguf")
    (folder / "config.json").write_text("{}")
    holds(tries(clean(run("inspect", folder / "config.json"))), folder)


# --- GGUF files


def test_every_command_shows_a_hostile_gguf_file_and_quotes_it() -> None:
    source = gguf_files.model(Path(f"{EVIL}.gguf"))
    clean(run("inspect", source))
    dry = clean(run("extend", source, "--method", "yarn", "--factor", "4", "--dry-run"))
    (line,) = [line for line in dry.out.splitlines() if "llama-server" in line]
    holds(line.partition(": ")[2], source)
    done = clean(run("extend", source, "--method", "yarn", "--factor", "4"))
    output = Path(f"{EVIL}-yarn-4x.gguf")
    assert output.is_file()
    server, kobold, _ = served_by(done.out)
    holds(server.partition(": ")[2], output)
    holds(kobold.partition(": ")[2].partition("  #")[0], output)
    holds(measuring(done.out), output)
    card = output.with_name(f"{output.name}.{CARD}").read_text()
    (line,) = [line for line in card.splitlines() if line.startswith("llama-server")]
    holds(line, output.name)
    assert not output.with_name(f"{output.name}.{MODELFILE}").exists()  # it could not name the file
    clean(run("diff", source, output))
    refused = clean(run("extend", source, "--method", "yarn", "--factor", "4", "-p", "beta_fast", "16", "-o", source))
    assert refused.code == 1


def test_hostile_names_in_a_modelfile_stay_one_line() -> None:
    name = "$(touch x) ;a 'b' #c.gguf"
    gguf_files.model(Path(name))
    assert clean(run("extend", name, "--method", "yarn", "--factor", "4")).code == 0
    (text,) = [path.read_text() for path in Path().iterdir() if path.name.endswith(MODELFILE)]
    assert text.splitlines()[1] == "FROM ./$(touch x) ;a 'b' #c-yarn-4x.gguf"


def test_hostile_keys_and_strings_of_a_gguf_file() -> None:
    gguf_files.model(Path("m.gguf"), keys={"rope.scaling.type": EVIL})
    raw = Path("m.gguf").read_bytes()
    for name, old in (("arch", b"llama"), ("key", b"rope.freq_base"), ("tensor", b"token_embd")):
        evil = EVIL.encode()
        spoiled = (b"\x1b[31m" + evil[:2] * len(old))[: len(old)]
        Path(f"{name}.gguf").write_bytes(raw.replace(old, spoiled))
        clean(run("inspect", f"{name}.gguf"))
        clean(run("extend", f"{name}.gguf", "--method", "yarn", "--factor", "4"))
        clean(run("diff", "m.gguf", f"{name}.gguf"))
    clean(run("inspect", "m.gguf"))
    clean(run("extend", "m.gguf", "--method", "yarn", "--factor", "4"))


# --- texts, cards, usage


def test_a_verification_of_hostile_names() -> None:
    pytest.importorskip("torch")
    source = demo(Path(EVIL), lambda config: config.update(_name_or_path=EVIL))
    text = Path(f"{EVIL}.txt")
    text.write_text((Path(ropetool.__file__).parent / "demo" / "text" / "python-textwrap.txt").read_text())
    made = ["--text", text, "--suite", "quick", "--lengths", "256", "--report", f"{EVIL}-report"]
    done = clean(run("verify", source, *made))
    assert done.out.startswith(f"partial: {SHOWN}, measured up to 256 tokens"), done
    page = Path(f"{EVIL}-report", "index.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_commands_that_cut_a_text() -> None:
    pytest.importorskip("torch")
    text = Path(f"{EVIL}.txt.gz")
    with gzip.open(text, "wb", compresslevel=1) as file:
        file.write(b"a b c d\n" * (5 << 20))
    done = clean(run("verify", DEMO, "--text", text, "--suite", "quick"))
    assert done.code == 1
    assert words(tries(done))[:4] == ["gunzip", "--keep", str(text), "split"]
    assert f"{EVIL}.txt" in words(tries(done))


def test_a_folder_like_the_hubs_cache_with_a_hostile_name_adds_no_line_to_the_card() -> None:
    yaml = pytest.importorskip("yaml")
    source = demo(Path(f"models--{EVIL}--name", "snapshots", "0123"))
    (source / CARD).write_text("---\nlicense: mit\n---\n# A model\n")
    assert clean(run("extend", source, "--method", "yarn", "--factor", "4", "-o", "out")).code == 0
    front = Path("out", CARD).read_text().split("---\n")[1]
    assert yaml.safe_load(front) == {
        "license": "mit",
        "tags": ["ropetool", "long-context"],
    }  # no repository has that name
    assert provenance.record(Path("out")) is not None


def test_a_hostile_argument_in_a_usage_error() -> None:
    for arguments in (["\x1b[31m"], ["inspect", "m", "--\x1b[31m"], ["verify", "m", "--lengths", "\x1b[31m\u202e"]):
        done = run(*arguments)
        assert done.code == 2
        assert not RAW.search(done.err), done.err


def test_serving_lines_of_an_odd_but_printable_name_suit_every_shell() -> None:
    source = demo(Path("$(touch x) ;a 'b'"))
    done = clean(run("extend", source, "--method", "yarn", "--factor", "4"))
    for line in [*served_by(done.out), measuring(done.out)]:
        assert os.path.abspath("$(touch x) ;a 'b'-yarn-4x") in shlex.split(line)
    assert word(source) in clean(run("extend", source, "--method", "yarn", "--factor", "4", "--dry-run")).out
