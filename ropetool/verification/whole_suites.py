"""A verification by a suite: its rows, its checks and its certificate.

Target and baseline may each be a Hugging Face directory, run by transformers, or a GGUF file, run by llama.cpp.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint import certificate, fingerprints, provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.registry import addition
from ropetool.runtimes.inspection import Inspection
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
from ropetool.verification.run import AGAINST, Material, Models, Pair, verify
from ropetool.verification.runners.llama_cache import BLOCK_TYPES, cache_ways
from ropetool.verification.runners.vllm_engine import OPTION, Engine, VllmRunner, version
from ropetool.verification.scoring import JUDGE, TARGET, Progress, Runner
from ropetool.verification.session import UNDECODED, Session, documents_of, unchanged_source
from ropetool.verification.short_divergence import Lengths

Wrap = Callable[[Runner, str], Runner]
UNQUANTISED = frozenset({"F32", "F16", "BF16", "F64"})


def measure_suites(
    session: Session, options: VerifyOptions, progress: Progress | None = None, say: Callable[[str], None] | None = None
) -> VerifyResult:
    """Return what the suite that these options ask for finds, certified. Raises: CheckpointError, ConfigError."""
    checkpoint, original, found, before = session.target, session.source, session.look, session.source_look
    context, trained, terms, notes = session.context, session.trained, session.terms, session.notes
    target = checkpoint.path
    chosen = _chosen(options)
    if options.place is not None:
        certificate.check_place(target, options.place)
    other = open_checkpoint(hub.local(options.against)) if options.against is not None else None
    asked = list(options.lengths) if options.lengths is not None else default_lengths(trained, max(trained, context))
    documents = documents_of(options.texts, max(asked, default=0), notes)
    loads = _in_vllm(session, options, asked)
    beside = None if options.compare_with is None else _beside(options, session, max(asked, default=trained))
    marked = fingerprints.of(checkpoint, options.full_hash)  # before measuring: an edit meanwhile makes it stale
    checks = [
        *read_back(checkpoint, original, terms), check_rotation(checkpoint),
        *yardsticks(found.made is not None or original is not None, asked, trained, context),
    ]  # fmt: skip
    tasks = _harness(session, options)
    if tasks is not None:
        checks.append(addition("lm_eval_check")(tasks, (options.limits or Limits()).asked))
    pair = None
    if other is not None:
        tables = same_tables(checkpoint, other)
        checks.append(tables)
        pair = replace(_pair(checkpoint, other, original, options.cache_type), inexact=tables.verdict == INEXACT)

    extended = original if pair is None and found.made is None else None

    def with_logits() -> Sequence[Check]:
        """Return the checks with the comparison of logits, which runs both models."""
        assert extended is not None
        kinds, reach = _kinds(checkpoint, extended), Lengths(trained, max(trained, context))
        return [*checks, *kl_to_claim(checkpoint, extended, terms, checks, kinds, reach, progress or nobody)]

    models = session.models
    prints = {
        role: marked if role == TARGET else fingerprints.of(each, options.full_hash) for role, each in models.items()
    }
    ways = (options.device, options.dtype, *(loads.ways if loads else []), *cache_ways(options.cache_type))
    decides = {
        **conditions(models, documents, prints, None if loads else options.device),
        **({"vLLM": version()} if loads else {}), "the target's renamed model_type": str(session.renamed),
    }  # fmt: skip
    opener = None if options.cache_type is None else partial(Open(session.renamed), cache_type=options.cache_type)
    with kept_on_disk(run_key(models, documents, ways), decides, options.resume, notes) as wrap:
        opened = Models(
            target,
            baseline=None if original is None else original.path,
            against=pair,
            judge=None if options.judge is None else open_checkpoint(hub.local(options.judge)).path,
            runner=Open(session.renamed) if loads is None else loads,
            target_runner=opener,
            wrap=wrap,
            baseline_reach=None if loads is None or original is None else loads.reach(original.path),
        )
        material = Material(documents, asked, trained, context, chosen)
        given = checks if extended is None else with_logits
        result = verify(opened, material, options, checks=given, beside=beside, progress=progress, say=say)
    read = catalogue.described(documents, bundled=not options.texts)
    notes = [*notes, *result.notes]
    result = replace(
        result, notes=tuple(notes), extension=session.extension, texts=read, lm_eval=tasks,
        cache_type=options.cache_type, bands=_bands(found, before or found, trained, context),
    )  # fmt: skip
    return certified(result, target, options.place, marked, options.command)


def _in_vllm(session: Session, options: VerifyOptions, lengths: Sequence[int]) -> OpenInVllm | None:
    """Return what has vLLM open the models, None where nobody asks for it."""
    if options.engine is None:
        return None
    looks = {session.target.path: session.look}
    if session.source is not None and session.source_look is not None:
        looks[session.source.path] = session.source_look
    return OpenInVllm(options.engine, looks, lengths, session.trained)


def _harness(session: Session, options: VerifyOptions) -> Any:
    """Return what the logs of lm-evaluation-harness say, None where nobody asks for it."""
    if options.lm_eval is None:
        return None
    most = (options.limits or Limits()).asked.max_lost
    return addition("lm_eval_result")(Path(options.lm_eval), session.target.path, session.source, most)


def _chosen(options: VerifyOptions) -> Suite:
    """Return the suite that these options ask for, of vLLM what single tokens tell."""
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
    """Return the yardsticks of these options on the source, or on the target without one."""
    if options.engine is not None:
        raise ConfigError("reference attention variants work only with transformers", where=YARDSTICKS)
    put_on, look = session.source, session.source_look
    if put_on is None or look is None:
        put_on, look = session.target, session.look
    found: Beside = addition("yardsticks_beside")(options.compare_with, put_on, look.rope, session.trained, longest)
    if session.source is None:
        session.notes.append(f"without a baseline, the reference attention variants use {found.on} and its own table")
    return found


def yardsticks(known: bool, lengths: Sequence[int], trained: int, context: int) -> list[Check]:
    """Return what is missing to judge a longer context: something to hold it against, and lengths that reach it."""
    missing = []
    if not known:
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


def vocabulary_of(checkpoint: Checkpoint) -> int | None:
    """Return how many tokens the model has, where its files say it."""
    if isinstance(checkpoint, HfCheckpoint):
        size = checkpoint.section.get("vocab_size", checkpoint.config.get("vocab_size"))
        return size if isinstance(size, int) and not isinstance(size, bool) else None
    return next((tensor.shape[-1] for name, tensor in checkpoint.tensors.items() if name == "token_embd.weight"), None)


class OpenInVllm:
    """What has vLLM open directories in this process; lengths: those to be measured. A GGUF file is llama.cpp's as ever.

    looks: of the target, then of the baseline. trained: tokens; up to there the target is held against the baseline.
    Raises: ConfigError for a target or a baseline that vLLM does not read, or not so far.
    """

    def __init__(self, engine: Engine, looks: Mapping[Path, Inspection], lengths: Sequence[int], trained: int) -> None:
        self._engine, self._looks, self._longest = engine, looks, max(lengths, default=0)
        target, *baseline = looks
        if not target.is_dir():
            raise ConfigError(
                f"vLLM needs a directory here, and {target.name} is a file", where=OPTION, try_="without --runner"
            )
        reach = self.reach(target)
        if reach is None or reach < self._longest:
            why = UNDECODED if reach is None else too_long_for("target", reach, self._longest)
            raise ConfigError(why, where=OPTION, try_="without --runner")
        needed = min(self._longest, trained)
        for reach in map(self.reach, baseline):
            if reach is not None and reach < needed:
                raise ConfigError(
                    too_long_for("baseline", reach, needed),
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


def too_long_for(role: str, reach: int, needed: int) -> str:
    return f"the table of the {role} ends at its context length of {reach} tokens, and vLLM would have to read {needed}"


def _unscaled(found: Inspection) -> bool:
    return found.rope is not None and all(entry.unscaled for entry in found.rope.entries.values() if entry.table)


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
