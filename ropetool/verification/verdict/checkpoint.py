"""The default verification of a checkpoint: three questions, answered within a time limit.

It reads the file back, opens both models, lets `deciding` read the texts, and turns the answers into checks and a
certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint import certificate, fingerprints
from ropetool.checkpoint.certificate import DEFAULT, RESEARCH
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.verification import catalogue
from ropetool.verification.certifying import certified
from ropetool.verification.conditions import conditions
from ropetool.verification.gate import BROKEN, LONG, SHORT, not_reached, without_source
from ropetool.verification.journal import Journal, JournaledRunner, kept_journal
from ropetool.verification.measures.rotary import check_rotation
from ropetool.verification.opening import Open
from ropetool.verification.options import VerifyOptions
from ropetool.verification.readback.comparing import read_back
from ropetool.verification.results import FAIL, NOT_RUN, PASS, UNDECIDED, Check, VerifyResult
from ropetool.verification.runners.llama_cache import cache_ways
from ropetool.verification.scoring import BASELINE, MIN_LENGTH, TARGET, FullRunner, Progress, Tokenizes
from ropetool.verification.session import Session, documents_of
from ropetool.verification.texts import Document, fingerprint, verdict_documents
from ropetool.verification.verdict import bounds
from ropetool.verification.verdict.answers import Answers
from ropetool.verification.verdict.deciding import DECIDED, FILE, Run
from ropetool.verification.verdict.pacing import Clock
from ropetool.verification.verdict.places import Places, longest_row
from ropetool.verification.verdict.reading import Shape, Stages, Timed

if TYPE_CHECKING:
    from ropetool.verification.verdict.using import Use


def answer(session: Session, options: VerifyOptions, clock: Clock, progress: Progress | None = None) -> VerifyResult:
    """Return the answers to the three questions, as far as the clock allows. Raises: CheckpointError, ConfigError."""
    target, tell = session.target, progress or nobody
    if options.place is not None:
        certificate.check_place(target.path, options.place)
    marked = fingerprints.of(target, options.full_hash)  # before measuring: an edit meanwhile makes it stale
    length = max(session.trained, session.context)
    documents = documents_of(options.texts, length, session.notes, verdict_documents)
    tell("reading the file back", 0, 0)
    checks = read_alone(session)
    answers, description = _none(session, length, clock), ""
    results: Mapping[str, Any] = {}
    informing: Sequence[Check] = ()
    if all(check.verdict != FAIL for check in checks):
        with ExitStack() as stack:
            readers = _readers(session, options, stack)
            description = readers[TARGET].description
            journals = _journals(session, marked, options, stack)
            run, places, answers = _answered(session, readers, documents, length, clock, journals, options.seed, tell)
            journals[TARGET].stays = answers.ended != DECIDED
            if options.far_text and answers.verdict == bounds.KEEP and _may_be_lowered(answers, checks):
                use = _use(run, places, readers, journals, options.seed)
                verdict = bounds.WORKS if use.lost else bounds.KEEP
                answers = replace(answers, verdict=verdict, lost=use.lost, minutes=clock.spent / 60)
                results, informing = use.results, use.checks
                session.notes.extend(use.notes)
    checks += [*checks_of(answers), *informing]
    if answers.verdict not in (bounds.BROKEN, bounds.MEASURED) and any(c.verdict == NOT_RUN for c in checks):
        answers = replace(answers, verdict=bounds.MEASURED)
    result = VerifyResult(
        target=hub.name_of(target.path),
        baseline=None if session.source is None else hub.name_of(session.source.path),
        against=None,
        suite=DEFAULT,
        trained_length=session.trained,
        context_length=session.context,
        scored=Shape.of(session.trained, length, False).scored,
        seed=options.seed,
        documents=tuple(dict.fromkeys(text.document for text in answers.texts)),
        text_fingerprint=fingerprint(documents),
        lengths=(),
        divergence=None,
        bands=None,
        checks=tuple(checks),
        runtime=description,
        notes=tuple(session.notes),
        measures=results,
        extension=session.extension,
        texts=catalogue.described(documents, bundled=not options.texts),
        grade=RESEARCH,
        cache_type=options.cache_type,
        answers=answers,
    )
    return certified(result, target.path, options.place, marked, options.command)


def read_alone(session: Session) -> list[Check]:
    """Return the checks of the first question: files, tables and rotation, without a text."""
    checks = [*read_back(session.target, session.source, session.terms), check_rotation(session.target)]
    if session.look.made is None and session.source is None:
        checks.append(without_source())
    return checks


def _ways(options: VerifyOptions) -> list[str]:
    """Return the options that decide the figures, besides the files."""
    return [options.device, options.dtype, *cache_ways(options.cache_type)]


def _readers(session: Session, options: VerifyOptions, stack: ExitStack) -> dict[str, FullRunner]:
    """Return the models by role, opened."""
    opener = Open(session.renamed, as_served=options.dtype == "auto")

    def opened(path: Path, cache: str | None = None) -> FullRunner:
        runner = opener(path, device=options.device, dtype=options.dtype, report=session.notes.append, cache_type=cache)
        return stack.enter_context(closing(runner))

    readers = {TARGET: opened(session.target.path, options.cache_type)}
    if session.source is not None:
        readers[BASELINE] = opened(session.source.path)
    return readers


def _answered(
    session: Session,
    readers: Mapping[str, FullRunner],
    documents: Sequence[Document],
    length: int,
    clock: Clock,
    journals: Mapping[str, Journal],
    seed: int,
    tell: Progress,
) -> tuple[Run, Places, Answers]:
    """Return a run over these texts, its places, and its answers."""
    moving = _is_moving(session)
    room = longest_row(documents, readers[TARGET])
    reached = min(length, room)
    if reached < length:
        session.notes.append(
            f"the longest text has about {room} tokens, so the run does not reach {length}; pass longer texts with --text"
        )
    if reached < MIN_LENGTH:
        raise ConfigError(
            f"the texts are too short: the longest has {room} tokens, and the minimum is {MIN_LENGTH}",
            where="--text",
            try_="a longer text",
        )
    stages = Stages(tell)
    models = {role: Timed(reader, clock, journals[role], stages.read) for role, reader in readers.items()}
    run = Run(
        models[TARGET], models.get(BASELINE), Shape.of(session.trained, reached, moving), length, clock, stages.begin,
        session.notes,
    )  # fmt: skip
    asked: dict[str, Tokenizes] = dict(readers)
    paths = {role: checkpoint.path for role, checkpoint in session.models.items()}
    places = Places(documents, reached, asked, paths, seed)
    return run, places, run.result(run.decide(places))


def _may_be_lowered(answers: Answers, checks: Sequence[Check]) -> bool:
    """Return whether the target was measured beyond its trained length, and the first question is answered."""
    return answers.length > answers.trained_length and all(check.verdict != NOT_RUN for check in checks)


def _use(
    run: Run, places: Places, readers: Mapping[str, FullRunner], journals: Mapping[str, Journal], seed: int
) -> Use:
    """Return how the target of a run uses distant text. The journals keep these rows too."""
    from ropetool.verification.verdict.using import PLACES, measured_use  # loads measures of suites

    kept = {role: JournaledRunner(reader, journals[role], role) for role, reader in readers.items()}
    return measured_use(run, kept, list(islice(places, PLACES)), seed)


def _journals(session: Session, marked: str, options: VerifyOptions, stack: ExitStack) -> dict[str, Journal]:
    """Return the journals by role. The source's rows stay for all its targets, and the target's rows until a verdict."""
    journals: dict[str, Journal] = {}
    # The target's is opened first and closed last, so an interruption names its rows.
    for role, checkpoint in session.models.items():
        if role == TARGET:  # the source decides where a pass is cut, and the trained length what is scored
            decides = conditions(session.models, (), {role: marked}, options.device)
            more = [str(session.trained), "" if session.source is None else str(session.source.path.absolute())]
        else:
            decides, more = conditions({role: checkpoint}, (), {}, options.device), []
        key = "\n".join([f"{role} text by text", str(checkpoint.path.absolute()), *_ways(options), *more])
        notes = session.notes if role == TARGET else []
        kept = kept_journal(key, decides, options.resume or role == BASELINE, notes)
        journals[role] = stack.enter_context(kept)
        journals[role].stays = True
    return journals


def _is_moving(session: Session) -> bool:
    """Return whether the target's table follows the length of the text."""
    rope = session.look.rope
    return rope is not None and any(
        entry.table is not None and not entry.table.is_fixed for entry in rope.entries.values()
    )


def _none(session: Session, length: int, clock: Clock) -> Answers:
    """Return the answers for a file that failed the first question. No text was read."""
    return Answers(
        verdict=bounds.BROKEN, trained_length=session.trained, target_length=length, length=0, short=None, long=None, texts=(),
        curve=(), looks=0, own=session.source is None, minutes=clock.spent / 60, more_texts=None, more_minutes=None, ended=FILE,
    )  # fmt: skip


def checks_of(answers: Answers) -> list[Check]:
    """Return the checks of grade `research` from the answers: bounds, broken texts, and the measured length."""
    if answers.ended == FILE:
        return []
    checks = []
    for name, question in ((SHORT, answers.short), (LONG, answers.long)):
        if question is None:
            continue
        evidence = f"{question.texts} texts of {question.length} tokens"
        if question.upper is None or question.lower is None:
            checks.append(Check(name, question.ratio, bounds.WORKING, UNDECIDED, f"{evidence}; {bounds.FEWEST_TEXTS}"))
        elif question.lower > bounds.WORKING:
            checks.append(Check(name, question.lower, bounds.WORKING, FAIL, f"lower bound of the ratio, {evidence}"))
        else:
            verdict = PASS if question.upper <= bounds.WORKING else UNDECIDED
            checks.append(Check(name, question.upper, bounds.WORKING, verdict, f"upper bound of the ratio, {evidence}"))
    broken = [answer.broken for answer in answers.texts]
    if bounds.broken_by_count(broken):
        evidence = f"of {len(broken)} texts have a ratio above the limit"
        checks.append(Check(BROKEN, float(sum(broken)), None, FAIL, evidence))
    elif answers.length < answers.target_length:
        checks.append(not_reached(answers.length, answers.target_length))
    return checks
