"""Certificates: what they are bound to, what makes them stale, where they stand, and what is refused as one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import configs
import gguf
import numpy as np
import pytest
from gguf_files import model as gguf_model
from models import safetensors, write_model
from running import snapshot

import ropetool
from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.certificate import (
    Certificate,
    State,
    check_place,
    kept,
    read,
    remedy,
    shortfall,
    state,
    wider,
    write,
)
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import CheckpointError, CorruptFile, NotACheckpoint, OutputError

PASSED = {"name": "ratio", "figure": 1.25, "limit": 1.5, "verdict": "pass", "detail": "at 2048"}
FAILED = {"name": "tax", "figure": 0.5, "limit": 0.35, "verdict": "fail", "detail": ""}
NOT_RUN = {"name": "retrieval", "figure": None, "limit": 0.8, "verdict": "not run", "detail": "texts too short"}
TEXTS = {"origin": "catalogue", "documents": 2, "manifest": "0f" * 32, "names": ["a", "b"]}
INFORMS = {"name": "useful", "figure": 0.1, "limit": None, "verdict": "-", "detail": ""}


def made(path: Path, **changes: Any) -> Certificate:
    """Return a passing certificate of this checkpoint, with some fields changed."""
    full = changes.get("full_hash", True)
    passing = Certificate(
        "pass", "quick", 2048, (PASSED, INFORMS), "ab12", {"ropetool": "0.1.0", "runtime": "transformers 5.23.0 on cpu"},
        "ropetool verify model-yarn-4x --suite quick", "2026-01-02T03:04:05+00:00", fingerprints.of(path, full), full, texts=TEXTS,
    )  # fmt: skip
    return replace(passing, **changes)


def large(directory: Path) -> Path:
    """Write a checkpoint whose one weight file has 9 MB, twice what is sampled, all different from block to block."""
    write_model(directory, configs.config("llama", "v4"))
    for path in [*directory.glob("*.safetensors"), directory / "model.safetensors.index.json"]:
        path.unlink()
    noise = np.random.default_rng(0).bytes(9_000_000)
    (directory / "model.safetensors").write_bytes(
        safetensors({"a.weight": noise[:5_000_000], "b.weight": noise[5_000_000:]})
    )
    return directory


@pytest.fixture(params=["samples", "all bytes"])
def full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether all bytes are to count; if not, as of a model that is too large for it."""
    if request.param == "samples":
        monkeypatch.setattr(fingerprints, "ALL_BELOW", 0)
    return bool(request.param == "all bytes")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return an output of ropetool: 512 trained tokens, 2048 stated."""
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    plan = ropetool.plan(source, "yarn", factor=4)
    return ropetool.apply(plan, source, tmp_path / "model-yarn-4x", copy=True).output


@pytest.fixture
def gguf_output(tmp_path: Path) -> Path:
    source = gguf_model(tmp_path / "m.gguf")
    return ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "m-yarn-4x.gguf").output


def flip(path: Path, at: int) -> None:
    """Change one bit of the file, and put its times back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# --- the fingerprint


def test_the_form_tells_samples_from_all_bytes(full: bool, output: Path) -> None:
    form, _, digits = fingerprints.of(output, full).partition(":")
    assert (form, len(digits), set(digits) <= set("0123456789abcdef")) == ("bytes" if full else "blocks", 64, True)


def test_a_copy_elsewhere_has_the_same(full: bool, output: Path, gguf_output: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(output, elsewhere / "renamed")
    os.utime(elsewhere / "renamed" / "config.json", (1, 1))
    assert fingerprints.of(elsewhere / "renamed", full) == fingerprints.of(output, full)
    shutil.copyfile(gguf_output, elsewhere / "renamed.gguf")
    assert fingerprints.of(elsewhere / "renamed.gguf", full) == fingerprints.of(gguf_output, full)


def test_what_decides_nothing_does_not_count(output: Path) -> None:
    before = fingerprints.of(output)
    (output / "README.md").write_text("changed")
    (output / "ropetool.json").write_text((output / "ropetool.json").read_text().replace("512", "513"))
    (output / "assets" / "license.txt").unlink()
    assert fingerprints.of(output) == before


SHARD = "model-00002-of-00002.safetensors"
CHANGES: dict[str, Callable[[Path], Any]] = {
    "config": lambda m: (m / "config.json").write_text((m / "config.json").read_text().replace("2048", "2047")),
    "a space in the config": lambda m: (m / "config.json").write_text((m / "config.json").read_text() + " "),
    "tokenizer": lambda m: (m / "tokenizer.json").write_text('{"model": 1}'),
    "tokenizer config": lambda m: (m / "tokenizer_config.json").write_text("{}"),
    "generation config": lambda m: (m / "generation_config.json").write_text('{"temperature": 2}'),
    "a chat template": lambda m: (m / "chat_template.jinja").write_text("{{ messages }}"),
    "another chat template": lambda m: [
        (m / "additional_chat_templates").mkdir(), (m / "additional_chat_templates" / "tools.jinja").write_text("x"),
    ],
    "a processor's template": lambda m: (m / "chat_template.json").write_text("{}"),
    "special tokens": lambda m: (m / "special_tokens_map.json").write_text("{}"),
    "code": lambda m: (m / "modeling_x.py").write_text("x"),
    "a tokenizer more": lambda m: (m / "tokenizer.model").write_text(""),
    "a weight": lambda m: flip(m / SHARD, (m / SHARD).stat().st_size - 1),
    "a name in a header": lambda m: (m / SHARD).write_bytes((m / SHARD).read_bytes().replace(b"b.weight", b"c.weight"))
    and (m / "model.safetensors.index.json").unlink(),
    "two files exchanged": lambda m: [
        (m / SHARD).rename(m / "x"), (m / SHARD.replace("2-", "1-")).rename(m / SHARD),
        (m / "x").rename(m / SHARD.replace("2-", "1-")), (m / "model.safetensors.index.json").unlink(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_decides_the_computation_counts(change: str, full: bool, output: Path) -> None:
    before = fingerprints.of(output, full)
    CHANGES[change](output)
    assert fingerprints.of(output, full) != before


def test_a_byte_between_the_samples_is_seen_by_the_full_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """66 blocks of 64 KiB are spread evenly over 9 MB, so half of each stretch between two starts is not sampled."""
    source = large(tmp_path / "model")
    weights = source / "model.safetensors"
    size = weights.stat().st_size
    start = size - 9_000_000
    stretch = (9_000_000 - 65536) / 65
    monkeypatch.setattr(fingerprints, "ALL_BELOW", 0)
    sampled, full = fingerprints.of(source), fingerprints.of(source, full=True)

    def seen(at: int) -> tuple[bool, bool]:
        flip(weights, at)
        found = fingerprints.of(source) != sampled, fingerprints.of(source, full=True) != full
        flip(weights, at)
        return found

    middle = start + round(32 * stretch)
    assert seen(10) == seen(start) == seen(size - 1) == seen(middle + 30_000) == (True, True)
    assert seen(middle + 100_000) == (False, True)
    assert (fingerprints.of(source), fingerprints.of(source, full=True)) == (sampled, full)


def test_the_blocks_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest again, by hand, over labels, sizes and bytes."""
    source = large(tmp_path / "model")
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        content = (source / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    content = (source / "model.safetensors").read_bytes()
    data = content[-9_000_000:]
    digest.update(f"model.safetensors\0{len(content)}\0".encode() + content[:-9_000_000])
    for number in range(66):
        begin = number * (len(data) - 65536) // 65
        digest.update(data[begin : begin + 65536])
    monkeypatch.setattr(fingerprints, "ALL_BELOW", 0)
    assert fingerprints.of(source) == f"blocks:{digest.hexdigest()}"
    assert fingerprints.of_form(open_checkpoint(source), "sampled") == f"sampled:{digest.hexdigest()}"
    whole = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        whole.update(f"{name}\0{(source / name).stat().st_size}\0".encode() + (source / name).read_bytes())
    assert fingerprints.of(source, full=True) == f"bytes:{whole.hexdigest()}"


@pytest.mark.parametrize("at", [0.001, 0.2, 0.4, 0.6, 0.8, 0.999])
def test_a_zeroed_range_anywhere_in_a_small_file_makes_it_stale(at: float, tmp_path: Path) -> None:
    source = large(tmp_path / "model")
    place = tmp_path / "certificate.json"
    write(source, made(source), place)
    assert state(source, place).name == "passed"
    weights = source / "model.safetensors"
    content = bytearray(weights.read_bytes())
    begin = len(content) - 9_000_000 + round(at * 8_999_000)
    content[begin : begin + 64] = bytes(64)
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match="this certificate is for different files"):
        state(source, place)


def test_what_is_only_sampled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = large(tmp_path / "model")
    assert fingerprints.unbound(source, fingerprints.of(source)) == 0
    assert certificate.reach(made(source).to_json()) == ""
    monkeypatch.setattr(fingerprints, "ALL_BELOW", 9_000_000)
    missing = fingerprints.unbound(source, fingerprints.of(source))
    size = (source / "model.safetensors").stat().st_size
    assert missing == size - 66 * 65536
    sampled = made(source, full_hash=False, unbound=missing)
    assert certificate.reach({**sampled.to_json(), "unbound": 14_900_000_000}) == (
        "the fingerprint covers samples of the weights and can miss a change in 13.88 GiB of them; --full-hash covers all"
    )
    assert "a change in most of them" in certificate.reach({**sampled.to_json(), "unbound": None})


@pytest.mark.parametrize("form", ["sampled", "sha256"])
def test_one_of_an_earlier_form_is_compared_by_its_own_rule(form: str, output: Path) -> None:
    """Generation settings and templates did not count then."""
    printed = fingerprints.of_form(open_checkpoint(output), form)
    write(output, made(output, full_hash=form == "sha256", fingerprint=printed))
    (output / "generation_config.json").write_text('{"temperature": 2}')
    assert state(output).name == "passed"
    assert kept(output, made(output, lengths=(512,))) == ""
    CHANGES["a weight"](output)
    assert state(output).name == "stale"


class Counting:
    """A digest that counts what it is given."""

    total = 0

    def __init__(self) -> None:
        Counting.total = 0

    def update(self, data: bytes) -> None:
        Counting.total += len(data)

    def hexdigest(self) -> str:
        return "0" * 64


def test_a_huge_file_costs_no_more_than_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = large(tmp_path / "model")
    size = 100 << 30
    header = json.dumps({"a.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (source / "model.safetensors").open("wb") as file:  # a file with holes: it takes no room
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    monkeypatch.setattr(fingerprints.hashlib, "sha256", Counting)
    assert fingerprints.of(source).startswith("blocks:")
    assert 66 * 65536 < Counting.total < 66 * 65536 + 10_000


def test_every_shard_of_a_gguf_counts(tmp_path: Path) -> None:
    first = gguf_model(tmp_path / "m.gguf", shards=2)
    second = first.with_name("m-00002-of-00002.gguf")
    seen = {fingerprints.of(first), fingerprints.of(second)}
    assert len(seen) == 1
    for path in (first, second):
        flip(path, path.stat().st_size - 1)
        seen.add(fingerprints.of(first))
    assert len(seen) == 3


def test_a_key_of_a_gguf_counts(gguf_output: Path) -> None:
    before = fingerprints.of(gguf_output)
    reader = gguf.GGUFReader(gguf_output, "r+")
    reader.fields["llama.rope.scaling.factor"].parts[-1][0] = 4.5
    reader.data.flush()
    assert fingerprints.of(gguf_output) != before


def test_what_is_no_checkpoint_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint, match="does not exist"):
        fingerprints.of(tmp_path / "nothing")
    broken = large(tmp_path / "model")
    (broken / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptFile, match="1 bytes long"):
        fingerprints.of(broken)
    header = b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {"dtype": "U8", "shape": [0], "data_offsets": [1, 1]}}'
    (broken / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    with pytest.raises(CorruptFile, match="contains 'a' twice"):
        fingerprints.of(broken)


# --- the file


def test_what_is_written_is_read(output: Path, gguf_output: Path, tmp_path: Path) -> None:
    for path, file in ((output, output / "ropetool.json"), (gguf_output, Path(f"{gguf_output}.ropetool.json"))):
        assert read(path) is None
        assert write(path, made(path)) == file
        assert read(path) == made(path)
        assert state(path) == State(
            "passed", "it passed the quick suite up to 2048 tokens at grade research", made(path)
        )


def test_the_rest_of_the_provenance_keeps_its_text(output: Path) -> None:
    file = output / "ropetool.json"
    odd = file.read_text().replace('"schema": 1,', '"schema": 1,   "of_a_later_version": [1,2],').rstrip()
    file.write_text(odd)
    write(output, made(output))
    assert file.read_text().startswith(odd.removesuffix("}").rstrip())
    first = file.read_text()
    write(output, made(output, suite="full"))
    assert file.read_text() == first.replace('"suite": "quick"', '"suite": "full"')
    found = provenance.record(output)
    assert found is not None
    assert (found.certificate["suite"], found.trained_length) == ("full", 512)


def test_a_failure_while_writing_leaves_the_file(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(output)

    def stop(self: Path, *_: object, **__: object) -> None:
        self.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        write(output, made(output))
    assert snapshot(output) == before


def while_it_is_written(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let other commands do this once between the reading of a record and the writing of its new text."""
    real, works = certificate.apply_edits, [work]

    def late(*args: Any) -> str:
        text = real(*args)
        if works:
            works.pop()()
        return text

    monkeypatch.setattr(certificate, "apply_edits", late)


def test_a_record_that_another_command_writes_meanwhile_is_not_put_back(
    gguf_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, first = gguf_output.with_name("m.gguf"), made(gguf_output)

    def again() -> None:
        ropetool.apply(ropetool.plan(source, "yarn", factor=8), source, gguf_output, force=True)

    while_it_is_written(monkeypatch, again)
    with pytest.raises(OutputError, match="another command rewrote the checkpoint during the verification") as refused:
        write(gguf_output, first)
    assert refused.value.where == str(provenance.beside(gguf_output))
    assert refused.value.try_ == f"ropetool verify {gguf_output} --suite quick"
    found = provenance.read(gguf_output)
    assert found is not None
    assert (found.plan["factor"], found.certificate) == (8, None)
    assert state(gguf_output).name == certificate.NONE


def test_of_two_certificates_at_a_time_the_last_one_stands_in_a_whole_record(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = output / "ropetool.json"

    def rewritten() -> None:
        record.write_text(json.dumps({**json.loads(record.read_text()), "note": "of another command"}))

    while_it_is_written(monkeypatch, rewritten)
    write(output, made(output))
    assert json.loads(record.read_text())["note"] == "of another command"
    assert read(output) == made(output)


def test_a_split_model_has_one_certificate(tmp_path: Path) -> None:
    source = gguf_model(tmp_path / "m.gguf", shards=2)
    first = ropetool.apply(ropetool.plan(source, "yarn", factor=4), source, tmp_path / "out.gguf").output
    second = first.with_name("out-00002-of-00002.gguf")
    assert write(second, made(second)) == Path(f"{first}.ropetool.json")
    assert read(first) == read(second) == made(first)


def test_a_checkpoint_of_others_has_a_file_of_its_own(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    before = snapshot(source)
    assert write(source, made(source)) is None
    assert snapshot(tmp_path / "model") == before
    place = tmp_path / "certificate.json"
    assert read(source, place) is None
    assert state(source, place) == State("none", "no verification of it is recorded")
    assert write(source, made(source), place) == place
    assert read(source, place) == made(source)
    assert state(source, place).name == "passed"
    assert json.loads(place.read_text()) == {"schema": 1, "certificate": made(source).to_json()}
    write(source, made(source, longest=4096), place)
    assert read(source, place) == made(source, longest=4096)
    assert snapshot(source) == before


def test_the_certificate_of_another_model_is_refused(tmp_path: Path) -> None:
    one, other = (write_model(tmp_path / name, configs.config(name, "v4")) for name in ("llama", "qwen2"))
    place = tmp_path / "certificate.json"
    write(one, made(one), place)
    before = place.read_bytes()
    for use in (
        lambda: state(other, place),
        lambda: check_place(other, place),
        lambda: write(other, made(other), place),
    ):
        with pytest.raises(CheckpointError, match=f"this certificate is for different files than {other}") as refused:
            use()
        assert (refused.value.where, refused.value.exit_code) == (f"--certificate {place}", 1)
        assert refused.value.try_ == "pass another FILE, or remove this one"
    assert place.read_bytes() == before
    check_place(one, place)


def test_a_certificate_of_another_output_is_stale(output: Path, tmp_path: Path) -> None:
    """Carried over by hand into the provenance, it does not speak for this model."""
    other = write_model(tmp_path / "other", configs.config("llama", "v5"))
    write(output, made(other))
    assert state(output).name == "stale"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("model/c.json", "is inside the source"), ("model", "is the source"), ("nowhere/c.json", "does not exist"),
        ("folder", "is a directory; the output must be a file"),
    ],
)  # fmt: skip
def test_a_place_where_nothing_may_be_written(place: str, message: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    (tmp_path / "folder").mkdir()
    before = snapshot(tmp_path)
    with pytest.raises(OutputError, match=message) as refused:
        write(source, made(source), tmp_path / place)
    assert (refused.value.where, refused.value.try_) == (f"--certificate {tmp_path / place}", "pass another FILE")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("my notes", "is not valid JSON"), ('{"mine": 1}', r"not a valid ropetool certificate \(it is absent; it must be an object\)"),
        ('{"certificate": "x"}', 'it is "x"'), ('{"certificate": {}}', "verdict is absent"),
    ],
)  # fmt: skip
def test_another_file_is_not_overwritten(content: str, message: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    place = tmp_path / "mine.json"
    place.write_text(content)
    with pytest.raises(CorruptFile, match=message) as refused:
        write(source, made(source), place)
    assert refused.value.where == str(place)
    assert place.read_text() == content


# --- edited by hand


def edited(path: Path, *keys: str | int, value: Any) -> None:
    """Set a value deep inside the certificate; "remove" takes its key away."""
    file = provenance.place(path)
    data = json.loads(file.read_text())
    inner = data["certificate"]
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    if value == "remove":
        del inner[keys[-1]]
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("verdict",), "remove", "verdict is absent"), (("verdict",), 1, "verdict is 1"),
        (("verdict",), "good", 'verdict is "good", but its checks result in pass'),
        (("longest",), "2048", 'longest is "2048"'), (("longest",), True, "longest is true"), (("longest",), -1, "longest is -1"),
        (("longest",), 2048.0, "longest is 2048.0"), (("full_hash",), 0, "full_hash is 0"),
        (("full_hash",), False, "full_hash is false"), (("suite",), None, "suite is null"), (("made",), 5, "made is 5"),
        (("command",), ["x"], r'command is \["x"\]'), (("text_fingerprint",), 1, "text_fingerprint is 1"),
        (("versions",), {"torch": 2}, 'versions is {"torch": 2}'), (("versions",), [], r"versions is \[\]"),
        (("summary",), 3, "summary is 3"), (("summary",), {"verdict": "keep", "file": "true"}, "figures of summary is absent"),
        (("summary",), {"verdict": "keep", "file": "true", "figures": [{"question": "x"}]}, "length of figure 0 is absent"),
        (("unbound",), -1, "unbound is -1"), (("unbound",), "x", 'unbound is "x"'),
        (("fingerprint",), "sampled:12", 'fingerprint is "sampled:12"'), (("fingerprint",), "x" * 64, 'fingerprint is "xxx'),
        (("lengths",), [1, "x"], r'lengths is \[1, "x"\]'), (("lengths",), 3, "lengths is 3"), (("baseline",), 3, "baseline is 3"),
        (("texts",), 3, "texts is 3"), (("texts", "manifest"), "019d", 'manifest of texts is "019d"'),
        (("texts", "documents"), 0, "documents of texts is 0"), (("texts", "names"), ["a", "b", "c"], "texts has 3 names for"),
        (("texts", "names"), [1], r"names of texts is \[1\]"), (("texts", "origin"), "| x", 'origin of texts is "| x"'),
        (("checks",), {}, "checks is {}"), (("checks",), [1], "check 0 is 1; it must be an object"),
        (("checks", 1, "name"), None, "name of check 1 is null"), (("checks", 0, "figure"), "1.2", 'figure of check 0 is "1.2"'),
        (("checks", 0, "figure"), float("nan"), "figure of check 0 is NaN"), (("checks", 0, "limit"), True, "limit of check 0 is true"),
        (("checks", 0, "verdict"), "remove", "verdict of check 0 is absent"), (("checks", 0, "detail"), 1, "detail of check 0 is 1"),
        (("checks", 0, "verdict"), "fail", 'verdict is "pass", but its checks result in fail'),
        (("checks", 0, "verdict"), "not run", 'verdict is "pass", but its checks result in partial'),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_what_cannot_be_is_refused(keys: tuple[Any, ...], value: Any, reason: str, output: Path) -> None:
    write(output, made(output))
    edited(output, *keys, value=value)
    for use in (read, state):
        with pytest.raises(CorruptFile, match=reason) as refused:
            use(output)
        assert refused.value.where == f"{output}/ropetool.json: certificate"
        assert refused.value.try_ == f"ropetool verify {output} --suite quick"
    write(output, made(output))  # and the next step works
    assert state(output).name == "passed"


def test_a_failed_verdict_cannot_be_turned_into_a_pass_alone(output: Path) -> None:
    write(output, made(output, verdict="fail", checks=(PASSED, FAILED)))
    edited(output, "verdict", value="pass")
    with pytest.raises(CorruptFile, match="its checks result in fail"):
        shortfall(output, 2048)


def test_keys_of_a_later_version_are_ignored(output: Path) -> None:
    write(output, made(output))
    edited(output, "later", value=1)
    edited(output, "checks", 0, "later", value=1)
    assert read(output) == made(output)


def test_a_figure_without_bound_is_null(output: Path) -> None:
    worst = {**FAILED, "figure": float("inf")}
    write(output, made(output, verdict="fail", checks=(worst,)))
    found = read(output)
    assert found is not None
    assert found.checks == ({**FAILED, "figure": None},)
    assert "Infinity" not in (output / "ropetool.json").read_text()


# --- what it is worth


def test_the_states(output: Path) -> None:
    assert state(output) == State("none", "no verification of it is recorded")
    failed = made(output, verdict="fail", checks=(PASSED, FAILED, {**FAILED, "name": "ratio"}))
    write(output, failed)
    assert state(output) == State(
        "failed", "it failed the quick suite up to 2048 tokens at grade research: tax, ratio", failed
    )
    part = made(output, verdict="partial", checks=(PASSED, NOT_RUN))
    write(output, part)
    why = "the quick suite up to 2048 tokens at grade research ran only in part: retrieval did not run"
    assert state(output) == State("partial", why, part)
    nothing = made(output, checks=(INFORMS,))
    write(output, nothing)
    assert state(output) == State(
        "partial", "the quick suite up to 2048 tokens at grade research checked nothing", nothing
    )


@pytest.mark.parametrize("change", CHANGES)
def test_a_later_edit_makes_it_stale(change: str, full: bool, output: Path) -> None:
    write(output, made(output, full_hash=full))
    assert state(output).name == "passed"
    CHANGES[change](output)
    found = state(output)
    assert (found.name, found.why) == (
        "stale", "its config, tokenizer, templates or weights have changed since its certificate was written",
    )  # fmt: skip
    assert shortfall(output, 512) == found.why


def test_a_later_edit_of_a_gguf_makes_it_stale(gguf_output: Path) -> None:
    write(gguf_output, made(gguf_output))
    flip(gguf_output, gguf_output.stat().st_size - 1)
    assert state(gguf_output).name == "stale"


def test_how_far_it_reaches(output: Path) -> None:
    assert shortfall(output, 1) == "no verification of it is recorded"
    write(output, made(output))
    assert shortfall(output, 2048) == ""
    too_far = "it passed the quick suite up to 2048 tokens at grade research, but its context length is 2049"
    assert shortfall(output, 2049) == too_far


def test_a_fingerprint_that_looks_at_nothing_would_be_seen(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: weights that do not count. The tests above are not blind to it."""
    honest = fingerprints._parts
    monkeypatch.setattr(
        fingerprints, "_parts", lambda path, form: (p for p in honest(path, form) if "safetensors" not in p[0])
    )
    before = fingerprints.of(output)
    CHANGES["a weight"](output)
    assert fingerprints.of(output) == before


def test_no_extension_takes_over_the_certificate_of_its_source(output: Path, gguf_output: Path, tmp_path: Path) -> None:
    for number, path in enumerate((output, gguf_output)):
        write(path, made(path))
        plan = ropetool.plan(path, "yarn", factor=8, reading="original")
        again = ropetool.apply(plan, path, tmp_path / f"again{number}{path.suffix}").output
        assert "certificate" not in json.loads(provenance.place(again).read_text())
        assert state(again).name == "none"
        assert state(path).name == "passed"


def test_the_time_is_in_utc() -> None:
    assert certificate.now().endswith("+00:00")
    assert len(certificate.now()) == len("2026-01-02T03:04:05+00:00")


# --- which of two stays

WIDE = {"suite": "standard", "lengths": (256, 512, 2048), "baseline": "model"}
AGAINST = {**PASSED, "name": certificate.SAME_TABLES}


@pytest.mark.parametrize(
    ("held", "new", "reason"),
    [
        ({}, {"suite": "quick"}, "suite standard instead of quick"), ({}, {"lengths": (256, 2048)}, "also lengths 512"),
        ({}, {"baseline": None}, "baseline model"), ({}, {}, ""), ({}, {"suite": "full"}, ""),
        ({}, {"lengths": (64, 256, 512, 2048)}, ""), ({}, {"lengths": (64, 2048)}, "also lengths 256, 512"),
        ({"suite": "own"}, {"suite": "quick"}, ""),
        ({}, {"suite": "full", "lengths": (256,)}, "also lengths 512, 2048"),
        ({}, {"suite": "quick", "lengths": (256,), "baseline": None},
         "suite standard instead of quick, also lengths 512, 2048, baseline model"),
        ({}, {"suite": "quick", "verdict": "fail", "checks": (FAILED,)}, ""),
        ({"verdict": "fail", "checks": (FAILED,)}, {"suite": "quick"}, "suite standard instead of quick"),
        ({"verdict": "fail", "checks": (FAILED,)}, {}, ""),
        ({}, {"verdict": "partial", "checks": (PASSED, NOT_RUN)}, "all its checks ran"),
        ({"verdict": "partial", "checks": (NOT_RUN,)}, {"suite": "quick", "lengths": (256,)}, ""),
        ({"verdict": "partial", "checks": (NOT_RUN,)}, {"suite": "quick", "verdict": "partial", "checks": (NOT_RUN,)},
         "suite standard instead of quick"),
        ({"lengths": (256, 2048)}, {"lengths": (512,), "longest": 512}, "also lengths 256, 2048"),
        ({"lengths": (2048,)}, {"lengths": (256, 512), "longest": 512}, "up to 2048 tokens instead of 512"),
        ({"lengths": (256, 512), "longest": 512}, {"lengths": (1024, 2048)}, ""),
        ({"lengths": (256, 2048)}, {"lengths": (512,), "longest": 512, "verdict": "fail", "checks": (FAILED,)}, ""),
        ({"lengths": (), "longest": 2048}, {"longest": 1024}, "up to 2048 tokens instead of 1024"),
        ({"lengths": (), "longest": 2048}, {"longest": 2048}, ""),
        ({"checks": (PASSED, AGAINST)}, {}, "a comparison with a different file of the model"), ({}, {"checks": (PASSED, AGAINST)}, ""),
    ],
)  # fmt: skip
def test_a_wider_one_stays(held: dict[str, Any], new: dict[str, Any], reason: str, output: Path) -> None:
    first, second = made(output, **{**WIDE, **held}), made(output, **{**WIDE, **new})
    assert wider(first, second) == reason
    write(output, first)
    assert bool(kept(output, second)) == bool(reason)
    assert reason in kept(output, second)


def test_what_would_replace_it_is_told(output: Path) -> None:
    write(output, made(output, **WIDE))
    why = kept(output, made(output, lengths=(1024,), baseline="model"))
    command = f"ropetool verify {output} --suite standard --grade research --lengths 256,512,1024,2048"
    assert why.startswith(
        "the certificate of 2026-01-02 is kept, because it covers more: suite standard instead of quick"
    )
    assert why.endswith(f"; to replace it, run `{command}`")
    assert kept(output, made(output, lengths=(1024,), baseline=None)).endswith(
        f"; to replace it, run `{command} --baseline model`"
    )


@pytest.mark.parametrize(
    ("new", "command"),
    [
        ({"lengths": (1024,), "longest": 1024}, "ropetool verify {}"),
        ({"suite": "quick", "lengths": (1024,), "longest": 1024},
         "ropetool verify {} --suite quick --grade research --lengths 512,1024,2048"),
    ],
)  # fmt: skip
def test_what_would_replace_a_default_verification(new: dict[str, Any], command: str, output: Path) -> None:
    """A default verification has no option that asks for its lengths."""
    default = {"suite": certificate.DEFAULT, "lengths": (512, 2048)}
    write(output, made(output, **default))
    assert kept(output, made(output, **{**default, **new})).endswith(f"; to replace it, run `{command.format(output)}`")


def test_only_one_of_the_same_bytes_stays(full: bool, output: Path) -> None:
    write(output, made(output, full_hash=full, **WIDE))
    assert kept(output, made(output))
    CHANGES["a weight"](output)
    assert kept(output, made(output)) == ""


def test_one_that_cannot_be_does_not_stay(output: Path) -> None:
    write(output, made(output, **WIDE))
    edited(output, "verdict", value="good")
    assert kept(output, made(output)) == ""


def test_one_of_an_earlier_version_is_read(output: Path) -> None:
    """It says neither its lengths nor its baseline."""
    write(output, made(output))
    edited(output, "lengths", value="remove")
    edited(output, "baseline", value="remove")
    assert read(output) == made(output)


UNSURE = {
    "name": "ratio",
    "figure": 1.14,
    "limit": 1.1,
    "verdict": "undecided",
    "detail": "more text can decide at 2048",
}


def test_what_is_undecided_counts_only_for_who_accepts_it(output: Path) -> None:
    write(output, made(output, verdict="undecided", grade="usable", checks=(PASSED, UNSURE)))
    why = "the quick suite up to 2048 tokens at grade usable could not decide ratio"
    assert (state(output).name, state(output).why, shortfall(output, 2048)) == ("undecided", why, why)
    assert remedy(output) == f"ropetool verify {output} --suite quick with more --text"
    write(output, made(output, verdict="fail", checks=(FAILED,)))


def test_a_certificate_from_before_there_were_grades_counts_as_research(output: Path) -> None:
    data = made(output).to_json()
    assert data.pop("grade") == "research"
    assert Certificate.from_json(data, "here").grade == "research"
    with pytest.raises(CorruptFile, match="grade is 7"):
        Certificate.from_json({**data, "grade": 7}, "here")
    with pytest.raises(CorruptFile, match="its checks result in undecided"):
        Certificate.from_json({**data, "checks": [PASSED, UNSURE]}, "here")


def test_a_certificate_says_which_cache_it_was_made_with(output: Path) -> None:
    data = made(output).to_json()
    assert data.pop("cache_type") is None
    assert Certificate.from_json(data, "here").cache_type is None  # as earlier versions wrote it
    assert Certificate.from_json({**data, "cache_type": "q4_0"}, "here").cache_type == "q4_0"
    for wrong in (4, "", "q4 0", "\x1b[2J"):
        with pytest.raises(CorruptFile, match="cache_type is "):
            Certificate.from_json({**data, "cache_type": wrong}, "here")


def test_a_better_grade_that_passed_stays_and_a_decision_replaces_doubt(output: Path) -> None:
    research, usable = made(output), made(output, grade="usable")
    unsure = made(output, grade="usable", verdict="undecided", checks=(PASSED, UNSURE))
    assert wider(usable, research) == "grade usable instead of research"
    assert wider(research, usable) == ""
    assert wider(research, unsure) == "a pass at grade research"
    assert wider(unsure, research) == ""
    assert wider(usable, made(output, verdict="fail", checks=(FAILED,))) == ""


def test_the_suite_that_an_export_asks_for_is_one_that_counts(output: Path) -> None:
    assert remedy(output) == f"ropetool verify {output}"
    write(output, made(output, **WIDE, longest=512))
    assert remedy(output) == f"ropetool verify {output} --suite standard --grade research"
    CHANGES["a weight"](output)
    assert remedy(output) == f"ropetool verify {output}"
