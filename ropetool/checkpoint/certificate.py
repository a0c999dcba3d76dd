"""The certificate of a verification: its result, and a fingerprint of the bytes that affect the computation.

It is in the provenance file, or in a separate file if ropetool did not write the checkpoint.
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
from ropetool.files.json_types import (
    BOOLEAN,
    LIST,
    NUMBER,
    OBJECT,
    STRING,
    STRING_MEMBERS,
    STRINGS,
    JsonType,
    check_members,
    matching,
    one_of,
    optional,
    whole,
)  # fmt: skip
from ropetool.files.output import Rule, check_output
from ropetool.files.transaction import staged
from ropetool.rope.tables import MAX_LENGTH

SCHEMA = 1
PASS, FAIL, PARTIAL, UNDECIDED, NOT_RUN, NOT_ASKED = "pass", "fail", "partial", "undecided", "not run", "-"
INEXACT = "inexact"  # the verdict of a check: the tables differ slightly from the source, as the file declares
NONE, STALE, FAILED, PASSED = "none", "stale", "failed", "passed"
DEFAULT = "default"  # a verification without a suite
SUITES = (DEFAULT, "quick", "standard", "full")  # from the narrowest to the widest
PUBLISHABLE, USABLE, RESEARCH = "publishable", "usable", "research"
GRADES = (RESEARCH, USABLE, PUBLISHABLE)  # from the weakest; certificates without a grade count as the weakest
SAME_TABLES = "same tables"  # the first check of a comparison with a different file of the model


@dataclass(frozen=True)
class Certificate:
    """The result of a verification.

    verdict: one of the constants PASS, FAIL, PARTIAL and UNDECIDED.
    suite: one of SUITES.
    longest: the longest measured context, in tokens.
    checks: for each check its name, figure, limit, verdict and detail.
    text_fingerprint: a digest of the contents of the documents.
    versions: the versions of ropetool, Python and the runtime.
    command: the command line of the verification.
    made: the time in UTC, in ISO format.
    fingerprint: the fingerprint of the checkpoint.
    full_hash: whether the fingerprint covers all bytes. If False, it covers samples of the weights.
    lengths: all measured lengths, in tokens; empty in certificates of earlier versions.
    baseline: the name of the model that the target was compared with; None if `verify` compared the target with itself.
    texts: origin, number, manifest and names of the documents; None in certificates of earlier versions.
    unbound: the number of bytes of the weights that the fingerprint does not cover; None in certificates of earlier
      versions.
    grade: the requested grade. Certificates of earlier versions have no grade, and count as `research`.
    cache_type: the type of llama.cpp's cache of keys and values, if the user set it; then the result is only for this
      cache.
    summary: for the model card, the verdict, the answer about the file, and each measured perplexity ratio with its
      length and bounds; None in certificates of earlier versions.
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
    summary: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON file. A figure that is not finite becomes null."""
        checks = [{key: _finite(value) for key, value in check.items()} for check in self.checks]
        return {**vars(self), "checks": checks, "versions": dict(self.versions), "lengths": list(self.lengths)}

    @classmethod
    def from_json(
        cls, data: Any, where: str, try_: str = "ropetool verify, which writes a new certificate"
    ) -> Certificate:
        """Return the certificate in this data. Keys of later versions are ignored.

        Raises: CorruptFile if a key is missing, has a different type, or contradicts another key.
        """
        try:
            _check(data)
        except CorruptFile as error:
            raise CorruptFile(f"not a valid ropetool certificate ({error.message})", where=where, try_=try_) from None
        known = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
        checks = tuple({key: check[key] for key in provenance.CHECK} for check in data["checks"])
        return cls(**{**known, "checks": checks, "lengths": tuple(data.get("lengths", ()))})


@dataclass(frozen=True)
class State:
    """The current value of a certificate.

    name: one of NONE, STALE, FAILED, PARTIAL, UNDECIDED and PASSED.
    why: the reason, as a sentence.
    certificate: None if no certificate exists.
    """

    name: str
    why: str
    certificate: Certificate | None = None


def now() -> str:
    """Return the current time in the format of a certificate."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def reach(certificate: Mapping[str, Any]) -> str:
    """Return a description of the bytes that a certificate does not cover, or an empty text if it covers every byte."""
    missing = certificate.get("unbound")
    if certificate.get("full_hash", True):
        return ""
    much = "most" if missing is None else byte_size(missing)
    return (
        f"the fingerprint covers samples of the weights and can miss a change in {much} of them; --full-hash covers all"
    )


# --- the file


def read(path: Path, place: Path | None = None) -> Certificate | None:
    """Return the certificate of a checkpoint, or None.

    place: a separate file with the certificate; None means the provenance file.
    Raises: CorruptFile if ropetool did not write it, or if an edit made it invalid.
    """
    again = escaping.command("ropetool", "verify", path, "--suite", "quick")
    if place is None:
        file = first_file(path)
        record = provenance.record(file)
        data = record.certificate if record is not None else None
        where = f"{provenance.place(file)}: {provenance.CERTIFICATE}"
    else:
        parsed = read_optional_object(place)
        data = None if parsed is None else parsed[1].get(provenance.CERTIFICATE, ABSENT)
        where, again = str(place), "pass another FILE to --certificate"
    return None if data is None else Certificate.from_json(data, where, again)


def write(path: Path, certificate: Certificate, place: Path | None = None) -> Path | None:
    """Write the certificate into the provenance file, or into `place`. The other keys of the file keep their text.

    Returns the written file. Without `place`, returns None for a checkpoint that ropetool did not write, and does not
    write a file.
    Raises: the errors of `check_place`; OutputError if the file cannot be written, or if another command rewrote the
    checkpoint during the verification.
    """
    file = place or provenance.place(first_file(path))
    # The provenance file is inside the directory, so the path that the output must not touch is the config.
    source = path / names.CONFIG_JSON if place is None and path.is_dir() else path
    while True:
        if place is not None:
            check_place(path, place)
        content = read_optional_object(file)
        if content is None and place is None:
            return None
        text, data = content or (f'{{\n  "schema": {SCHEMA}\n}}\n', {})
        edit = Edit((provenance.CERTIFICATE,), data.get(provenance.CERTIFICATE, ABSENT), certificate.to_json())
        try:
            with staged(file, source, force=True, may_replace=_only(content)) as stage:
                stage.write_text(apply_edits(text, [edit], str(file)), encoding="utf-8", newline="")
            return file
        except OutputError:
            if read_optional_object(file) == content:
                raise
        if not fingerprints.holds(path, certificate.fingerprint):
            raise OutputError(
                "another command rewrote the checkpoint during the verification, so the certificate is not written",
                where=str(file), try_=escaping.command("ropetool", "verify", path, *_again(certificate.suite)),
            )  # fmt: skip


def _only(content: tuple[str, dict[str, Any]] | None) -> Rule:
    """Return a rule that a file may be replaced only if its content is still `content`."""
    return lambda path: "" if read_optional_object(path) == content else "has changed meanwhile"


def kept(path: Path, new: Certificate, place: Path | None = None) -> str:
    """Return the reason why the recorded certificate is not replaced by the new one, or an empty text if it is.

    A recorded certificate is kept only if it is for the same bytes and covers more.
    """
    try:
        recorded = read(path, place)
    except CorruptFile:  # a new certificate replaces an invalid one
        recorded = None
    if recorded is None:
        return ""
    more = wider(recorded, new) if fingerprints.holds(path, recorded.fingerprint) else ""
    if not more:
        return ""
    suite = _higher(SUITES, recorded.suite, new.suite)
    words: list[str | Path] = ["ropetool", "verify", path, *_again(suite, _higher(GRADES, recorded.grade, new.grade))]
    if recorded.lengths and suite != DEFAULT:
        words += ["--lengths", ",".join(map(str, sorted({*recorded.lengths, *new.lengths})))]
    if recorded.baseline is not None and new.baseline is None:
        words += ["--baseline", recorded.baseline]
    return (
        f"the certificate of {recorded.made[:10]} is kept, because it covers more: {more}; "
        f"to replace it, run `{escaping.command(*words)}`"
    )


def wider(recorded: Certificate, new: Certificate) -> str:
    """Return the facts that a recorded certificate covers and a newer one does not, as text.

    The text is empty if the newer certificate replaces the recorded one. A newer certificate that failed always
    replaces it. A pass replaces a partial or undecided result.
    """
    if new.verdict == FAIL or (recorded.verdict in (PARTIAL, UNDECIDED) and new.verdict == PASS):
        return ""
    more = []
    if recorded.verdict != PARTIAL and new.verdict == PARTIAL:
        more.append("all its checks ran")
    if recorded.verdict == PASS and new.verdict == UNDECIDED:
        more.append(f"a pass at grade {recorded.grade}")
    if recorded.verdict == PASS and rank(GRADES, recorded.grade) > rank(GRADES, new.grade):
        more.append(f"grade {recorded.grade} instead of {new.grade}")
    if rank(SUITES, recorded.suite) > rank(SUITES, new.suite):
        more.append(f"suite {recorded.suite} instead of {new.suite}")
    besides = sorted({*recorded.lengths} - {*new.lengths})
    if besides and len({*recorded.lengths}) > len({*new.lengths}):
        more.append(f"also lengths {', '.join(map(str, besides))}")
    elif recorded.longest > new.longest:
        more.append(f"up to {recorded.longest} tokens instead of {new.longest}")
    if recorded.baseline is not None and new.baseline is None:
        more.append(f"baseline {recorded.baseline}")
    if SAME_TABLES in _names(recorded) - _names(new):
        more.append("a comparison with a different file of the model")
    return ", ".join(more)


def rank(order: Sequence[str], name: str) -> int:
    """Return the position of a suite or a grade in its order.

    An unknown name, from a later version, is below all others.
    """
    return order.index(name) if name in order else -1


def _higher(order: Sequence[str], *names: str) -> str:
    return max(names, key=lambda name: rank(order, name))


def _names(certificate: Certificate) -> set[str]:
    return {check["name"] for check in certificate.checks}


def check_place(path: Path, place: Path) -> None:
    """Return if the certificate of this checkpoint may be written to this separate file.

    Raises: OutputError if the path is not writable; CorruptFile if it is a different file; CheckpointError if it is the
    certificate of a different model.
    """
    check_file(path, place)
    state(path, place)


def check_file(path: Path, place: Path) -> None:
    """Check the separate file of a certificate as `check_place` does, without reading the checkpoint.

    Raises: OutputError if the path is not writable; CorruptFile if it is a different file.
    """
    try:
        check_output(place, path, force=True)
    except OutputError as error:
        raise OutputError(error.message, where=f"--certificate {place}", try_="pass another FILE") from None
    read(path, place)


def state(path: Path, place: Path | None = None) -> State:
    """Return the current value of a checkpoint's certificate.

    Raises: CorruptFile; CheckpointError if `place` is the certificate of a different model.
    """
    certificate = read(path, place)
    if certificate is None:
        return State(NONE, "no verification of it is recorded")
    if not fingerprints.holds(path, certificate.fingerprint):
        if place is not None:
            raise CheckpointError(
                f"this certificate is for different files than {path} contains now",
                where=f"--certificate {place}", try_="pass another FILE, or remove this one",
            )  # fmt: skip
        why = "its config, tokenizer, templates or weights have changed since its certificate was written"
        return State(STALE, why, certificate)
    return State(*_judged(certificate), certificate)


def _again(suite: str, grade: str = USABLE) -> list[str]:
    """Return the options for a suite and a grade.

    The default verification has no options. A suite has grade `usable` without an option.
    """
    return [] if suite == DEFAULT else ["--suite", suite, *([] if grade == USABLE else ["--grade", grade])]


def _named_suite(name: str) -> str:
    return "the default verification" if name == DEFAULT else f"the {name} suite"


def _judged(certificate: Certificate) -> tuple[str, str]:
    cache = f" with a {certificate.cache_type} cache" if certificate.cache_type else ""
    measured = (
        f"{_named_suite(certificate.suite)} up to {certificate.longest} tokens at grade {certificate.grade}{cache}"
    )
    if certificate.verdict == FAIL:
        return FAILED, f"it failed {measured}: {_named(certificate, FAIL)}"
    if certificate.verdict == PARTIAL:
        return PARTIAL, f"{measured} ran only in part: {_named(certificate, NOT_RUN)} did not run"
    if certificate.verdict == UNDECIDED:
        return UNDECIDED, f"{measured} could not decide {_named(certificate, UNDECIDED)}"
    if not _named(certificate, PASS):
        return PARTIAL, f"{measured} checked nothing"
    if certificate.summary is not None:
        measured += f", with the verdict {certificate.summary['verdict']}"
    inexact = _named(certificate, INEXACT)
    return PASSED, f"it passed {measured}{f', with inexact {inexact}' if inexact else ''}"


def remedy(path: Path) -> str:
    """Return the command that writes a certificate, with the recorded suite.

    A smaller suite would not replace the recorded certificate.
    """
    current = state(path)
    recorded = current.certificate if current.name in (PASSED, FAILED, UNDECIDED) else None
    suite = recorded.suite if recorded is not None and recorded.suite in SUITES else SUITES[0]
    grade = recorded.grade if recorded is not None and recorded.grade in GRADES else USABLE
    again = escaping.command("ropetool", "verify", path, *_again(suite, grade))
    return f"{again} with more --text" if current.name == UNDECIDED else again


def shortfall(path: Path, length: int) -> str:
    """Return the reason why a checkpoint is not certified up to a context of `length` tokens, or an empty text.

    Raises: CorruptFile.
    """
    current = state(path)
    if current.name != PASSED or current.certificate is None:
        return current.why
    reached = current.certificate.longest
    return "" if reached >= length else f"{current.why}, but its context length is {length}"


# --- the rules of its data

MAX_COMMAND = 100_000  # characters, with all its paths
_VERDICTS = (PASS, FAIL, UNDECIDED, INEXACT, NOT_RUN, NOT_ASKED)
_WORD = matching(re.compile(r"[a-z]{1,20}"), "a word")  # a later version may have other suites
_TIME = matching(re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T0-9:.+Z-]{0,30}"), "a time")
_CERTIFICATE = {
    "verdict": STRING, "suite": _WORD, "longest": whole(0, MAX_LENGTH), "checks": LIST, "text_fingerprint": STRING,
    "versions": STRING_MEMBERS, "made": _TIME, "full_hash": BOOLEAN,
    "command": JsonType(
        f"text of at most {MAX_COMMAND:,} characters", lambda value: isinstance(value, str) and len(value) <= MAX_COMMAND
    ),
    "fingerprint": matching(fingerprints.PATTERN, "a form and a digest"),
}  # fmt: skip
_CHECK = {**provenance.CHECK, "verdict": one_of(_VERDICTS)}
_TEXTS = {
    "documents": whole(1, MAX_LENGTH), "names": STRINGS, "origin": _WORD,
}  # fmt: skip
_MANIFEST = {"manifest": optional(matching(re.compile(r"[0-9a-f]{64}"), "a digest"))}
_LENGTHS = JsonType(
    "a list of lengths",
    lambda value: isinstance(value, list) and all(type(length) is int and 0 < length <= MAX_LENGTH for length in value),
)
_SUMMARY = {"verdict": STRING, "file": STRING, "figures": LIST}
_FIGURE = {
    "question": STRING, "length": whole(1, MAX_LENGTH), "ratio": NUMBER, "lower": NUMBER, "upper": NUMBER,
    "texts": whole(1, MAX_LENGTH),
}  # fmt: skip
# These keys are missing in certificates of earlier versions.
_LATER = {
    "grade": _WORD, "lengths": _LENGTHS, "baseline": optional(STRING),
    "cache_type": optional(matching(re.compile(r"[a-z0-9_]{1,20}"), "a type")), "texts": optional(OBJECT),
    "unbound": optional(JsonType("a number of bytes", lambda value: type(value) is int and value >= 0)),
    "summary": optional(OBJECT),
}  # fmt: skip


def _check(data: Any) -> None:
    """Check the data of a certificate. Raises: CorruptFile, with the key, its value and its rule."""
    check_members(data, _CERTIFICATE, _LATER)
    for number, check in enumerate(data["checks"]):
        check_members(check, _CHECK, place=f"check {number}")
    texts = data.get("texts")
    if texts is not None:
        check_members(texts, _TEXTS, _MANIFEST, "texts")
        if len(texts["names"]) > texts["documents"]:
            raise CorruptFile(f"texts has {len(texts['names'])} names for {texts['documents']} documents")
    if data.get("summary") is not None:
        check_members(data["summary"], _SUMMARY, place="summary")
        for number, figure in enumerate(data["summary"]["figures"]):
            check_members(figure, _FIGURE, place=f"figure {number}")
    contradiction = _contradiction(data)
    if contradiction:
        raise CorruptFile(contradiction)


def _contradiction(data: Mapping[str, Any]) -> str:
    verdicts = {check["verdict"] for check in data["checks"]}
    verdict = (
        FAIL if FAIL in verdicts else PARTIAL if NOT_RUN in verdicts else UNDECIDED if UNDECIDED in verdicts else PASS
    )
    if data["verdict"] != verdict:
        return f"verdict is {shown(data['verdict'])}, but its checks result in {verdict}"
    if fingerprints.is_full(data["fingerprint"]) != data["full_hash"]:
        return f"fingerprint is {shown(data['fingerprint'])}, but full_hash is {shown(data['full_hash'])}"
    return ""


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _named(certificate: Certificate, verdict: str) -> str:
    return ", ".join(check["name"] for check in certificate.checks if check["verdict"] == verdict)
