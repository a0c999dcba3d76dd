"""Verification of a checkpoint as a user names it: finds its lengths, baseline and texts, measures, and certifies.

Target and baseline may each be a Hugging Face directory, run by transformers, or a GGUF file, run by llama.cpp.
"""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ropetool import __version__, names
from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.certificate import Certificate
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import CheckpointError, ConfigError
from ropetool.escaping import command as command_line
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.plans import model_card
from ropetool.plans.plan import BAKE
from ropetool.registry import addition
from ropetool.rope import methods
from ropetool.runtimes import inspection
from ropetool.runtimes.inspection import Inspection
from ropetool.verification import catalogue, floors, suites
from ropetool.verification.beside import OPTION as YARDSTICKS
from ropetool.verification.conditions import conditions, run_key
from ropetool.verification.gate import NOTHING_BEYOND, Limits
from ropetool.verification.journal import JournaledRunner, kept_journal
from ropetool.verification.measures.long_pass import JUDGE
from ropetool.verification.measures.rotary import check_rotation
from ropetool.verification.near_copies import independent
from ropetool.verification.readback.claimed import Terms
from ropetool.verification.readback.comparing import read_back, same_tables
from ropetool.verification.reading import harness_check
from ropetool.verification.remade import kl_to_claim
from ropetool.verification.results import INEXACT, NOT_RUN, Check, VerifyResult
from ropetool.verification.run import AGAINST, Pair, Progress, default_lengths, verify
from ropetool.verification.runners.llama_runner import BLOCK_TYPES, LlamaRunner, cache_ways, check_cache_type
from ropetool.verification.runners.torch_library import without_class
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.runners.vllm_engine import OPTION, Engine, VllmRunner, version
from ropetool.verification.scoring import BASELINE, TARGET, Runner
from ropetool.verification.short_divergence import Lengths
from ropetool.verification.suites import Suite
from ropetool.verification.texts import Document, default_documents, read_documents

Wrap = Callable[[Runner, str], Runner]
UNQUANTISED = frozenset({"F32", "F16", "BF16", "F64"})


def verify_checkpoint(
    target: str | Path,
    *,
    baseline: str | Path | None = None,
    against: str | Path | None = None,
    judge: str | Path | None = None,
    lm_eval: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    lengths: Sequence[int] | None = None,
    suite: str | None = None,
    measures: Sequence[str] = (),
    segments: int | None = None,
    trials: int | None = None,
    limits: Limits | None = None,
    budget: float | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    resume: bool = False,
    certificate_file: str | Path | None = None,
    full_hash: bool = False,
    terms: Terms | None = None,
    command: str = "",
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    engine: Engine | None = None,
    cache_type: str | None = None,
    compare_with: str | None = None,
) -> VerifyResult:
    """Return what the suite finds of the target and its baseline, with the verdict of every check.

    Without a suite and measures it is the standard one. Without a baseline, the source that the target was made from
    serves if it is unchanged, otherwise the target's own figures within its trained length. Without texts, those of
    the package serve. lm_eval: a folder with logs of lm-evaluation-harness of both models.
    terms: what is said of a target without a record, and of its trained length. Without a baseline and a
    record, or without lengths beyond the trained one up to the stated context, the verdict is partial at best. A run of
    a whole suite is certified in the target's provenance file, or in `certificate_file`, with the command line that asked
    for it. engine: vLLM runs directories in this process, and is asked for single tokens, which tell a part of the suites.
    cache_type: of keys and values where llama.cpp runs the target, and of the target only; it is the run's and not the file's, so
    only `certificate_file` gets a certificate. compare_with: yardsticks by name with commas between them, which are put on the
    baseline, or on the target where there is none, and measured beside the target; they gate nothing.

    Raises: CheckpointError, ConfigError.
    """
    checkpoint = open_checkpoint(hub.local(target))
    target = checkpoint.path
    _check_cache_type(checkpoint, cache_type)
    if engine is None:
        chosen = suites.choose(suite, measures, segments, trials)
    else:
        if suite == "full":
            raise ConfigError(
                "the full suite asks for all logits, which vLLM does not give", where=OPTION, try_="--suite standard"
            )
        chosen = suites.choose_by_tokens(
            suite, measures, segments, trials, score_prompts=engine.score_prompts, who="vLLM in process"
        )
    place = None if certificate_file is None else Path(certificate_file)
    if place is not None:
        certificate.check_place(target, place)
    notes: list[str] = []
    source = hub.local(baseline) if baseline is not None else unchanged_source(target, notes)
    original = None if source is None else open_checkpoint(source)
    other = open_checkpoint(hub.local(against)) if against is not None else None
    found = inspection.inspect_checkpoint(checkpoint)
    terms = terms or Terms()
    context, trained = lengths_of(found, checkpoint)
    before = None if original is None else inspection.inspect_checkpoint(original)
    if original is not None and before is not None:
        known = lengths_of(before, original)[1]
        trained = known if found.made is None else min(trained, known)
        if checkpoint.runtime != original.runtime:
            notes.append(f"{checkpoint.runtime} runs the target, {original.runtime} the baseline")
    trained = terms.trained_length or trained
    looks = ((checkpoint, found), (original, before))
    asked = list(lengths) if lengths is not None else default_lengths(trained, max(trained, context))
    documents = documents_of(texts, max(asked, default=0), notes)
    loads = (
        None
        if engine is None
        else OpenInVllm(engine, {each.path: look for each, look in looks if each and look}, asked, trained)
    )
    beside = None
    if compare_with is not None:
        if engine is not None:
            raise ConfigError("yardsticks take whole models that transformers runs in this process", where=YARDSTICKS)
        put_on, look = (checkpoint, found) if original is None or before is None else (original, before)
        beside = addition("yardsticks_beside")(compare_with, put_on, look.rope, trained, max(asked, default=trained))
        if original is None:
            notes.append(
                f"there is no baseline, so the yardsticks are put on {beside.on} itself, with the table that it has"
            )
    marked = fingerprints.of(checkpoint, full_hash)  # before measuring: an edit meanwhile makes it stale
    checks = [
        *read_back(checkpoint, original, terms), check_rotation(checkpoint),
        *yardsticks(found.made is not None or original is not None, asked, trained, context),
    ]  # fmt: skip
    grade = (limits or Limits()).asked
    tasks = None if lm_eval is None else addition("lm_eval_result")(Path(lm_eval), target, original, grade.max_lost)
    if tasks is not None:
        checks.append(harness_check(tasks, grade))
    pair = None
    if other is not None:
        tables = same_tables(checkpoint, other)
        checks.append(tables)
        pair = replace(_pair(checkpoint, other, original, cache_type), inexact=tables.verdict == INEXACT)

    extended = original if pair is None and found.made is None else None

    def with_logits() -> Sequence[Check]:
        """Return the checks with the comparison of logits, which runs both models."""
        assert extended is not None
        kinds, reach = _kinds(checkpoint, extended), Lengths(trained, max(trained, context))
        return [*checks, *kl_to_claim(checkpoint, extended, terms, checks, kinds, reach, progress or nobody)]

    models = {TARGET: checkpoint} if original is None else {TARGET: checkpoint, BASELINE: original}
    prints = {role: marked if role == TARGET else fingerprints.of(each, full_hash) for role, each in models.items()}
    ways = (device, dtype, *(loads.ways if loads else []), *cache_ways(cache_type))
    decides = {
        **conditions(models, documents, prints, None if loads else device),
        **({"vLLM": version()} if loads else {}), "the target's renamed model_type": str(_renamed(checkpoint)),
    }  # fmt: skip
    with kept_on_disk(run_key(models, documents, ways), decides, resume, notes) as wrap:
        result = verify(
            target,
            baseline=None if original is None else original.path,
            texts=documents,
            lengths=asked,
            trained_length=trained,
            context_length=context,
            suite=chosen,
            limits=limits,
            budget=budget,
            against=pair,
            judge=None if judge is None else open_checkpoint(hub.local(judge)).path,
            checks=checks if extended is None else with_logits,
            bands=_bands(found, before or found, trained, context),
            seed=seed,
            device=device,
            dtype=dtype,
            progress=progress,
            say=say,
            runner=Open(_renamed(checkpoint)) if loads is None else loads,
            target_runner=None if cache_type is None else partial(LlamaRunner, cache_type=cache_type),
            wrap=wrap,
            baseline_reach=None if loads is None or original is None else loads.reach(original.path),
            beside=beside,
        )
    read = catalogue.described(documents, bundled=not texts)
    notes = [*notes, *result.notes]
    result = replace(
        result, notes=tuple(notes), extension=_extension(target, found), texts=read, lm_eval=tasks, cache_type=cache_type,
    )  # fmt: skip
    return _certified(result, chosen, target, place, marked, command)


def documents_of(texts: Sequence[str | Path], longest: int, notes: list[str]) -> list[Document]:
    """Return the independent documents in these texts, or the package's documents for this longest length.

    notes: receives a note if several texts count as one document. Raises: ConfigError.
    """
    if not texts:
        return default_documents(longest)
    documents, said = independent(read_documents([Path(text) for text in texts]))
    notes += said
    return catalogue.of_their_kinds(documents)


def _check_cache_type(target: Checkpoint, cache_type: str | None) -> None:
    """Raise ConfigError for a type that is not one of llama.cpp's, or a target that it does not run."""
    check_cache_type(cache_type)
    if cache_type is not None and not isinstance(target, GgufCheckpoint):
        raise ConfigError(
            "the types of llama.cpp's cache are for GGUF files, and this is a directory, which transformers or vLLM runs",
            where="--cache-type",
            try_=command_line("ropetool", "export", target.path, "-o", "FILE.gguf") + ", and verify FILE.gguf",
        )


def yardsticks(known: bool, lengths: Sequence[int], trained: int, context: int) -> list[Check]:
    """Return what is missing to judge a longer context: something to hold it against, and lengths that reach it."""
    missing = []
    if not known:
        why = "neither a record nor a baseline says what it was before: --baseline SOURCE"
        missing.append(Check("yardstick", None, None, NOT_RUN, why))
    longest = max(lengths, default=0)
    if longest <= trained:
        beyond = (
            "" if context > trained else f", and it states no longer context than the {trained} that it was trained on"
        )
        missing.append(Check("lengths", None, None, NOT_RUN, f"{NOTHING_BEYOND}{beyond}"))
    elif longest < context:
        why = f"the longest measured is {longest}, and a context of {context} is stated"
        missing.append(Check("lengths", None, None, NOT_RUN, why))
    return missing


def vocabulary_of(checkpoint: Checkpoint) -> int | None:
    """Return how many tokens the model has, where its files say it."""
    if isinstance(checkpoint, HfCheckpoint):
        size = checkpoint.section.get("vocab_size", checkpoint.config.get("vocab_size"))
        return size if isinstance(size, int) and not isinstance(size, bool) else None
    return next((tensor.shape[-1] for name, tensor in checkpoint.tensors.items() if name == "token_embd.weight"), None)


class Open:
    """What opens a checkpoint of either format.

    renamed: what the target's model_type was before it became that of a built-in class, and is now: a source of that
    type runs by the same class.
    """

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self._renamed = renamed

    def __call__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner:
        if not path.is_dir():
            return LlamaRunner(path, device=device, dtype=dtype, report=report)
        as_type = (
            self._renamed.get(str(HfCheckpoint.open(path).config.get(names.MODEL_TYPE)), "") if self._renamed else ""
        )
        problem = "" if as_type else without_class(HfCheckpoint.open(path))
        if problem:
            raise CheckpointError(
                f"transformers cannot run it: {problem}",
                where=str(path),
                try_="ropetool export --converter auto, and ropetool verify FILE.gguf, which llama.cpp runs",
            )
        return TorchRunner(path, device=device, dtype=dtype, report=report, as_type=as_type)


class OpenInVllm:
    """What has vLLM open directories in this process; lengths: those to be measured. A GGUF file is llama.cpp's as ever.

    looks: of the target, then of the baseline. trained: tokens; up to there the target is held against the baseline.
    Raises: ConfigError for a target or a baseline that vLLM does not read, or not so far.
    """

    def __init__(self, engine: Engine, looks: Mapping[Path, Inspection], lengths: Sequence[int], trained: int) -> None:
        self._engine, self._looks, self._longest = engine, looks, max(lengths, default=0)
        target, *baseline = looks
        if not target.is_dir():
            raise ConfigError("vLLM runs directories here, and this is a file", where=OPTION, try_="without --runner")
        reach = self.reach(target)
        if reach is None or reach < self._longest:
            why = (
                "nothing says how it rotates"
                if reach is None
                else f"it states {reach} tokens, and its table ends there"
            )
            raise ConfigError(f"{why}: vLLM is not asked for {self._longest}", where=OPTION, try_="without --runner")
        needed = min(self._longest, trained)
        for reach in map(self.reach, baseline):
            if reach is not None and reach < needed:
                raise ConfigError(
                    f"it states {reach} tokens, and its table ends there: vLLM is not asked for the {needed} at which the target "
                    "is held against it",
                    where="--baseline",
                    try_="without --runner",
                )

    @property
    def ways(self) -> list[str]:
        """How figures are computed: vLLM's settings, and the longest text, which selects a list of longrope."""
        return [str(self._engine), *(f"{self.reach(path)} tokens" for path in self._looks)]

    def reach(self, path: Path) -> int | None:
        """Return the most tokens that are read of a row: an unscaled table serves any, another one ends with its context."""
        found = self._looks.get(path)
        if found is None or found.rope is None or found.format != HfCheckpoint.format:
            return None
        return self._longest if _unscaled(found) else min(self._longest, found.rope.max_position_embeddings)

    def __call__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner:
        found, reach = self._looks.get(path), self.reach(path)
        if found is None or reach is None:
            return Open({})(path, device=device, dtype=dtype, report=report)
        assert found.rope is not None
        longer: dict[str, Any] = {}
        if reach > found.rope.max_position_embeddings:
            longer = {names.MAX_POSITION_EMBEDDINGS: reach}
            for section in reversed(found.family.text_path if found.family else ()):
                longer = {section: longer}
        return VllmRunner(
            path, self._engine, dtype=dtype, reach=reach, overrides=longer,
            vocabulary=vocabulary_of(open_checkpoint(path)),
        )  # fmt: skip


def _unscaled(found: Inspection) -> bool:
    return found.rope is not None and all(entry.unscaled for entry in found.rope.entries.values() if entry.table)


def _renamed(target: Checkpoint) -> dict[str, str]:
    """Return how the plans that made the target renamed its model_type."""
    edits = [edit for made in provenance.lineage(target.path) for edit in made.plan.get("edits", ())]
    return {
        str(edit["old"]): str(edit["new"]) for edit in edits
        if isinstance(edit, dict) and edit.get("path") == [names.MODEL_TYPE] and {"old", "new"} <= edit.keys()
    }  # fmt: skip


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


def _certified(
    result: VerifyResult, suite: Suite, target: Path, place: Path | None, marked: str, command: str
) -> VerifyResult:
    """Write the certificate where there is a place for it; return the result with a note that says so."""
    if suite.name == suites.CUSTOM:
        if place is None:
            return result
        raise ConfigError("single measurements make no certificate", where="--certificate", try_="--suite quick")
    if place is None and result.cache_type is not None:
        note = "no certificate is put on record: --cache-type is of this run, not of the file; --certificate FILE writes one"
        return replace(result, notes=(*result.notes, note))
    if place is None and hub.origin(target) is not None:
        note = "no certificate is written into the hub's cache; --certificate FILE writes one elsewhere"
        return replace(result, notes=(*result.notes, note))
    versions = {"ropetool": __version__, "python": platform.python_version(), "runtime": result.runtime}
    found = Certificate(
        verdict=result.verdict,
        suite=suite.name,
        longest=max(entry.length for entry in result.lengths),
        checks=tuple(vars(check) for check in result.checks),
        text_fingerprint=result.text_fingerprint,
        versions=versions,
        command=model_card.portable(command),
        made=certificate.now(),
        fingerprint=marked,
        full_hash=fingerprints.is_full(marked),
        lengths=tuple(entry.length for entry in result.lengths),
        baseline=result.baseline,
        texts=result.texts,
        unbound=fingerprints.unbound(target, marked),
        grade=result.grade,
        cache_type=result.cache_type,
    )
    reach = certificate.reach(found.to_json())
    if reach:
        result = replace(result, notes=(*result.notes, reach))
    file = place or provenance.place(target)
    kept = certificate.kept(target, found, place)
    if kept:
        state = {"file": str(file), "written": False, "kept": kept}
        return replace(result, certificate=state, notes=(*result.notes, kept))
    written = certificate.write(target, found, place)
    if written is not None and place is None:
        model_card.refresh(target, found.to_json())
    if written is None:
        return result
    state = {"file": str(written), "written": True, "kept": ""}
    return replace(result, certificate=state, notes=(*result.notes, f"certificate: {written}"))


def unchanged_source(target: Path, notes: list[str]) -> Path | None:
    """Return what the target was extended from, if it is still what it was; otherwise say so.

    An export is the same model in another format, and a bake the same in other words, so its baseline is that of the
    checkpoint it was made from.
    """
    for made in provenance.lineage(target):
        source, problem = Path(made.source), provenance.source_problem(made)
        if not problem:
            passed_on = made.kind == provenance.EXPORT or made.plan.get("method") == BAKE
            if passed_on and provenance.record(source) is not None:
                continue
            problem = without_class(HfCheckpoint.open(source)) if source.is_dir() and not target.is_dir() else ""
            if not problem:
                return source
            problem = f"cannot be run, for {problem}"
        length = f" within {made.trained_length} tokens" if made.trained_length else ""
        own = f"the target's own figures{length} are the baseline"
        if provenance.is_of_itself(target, made):
            notes.append(f"{provenance.EDITED}: {own}; --baseline names a copy of the file as it was before")
        else:
            notes.append(f"the source {source} {problem}: {own}; --baseline names another")
        return None
    return None


def _extension(target: Path, found: Inspection) -> dict[str, Any] | None:
    """Return method, factor and parameters of what made the target longer, as its record says, bakes aside.

    Without one, what its own keys state, with None for the parameters; None where they state no extension.
    """
    plans = (made.plan for made in provenance.lineage(target))
    plan = next((plan for plan in plans if plan and plan.get("method") != BAKE), None)
    if plan is not None:
        return {key: plan.get(key) for key in ("method", "factor", "params")}
    stated = next((entry for entry in found.rope.entries.values() if entry.table), None) if found.rope else None
    if stated is None or stated.rope_type not in methods.names():
        return None
    return {"method": stated.rope_type, "factor": stated.factor, "params": None}


def _pair(target: Checkpoint, other: Checkpoint, baseline: Checkpoint | None, cache_type: str | None) -> Pair:
    """Return what the target is compared with, and the same two files before the extension where they are at hand."""
    before = None
    if _is_quantised(target) or _is_quantised(other) or cache_type in BLOCK_TYPES:
        original = unchanged_source(other.path, [])
        if baseline is not None and original is not None and _weights(baseline) == _weights(target):
            before = (original, baseline.path)
    routed = floors.has_experts(target.stored)
    return Pair(other.path, _kinds(target, other), floors.layers_of(target.stored), before, routed=routed)


def _kinds(target: Checkpoint, other: Checkpoint) -> tuple[str, ...]:
    """Return the types that tell the files apart: those of GGUF files, or what two directories may be rounded to once more."""
    files = [each for each in (target, other) if isinstance(each, GgufCheckpoint)]
    if files:
        return tuple(map(_type_of, files))
    directories = [each for each in (target, other) if isinstance(each, HfCheckpoint)]
    if any(_is_quantised(each) for each in directories):
        return ("quantised",)
    return tuple({_commonest(each).lower() for each in directories})


def _type_of(file: GgufCheckpoint) -> str:
    """Return the export type of a file: by its record, or by what most of its numbers are stored in."""
    made = provenance.record(file.path)
    return str((made.export or {}).get("outtype", "")) if made and made.export else floors.of_dtype(_commonest(file))


def _commonest(checkpoint: Checkpoint) -> str:
    counts: Counter[str] = Counter()
    for tensor in checkpoint.stored.values():
        counts[tensor.dtype] += math.prod(tensor.shape)
    return max(counts, key=lambda name: counts[name], default="")


def _weights(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the types of a GGUF's tensors; none for a directory."""
    if isinstance(checkpoint, HfCheckpoint):
        return frozenset()
    return frozenset(tensor.type_name for tensor in checkpoint.tensors.values())


def _is_quantised(checkpoint: Checkpoint) -> bool:
    if isinstance(checkpoint, HfCheckpoint):
        return "quantization_config" in checkpoint.config
    return not _weights(checkpoint) <= UNQUANTISED


def _bands(found: Inspection, before: Inspection, trained: int, context: int) -> dict[str, Any] | None:
    """Return the frequencies of the first kind of layer before and after, in radians per token."""
    tables = []
    for entry in (before, found):
        first = next(iter(entry.rope.entries.values()), None) if entry.rope else None
        if first is None or first.table is None:
            return None
        tables.append(first.table.at(context))
    return {
        "trained_length": trained,
        "target_length": context,
        "before": tables[0].inv_freq.tolist(),
        "after": tables[1].inv_freq.tolist(),
        "attention_factor": tables[1].attention_factor,
    }


def lengths_of(found: Inspection, checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the context that the checkpoint states, and the length it was trained on.

    Raises: ConfigError if it states neither.
    """
    is_gguf = isinstance(checkpoint, GgufCheckpoint)
    stated = f"{found.model_type}.context_length" if is_gguf else names.MAX_POSITION_EMBEDDINGS
    context = found.rope.max_position_embeddings if found.rope else found.stated.get(stated)
    trained = found.trained_length or context
    if type(context) is not int or type(trained) is not int:
        raise ConfigError(
            f"it states no {stated}, so its trained length is unknown",
            where=checkpoint.where,
        )
    return context, trained
