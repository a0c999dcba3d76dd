"""A verification by a suite: its texts, its models, its checks and its certificate.

Target and baseline may each be a Hugging Face directory, run by transformers, or a GGUF file, run by llama.cpp.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.registry import addition
from ropetool.verification import catalogue, floors, suites
from ropetool.verification.beside import OPTION as YARDSTICKS
from ropetool.verification.beside import Beside
from ropetool.verification.certifying import certified
from ropetool.verification.conditions import conditions, run_key
from ropetool.verification.gate import LENGTHS, NOTHING_BEYOND, Limits, not_reached, without_source
from ropetool.verification.journal import JournaledRunner, kept_journal
from ropetool.verification.measure import Suite
from ropetool.verification.measures.rotary import check_rotation
from ropetool.verification.opening import Open
from ropetool.verification.options import VerifyOptions
from ropetool.verification.preparing import default_lengths
from ropetool.verification.readback.comparing import read_back, same_tables
from ropetool.verification.remade import kl_to_claim
from ropetool.verification.results import INEXACT, NOT_RUN, Check, VerifyResult
from ropetool.verification.run import AGAINST, ComparedFile, Models, Workload, verify
from ropetool.verification.runners.llama_cache import BLOCK_TYPES, cache_ways
from ropetool.verification.runners.vllm_engine import OPTION, OpenInVllm, version
from ropetool.verification.scoring import JUDGE, TARGET, Progress, Runner
from ropetool.verification.session import Session, documents_of, unchanged_source
from ropetool.verification.short_divergence import ModelLengths
from ropetool.verification.texts import Document

Wrap = Callable[[Runner, str], Runner]
UNQUANTISED = frozenset({"F32", "F16", "BF16", "F64"})


def measure_suites(
    session: Session, options: VerifyOptions, progress: Progress | None = None, say: Callable[[str], None] | None = None
) -> VerifyResult:
    """Run the suite that these options select, write its certificate, and return the result.

    Raises: CheckpointError, ConfigError.
    """
    target, trained, context = session.target, session.trained, session.context
    suite = _suite_of(options)
    if options.place is not None:
        certificate.check_place(target.path, options.place)
    other = open_checkpoint(hub.local(options.against)) if options.against is not None else None
    lengths = list(options.lengths) if options.lengths is not None else default_lengths(trained, max(trained, context))
    documents = documents_of(options.texts, max(lengths, default=0), session.notes)
    in_vllm = _in_vllm(session, options, lengths)
    beside = None if options.compare_with is None else _beside(options, session, max(lengths, default=trained))
    marked = fingerprints.of(target, options.full_hash)  # taken first, so that an edit during the run makes it outdated
    checks = _readback_checks(session, lengths)
    tasks = _harness_result(session, options)
    if tasks is not None:
        checks.append(addition("lm_eval_check")(tasks, (options.limits or Limits()).asked))
    compared = None
    if other is not None:
        compared, tables = _compared_file(session, other, options.cache_type)
        checks.append(tables)
    compares_claim = session.source is not None and session.look.made is None and compared is None
    with _journal(session, options, documents, in_vllm, marked) as wrap:
        result = verify(
            _models(session, options, compared, in_vllm, wrap),
            Workload(documents, lengths, trained, context, suite),
            options,
            checks=partial(_with_logits, session, checks, progress) if compares_claim else checks,
            beside=beside,
            progress=progress,
            say=say,
        )
    result = replace(
        result, notes=(*session.notes, *result.notes), extension=session.extension, lm_eval=tasks,
        texts=catalogue.described(documents, bundled=not options.texts), cache_type=options.cache_type,
        bands=_bands(session),
    )  # fmt: skip
    return certified(result, target.path, options.place, marked, options.command)


def _readback_checks(session: Session, lengths: Sequence[int]) -> list[Check]:
    """Return the checks that do not run the model: readback, rotation, and missing comparisons."""
    return [
        *read_back(session.target, session.source, session.terms),
        check_rotation(session.target),
        *missing_comparisons(
            session.look.made is not None or session.source is not None, lengths, session.trained, session.context
        ),
    ]


def _with_logits(session: Session, checks: Sequence[Check], progress: Progress | None) -> Sequence[Check]:
    """Run target and source to compare their logits, and return the checks together with this comparison."""
    assert session.source is not None
    kinds = _rounding_types(session.target, session.source)
    limits = ModelLengths(session.trained, max(session.trained, session.context))
    return [
        *checks,
        *kl_to_claim(session.target, session.source, session.terms, checks, kinds, limits, progress or nobody),
    ]


def _journal(
    session: Session, options: VerifyOptions, documents: Sequence[Document], in_vllm: OpenInVllm | None, marked: str
) -> AbstractContextManager[Wrap]:
    """Return the journal of a run. marked: the fingerprint of the target."""
    models = session.models
    prints = {
        role: marked if role == TARGET else fingerprints.of(each, options.full_hash) for role, each in models.items()
    }
    computed_by = (
        options.device,
        options.dtype,
        *(in_vllm.settings if in_vllm else []),
        *cache_ways(options.cache_type),
    )
    run_conditions = {
        **conditions(models, documents, prints, None if in_vllm else options.device),
        **({"vLLM": version()} if in_vllm else {}), "the target's renamed model_type": str(session.renamed),
    }  # fmt: skip
    return kept_on_disk(run_key(models, documents, computed_by), run_conditions, options.resume, session.notes)


def _models(
    session: Session, options: VerifyOptions, compared: ComparedFile | None, in_vllm: OpenInVllm | None, wrap: Wrap
) -> Models:
    """Return the models of a run, with the functions that open them."""
    source, opener = session.source, Open(session.renamed)
    return Models(
        session.target.path,
        baseline=None if source is None else source.path,
        against=compared,
        judge=None if options.judge is None else open_checkpoint(hub.local(options.judge)).path,
        runner=opener if in_vllm is None else in_vllm,
        target_runner=None if options.cache_type is None else partial(opener, cache_type=options.cache_type),
        wrap=wrap,
        baseline_reach=None if in_vllm is None or source is None else in_vllm.reach(source.path),
    )


def _in_vllm(session: Session, options: VerifyOptions, lengths: Sequence[int]) -> OpenInVllm | None:
    """Return the function that opens models in vLLM, or None without `options.engine`."""
    if options.engine is None:
        return None
    looks = {session.target.path: session.look}
    if session.source is not None and session.source_look is not None:
        looks[session.source.path] = session.source_look
    return OpenInVllm(options.engine, looks, lengths, session.trained)


def _harness_result(session: Session, options: VerifyOptions) -> Any:
    """Return the result of the logs of lm-evaluation-harness, or None without such logs."""
    if options.lm_eval is None:
        return None
    most = (options.limits or Limits()).asked.max_lost
    return addition("lm_eval_result")(Path(options.lm_eval), session.target.path, session.source, most)


def _suite_of(options: VerifyOptions) -> Suite:
    """Return the suite that these options select. In vLLM it has only the measures that need single tokens."""
    suite, measures, segments, trials = options.suite, options.measures, options.segments, options.trials
    if options.engine is None:
        return suites.choose(suite, measures, segments, trials)
    if suite == "full":
        raise ConfigError(
            "the full suite needs all logits, which vLLM does not return", where=OPTION, try_="--suite standard"
        )
    return suites.choose_by_tokens(
        suite, measures, segments, trials, score_prompts=options.engine.score_prompts, who="vLLM in process"
    )


def _beside(options: VerifyOptions, session: Session, longest: int) -> Beside:
    """Return the reference attention variants of these options, applied to the source, or to the target without one."""
    if options.engine is not None:
        raise ConfigError("reference attention variants work only with transformers", where=YARDSTICKS)
    put_on, look = session.source, session.source_look
    if put_on is None or look is None:
        put_on, look = session.target, session.look
    beside: Beside = addition("yardsticks_beside")(options.compare_with, put_on, look.rope, session.trained, longest)
    if session.source is None:
        session.notes.append(f"without a baseline, the reference attention variants use {beside.on} and its own table")
    return beside


def missing_comparisons(comparable: bool, lengths: Sequence[int], trained: int, context: int) -> list[Check]:
    """Return a check for each reason why a longer context cannot be evaluated completely.

    comparable: a record or a baseline describes the model before the extension.
    lengths: the measured lengths; they should exceed the trained length, and reach the context length. All in tokens.
    """
    missing = []
    if not comparable:
        missing.append(without_source())
    longest = max(lengths, default=0)
    if longest <= trained:
        beyond = (
            "" if context > trained else f"; the context length does not exceed the trained length of {trained} tokens"
        )
        missing.append(Check(LENGTHS, None, None, NOT_RUN, f"{NOTHING_BEYOND}{beyond}"))
    elif longest < context:
        missing.append(not_reached(longest, context))
    return missing


@contextmanager
def kept_on_disk(
    key: str, conditions: Mapping[str, str], resume: bool, notes: list[str], *, changes: bool = False
) -> Iterator[Wrap]:
    """Yield a function that saves the figures of each runner on disk until the run is complete.

    key, conditions: see Journal.
    changes: whether to check later if the target has changed.
    """
    with kept_journal(key, conditions, resume, notes) as journal:
        yield (
            lambda runner, role: (
                runner
                if role in (AGAINST, JUDGE)
                else JournaledRunner(runner, journal, role, changes=changes and role == TARGET)
            )
        )


def _compared_file(session: Session, other: Checkpoint, cache_type: str | None) -> tuple[ComparedFile, Check]:
    """Return the file to compare logits with, and the check of its tables.

    If either file is quantised, the same two files before the extension are added when they are available.
    """
    target, baseline = session.target, session.source
    tables = same_tables(target, other)
    before = None
    if _is_quantised(target) or _is_quantised(other) or cache_type in BLOCK_TYPES:
        original = unchanged_source(other.path, [])
        if baseline is not None and original is not None and _tensor_types(baseline) == _tensor_types(target):
            before = (original, baseline.path)
    compared = ComparedFile(
        other.path,
        _rounding_types(target, other),
        floors.layers_of(target.stored),
        before,
        inexact=tables.verdict == INEXACT,
        routed=floors.has_experts(target.stored),
    )
    return compared, tables


def _rounding_types(target: Checkpoint, other: Checkpoint) -> tuple[str, ...]:
    """Return the types whose rounding makes the two differ: the types of GGUF files, or else of the directories."""
    files = [each for each in (target, other) if isinstance(each, GgufCheckpoint)]
    if files:
        return tuple(map(_export_type, files))
    directories = [each for each in (target, other) if isinstance(each, HfCheckpoint)]
    if any(_is_quantised(each) for each in directories):
        return ("quantised",)
    return tuple({_commonest_dtype(each).lower() for each in directories})


def _export_type(file: GgufCheckpoint) -> str:
    """Return the export type in the record of a file, or else the type of most of its numbers."""
    record = provenance.record(file.path)
    if record is None or not record.export:
        return floors.of_dtype(_commonest_dtype(file))
    return str(record.export.get("outtype", ""))


def _commonest_dtype(checkpoint: Checkpoint) -> str:
    counts: Counter[str] = Counter()
    for tensor in checkpoint.stored.values():
        counts[tensor.dtype] += math.prod(tensor.shape)
    return max(counts, key=lambda name: counts[name], default="")


def _tensor_types(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the types of the tensors of a GGUF file, or an empty set for a directory."""
    if isinstance(checkpoint, HfCheckpoint):
        return frozenset()
    return frozenset(tensor.type_name for tensor in checkpoint.tensors.values())


def _is_quantised(checkpoint: Checkpoint) -> bool:
    if isinstance(checkpoint, HfCheckpoint):
        return QUANTIZATION_CONFIG in checkpoint.config
    return not _tensor_types(checkpoint) <= UNQUANTISED


def _bands(session: Session) -> dict[str, Any] | None:
    """Return the frequencies of the first layer type in source and target, in radians per token; None without a table."""
    tables = []
    for look in (session.source_look or session.look, session.look):
        first = next(iter(look.rope.entries.values()), None) if look.rope else None
        if first is None or first.table is None:
            return None
        tables.append(first.table.at(session.context))
    return {
        "trained_length": session.trained,
        "target_length": session.context,
        "before": tables[0].inv_freq.tolist(),
        "after": tables[1].inv_freq.tolist(),
        "attention_factor": tables[1].attention_factor,
    }
