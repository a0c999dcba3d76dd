"""The certificate of a verification: what was found, bound to the bytes that decide what a checkpoint computes.

Kept in the provenance file, or in a file of its own for a checkpoint of others. Knows nothing of how one measures.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ropetool import escaping, names
from ropetool.checkpoint import fingerprints, provenance
from ropetool.checkpoint.opening import first_file
from ropetool.errors import CheckpointError, CorruptFile, OutputError
from ropetool.files.counting import byte_size
from ropetool.files.hf import ABSENT, Edit, apply_edits, read_optional_object
from ropetool.files.hf.jsontext import shown
from ropetool.files.output import Rule, check_output
from ropetool.files.transaction import staged
from ropetool.rope.tables import MAX_LENGTH

SCHEMA = 1
PASS, FAIL, PARTIAL, UNDECIDED, NOT_RUN, NOT_ASKED = "pass", "fail", "partial", "undecided", "not run", "-"
INEXACT = "inexact"  # of a check: its tables are not quite those that it was made of, as it states
NONE, STALE, FAILED, PASSED = "none", "stale", "failed", "passed"
DEFAULT = "default"  # a verification without a suite
SUITES = (DEFAULT, "quick", "standard", "full")  # from the narrowest to the widest
PUBLISHABLE, USABLE, RESEARCH = "publishable", "usable", "research"
GRADES = (RESEARCH, USABLE, PUBLISHABLE)  # from the weakest; before there were grades, what passed was of the first
SAME_TABLES = "same tables"  # the check that a comparison with another file of the model begins with


@dataclass(frozen=True)
class Certificate:
    """What a verification found. longest: the longest context that was measured, in tokens.

    checks: name, figure, limit, verdict and detail of each. made: UTC, in ISO form. full_hash: the fingerprint is over
    all bytes and not over samples. lengths: all that were measured, none where an earlier version wrote it. baseline:
    what the target was compared with, by name; None if with itself. texts: origin, number, manifest and names of the
    documents, as `verify` states them; None where an earlier version wrote it. text_fingerprint is over their contents.
    unbound: bytes of the weights that the fingerprint does not read; None where an earlier version wrote it.
    grade: what was asked of it; an earlier version asked for what is `research` now. cache_type: of llama.cpp's keys and values,
    where one was asked for; it is then of a run with that cache only.
    """

    verdict: str
    suite: str
    longest: int
    checks: tuple[Mapping[str, Any], ...]
    text_fingerprint: str
    versions: Mapping[str, str]
    command: str
    made: str
    fingerprint: str
    full_hash: bool
    lengths: tuple[int, ...] = ()
    baseline: str | None = None
    texts: Mapping[str, Any] | None = None
    unbound: int | None = None
    grade: str = RESEARCH
    cache_type: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON file; a figure that is not finite is null."""
        checks = [{key: _finite(value) for key, value in check.items()} for check in self.checks]
        return {**vars(self), "checks": checks, "versions": dict(self.versions), "lengths": list(self.lengths)}

    @classmethod
    def from_json(
        cls, data: Any, where: str, try_: str = "ropetool verify, which writes a new certificate"
    ) -> Certificate:
        """Return the certificate that this data holds; keys of a later version are ignored.

        Raises: CorruptFile if a key is absent, has another type, or contradicts another.
        """
        problem = _problem(data)
        if problem:
            raise CorruptFile(f"not a valid ropetool certificate ({problem})", where=where, try_=try_)
        known = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
        checks = tuple({key: check[key] for key in provenance.CHECK} for check in data["checks"])
        return cls(**{**known, "checks": checks, "lengths": tuple(data.get("lengths", ()))})


@dataclass(frozen=True)
class State:
    """What a certificate is worth now: none, stale, failed, partial, undecided or passed; and a sentence why."""

    name: str
    why: str
    certificate: Certificate | None = None


def now() -> str:
    """Return the time as a certificate states it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def reach(certificate: Mapping[str, Any]) -> str:
    """Return in words what a certificate does not bind, empty where it binds every byte."""
    missing = certificate.get("unbound")
    if certificate.get("full_hash", True):
        return ""
    much = "most" if missing is None else byte_size(missing)
    return (
        f"the fingerprint covers samples of the weights and can miss a change in {much} of them; --full-hash covers all"
    )


# --- the file


def read(path: Path, place: Path | None = None) -> Certificate | None:
    """Return the certificate of a checkpoint, or None; `place` is a file of its own instead of the provenance.

    Raises: CorruptFile if it is none of ours, or was changed to what cannot be.
    """
    again = escaping.command("ropetool", "verify", path, "--suite", "quick")
    if place is None:
        record = first_file(path)
        made = provenance.record(record)
        data = made.certificate if made is not None else None
        where = f"{provenance.place(record)}: {provenance.CERTIFICATE}"
    else:
        found = read_optional_object(place)
        data = None if found is None else found[1].get(provenance.CERTIFICATE, ABSENT)
        where, again = str(place), "pass another FILE to --certificate"
    return None if data is None else Certificate.from_json(data, where, again)


def write(path: Path, certificate: Certificate, place: Path | None = None) -> Path | None:
    """Put the certificate into the provenance file, whose other keys keep their text, or into `place`.

    Returns the file that was written; None, and nothing is written, for a checkpoint of others without a `place`.
    Raises: what check_place does; OutputError if it cannot be written, or is of other bytes since another command wrote
    the checkpoint anew.
    """
    file = place or provenance.place(first_file(path))
    # The provenance lies inside a directory that ropetool made, so the file to keep apart from is its config.
    source = path / names.CONFIG_JSON if place is None and path.is_dir() else path
    while True:
        if place is not None:
            check_place(path, place)
        found = read_optional_object(file)
        if found is None and place is None:
            return None
        text, data = found or (f'{{\n  "schema": {SCHEMA}\n}}\n', {})
        edit = Edit((provenance.CERTIFICATE,), data.get(provenance.CERTIFICATE, ABSENT), certificate.to_json())
        try:
            with staged(file, source, force=True, may_replace=_only(found)) as stage:
                stage.write_text(apply_edits(text, [edit], str(file)), encoding="utf-8", newline="")
            return file
        except OutputError:
            if read_optional_object(file) == found:
                raise
        if not fingerprints.holds(path, certificate.fingerprint):
            raise OutputError(
                "another command rewrote the checkpoint during the verification, so the certificate is not written",
                where=str(file), try_=escaping.command("ropetool", "verify", path, *_again(certificate.suite)),
            )  # fmt: skip


def _only(found: tuple[str, dict[str, Any]] | None) -> Rule:
    """Return the rule that a file may be replaced as it was read, and not after another command has written it."""
    return lambda path: "" if read_optional_object(path) == found else "has changed meanwhile"


def kept(path: Path, new: Certificate, place: Path | None = None) -> str:
    """Return why the certificate on record stays where this one was to be written, as a sentence; empty if it does not.

    Only one of the same bytes stays.
    """
    try:
        held = read(path, place)
    except CorruptFile:  # a new one takes the place of what cannot be
        held = None
    if held is None:
        return ""
    more = wider(held, new) if fingerprints.holds(path, held.fingerprint) else ""
    if not more:
        return ""
    suite = _higher(SUITES, held.suite, new.suite)
    words: list[str | Path] = ["ropetool", "verify", path, *_again(suite, _higher(GRADES, held.grade, new.grade))]
    if held.lengths and suite != DEFAULT:
        words += ["--lengths", ",".join(map(str, sorted({*held.lengths, *new.lengths})))]
    if held.baseline is not None and new.baseline is None:
        words += ["--baseline", held.baseline]
    return f"the certificate of {held.made[:10]} is kept, because it covers more: {more}; to replace it, run `{escaping.command(*words)}`"


def wider(held: Certificate, new: Certificate) -> str:
    """Return in what a certificate covers more than a newer one, in words; empty where the newer takes its place.

    A newer one that failed always does, and one that passed in place of one that did not.
    """
    if new.verdict == FAIL or (held.verdict in (PARTIAL, UNDECIDED) and new.verdict == PASS):
        return ""
    more = []
    if held.verdict != PARTIAL and new.verdict == PARTIAL:
        more.append("all its checks ran")
    if held.verdict == PASS and new.verdict == UNDECIDED:
        more.append(f"a pass at grade {held.grade}")
    if held.verdict == PASS and _rank(GRADES, held.grade) > _rank(GRADES, new.grade):
        more.append(f"grade {held.grade} instead of {new.grade}")
    if _rank(SUITES, held.suite) > _rank(SUITES, new.suite):
        more.append(f"suite {held.suite} instead of {new.suite}")
    besides = sorted({*held.lengths} - {*new.lengths})
    if besides and len({*held.lengths}) > len({*new.lengths}):
        more.append(f"also lengths {', '.join(map(str, besides))}")
    elif held.longest > new.longest:
        more.append(f"up to {held.longest} tokens instead of {new.longest}")
    if held.baseline is not None and new.baseline is None:
        more.append(f"baseline {held.baseline}")
    if SAME_TABLES in _names(held) - _names(new):
        more.append("a comparison with a different file of the model")
    return ", ".join(more)


def _rank(order: Sequence[str], name: str) -> int:
    """Return the place of a suite or a grade in its order; that of a later version, which is not known, is below all."""
    return order.index(name) if name in order else -1


def _higher(order: Sequence[str], *names: str) -> str:
    return max(names, key=lambda name: _rank(order, name))


def _names(found: Certificate) -> set[str]:
    return {check["name"] for check in found.checks}


def check_place(path: Path, place: Path) -> None:
    """Return if the certificate of this checkpoint may be written to a file of its own.

    Raises: OutputError for a place where nothing may be written; CorruptFile for another file; CheckpointError for the
    certificate of another model.
    """
    try:
        check_output(place, path, force=True)
    except OutputError as error:
        raise OutputError(error.message, where=f"--certificate {place}", try_="pass another FILE") from None
    state(path, place)


def state(path: Path, place: Path | None = None) -> State:
    """Return what the certificate of a checkpoint says of it as it is now.

    Raises: CorruptFile; CheckpointError if `place` holds the certificate of another model.
    """
    found = read(path, place)
    if found is None:
        return State(NONE, "no verification of it is recorded")
    if not fingerprints.holds(path, found.fingerprint):
        if place is not None:
            raise CheckpointError(
                f"this certificate is for different files than {path} contains now",
                where=f"--certificate {place}", try_="pass another FILE, or remove this one",
            )  # fmt: skip
        why = "its config, tokenizer, templates or weights have changed since its certificate was written"
        return State(STALE, why, found)
    return State(*_judged(found), found)


def _again(suite: str, grade: str = USABLE) -> list[str]:
    """Return the options that ask for a suite and a grade. A default verification has neither, and a suite is usable without one."""
    return [] if suite == DEFAULT else ["--suite", suite, *([] if grade == USABLE else ["--grade", grade])]


def _named_suite(name: str) -> str:
    return "the default verification" if name == DEFAULT else f"the {name} suite"


def _judged(found: Certificate) -> tuple[str, str]:
    cache = f" with a {found.cache_type} cache" if found.cache_type else ""
    measured = f"{_named_suite(found.suite)} up to {found.longest} tokens at grade {found.grade}{cache}"
    if found.verdict == FAIL:
        return FAILED, f"it failed {measured}: {_named(found, FAIL)}"
    if found.verdict == PARTIAL:
        return PARTIAL, f"{measured} ran only in part: {_named(found, NOT_RUN)} did not run"
    if found.verdict == UNDECIDED:
        return UNDECIDED, f"{measured} could not decide {_named(found, UNDECIDED)}"
    if not _named(found, PASS):
        return PARTIAL, f"{measured} checked nothing"
    inexact = _named(found, INEXACT)
    return PASSED, f"it passed {measured}{f', with inexact {inexact}' if inexact else ''}"


def remedy(path: Path) -> str:
    """Return the command that makes a certificate, of the suite on record: a smaller one would not take its place."""
    found = state(path)
    held = found.certificate if found.name in (PASSED, FAILED, UNDECIDED) else None
    suite = held.suite if held is not None and held.suite in SUITES else SUITES[0]
    again = escaping.command("ropetool", "verify", path, *_again(suite, held.grade if held else USABLE))
    return f"{again} with more --text" if found.name == UNDECIDED else again


def shortfall(path: Path, length: int) -> str:
    """Return why the checkpoint is not certified up to a context of `length` tokens, empty if it is.

    Raises: CorruptFile.
    """
    found = state(path)
    if found.name != PASSED or found.certificate is None:
        return found.why
    reached = found.certificate.longest
    return "" if reached >= length else f"{found.why}, but its context length is {length}"


# --- what may stand in it

_KINDS = {
    "verdict": str, "suite": str, "longest": int, "checks": list, "text_fingerprint": str, "versions": dict,
    "command": str, "made": str, "fingerprint": str, "full_hash": bool,
}  # fmt: skip
_WORD = re.compile(r"[a-z]{1,20}")  # a later version may have other suites
_CACHE = re.compile(r"[a-z0-9_]{1,20}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T0-9:.+Z-]{0,30}")
_MANIFEST = re.compile(r"[0-9a-f]{64}")
MAX_COMMAND = 100_000  # characters, with all its paths
_VERDICTS = (PASS, FAIL, UNDECIDED, INEXACT, NOT_RUN, NOT_ASKED)


def _problem(data: Any) -> str:
    """Return what is wrong with the data of a certificate, empty if nothing is."""
    if not isinstance(data, dict):
        return f"it is {shown(data)}"
    for key, kind in _KINDS.items():
        if type(data.get(key, ABSENT)) is not kind:
            return f"{key} is {shown(data.get(key, ABSENT))}"
    for key in ("suite", "grade"):
        if not isinstance(data.get(key, RESEARCH), str) or not _WORD.fullmatch(data.get(key, RESEARCH)):
            return f"{key} is {shown(data[key])}"
    if not _TIME.fullmatch(data["made"]):
        return f"made is {shown(data['made'])}"
    if len(data["command"]) > MAX_COMMAND:
        return f"command is a text of {len(data['command']):,} characters"
    for number, check in enumerate(data["checks"]):
        problem = provenance.check_problem(check)
        if not problem and check["verdict"] not in _VERDICTS:
            problem = f"verdict is {shown(check['verdict'])}"
        if problem:
            return problem.replace(" is ", f" of check {number} is ", 1)
    if not _is_lengths(data.get("lengths", [])) or not isinstance(data.get("baseline"), (str, type(None))):
        return f"lengths is {shown(data.get('lengths', ABSENT))} and baseline is {shown(data.get('baseline', ABSENT))}"
    cache = data.get("cache_type")
    if cache is not None and not (isinstance(cache, str) and _CACHE.fullmatch(cache)):
        return f"cache_type is {shown(cache)}"
    if not _is_texts(data.get("texts")):
        return f"texts is {shown(data['texts'])}"
    if type(data.get("unbound", 0)) not in (int, type(None)) or (data.get("unbound") or 0) < 0:
        return f"unbound is {shown(data['unbound'])}"
    if not all(isinstance(version, str) for version in data["versions"].values()):
        return f"versions is {shown(data['versions'])}"
    return _contradiction(data)


def _contradiction(data: Mapping[str, Any]) -> str:
    found = {check["verdict"] for check in data["checks"]}
    verdict = FAIL if FAIL in found else PARTIAL if NOT_RUN in found else UNDECIDED if UNDECIDED in found else PASS
    if data["verdict"] != verdict:
        return f"verdict is {shown(data['verdict'])}, but its checks result in {verdict}"
    if not 0 <= data["longest"] <= MAX_LENGTH:
        return f"longest is {shown(data['longest'])}"
    printed = data["fingerprint"]
    if not fingerprints.PATTERN.fullmatch(printed) or fingerprints.is_full(printed) != data["full_hash"]:
        return f"fingerprint is {shown(data['fingerprint'])} and full_hash is {shown(data['full_hash'])}"
    return ""


def _is_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(length) is int and 0 < length <= MAX_LENGTH for length in value)


def _is_texts(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or type(value.get("documents")) is not int or value["documents"] < 1:
        return False
    manifest, names = value.get("manifest"), value.get("names")
    if manifest is not None and not (isinstance(manifest, str) and _MANIFEST.fullmatch(manifest)):
        return False
    listed = (
        isinstance(names, list) and len(names) <= value["documents"] and all(isinstance(name, str) for name in names)
    )
    return listed and isinstance(value.get("origin"), str) and bool(_WORD.fullmatch(value["origin"]))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _named(found: Certificate, verdict: str) -> str:
    return ", ".join(check["name"] for check in found.checks if check["verdict"] == verdict)
