"""Verification of a model behind a server.

The local checkpoint supplies the tokenizer, the record and the lengths. Its weights are never loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError
from ropetool.escaping import word
from ropetool.files import hub
from ropetool.runtimes import inspection
from ropetool.servers.base import Server
from ropetool.servers.http import Http
from ropetool.servers.opening import open_server
from ropetool.servers.text import TextServer
from ropetool.verification import catalogue, suites
from ropetool.verification.conditions import conditions, run_key
from ropetool.verification.journal import JournaledRunner
from ropetool.verification.opening import Open
from ropetool.verification.options import UNSERVED, VerifyOptions
from ropetool.verification.preparing import default_lengths
from ropetool.verification.results import NOT_ASKED, NOT_RUN, Check, VerifyResult
from ropetool.verification.run import Models, Workload, verify
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.served_words import TokenizerWords
from ropetool.verification.runners.server_runner import Counting, ServerRunner, TextTokenizer, Unseen
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer
from ropetool.verification.scoring import BASELINE, TARGET, Measurement, Progress, Runner, ignore
from ropetool.verification.session import documents_of, lengths_of, vocabulary_of
from ropetool.verification.texts import Document
from ropetool.verification.whole_suites import Wrap, kept_on_disk, missing_comparisons

SERVED = Path("the served model")  # replaces the target's path, because target and baseline may have the same path
SHOWN = "answers shown"
CHANGED = 0.03  # nats per token that the losses of an unchanged server may differ by, because batches round differently


@dataclass(frozen=True)
class Served:
    """A server to verify.

    url: its address.
    model: the name of a served model. None works if the server has only one.
    tokenizer: a directory with the tokenizer, or None for the target's tokenizer.
    score_prompts: use the server's scores of whole prompts.
    """

    url: str
    model: str | None = None
    tokenizer: str | Path | None = None
    score_prompts: bool = False


def verify_served(
    target: str | Path,
    served: Served,
    options: VerifyOptions,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> VerifyResult:
    """Run a suite on a served model and return the result. The default suite is `quick`.

    A baseline runs on this machine. Without a baseline, the served model is compared with itself within its trained
    length. Lengths beyond the server's context are left out, and the verdict is then partial.

    target: the checkpoint that is served; it has the tokenizer, the record and the lengths.
    progress, say: see `verify_checkpoint`.

    Raises: ServerError if the server does not answer, or answers with an unexpected interface; ConfigError if it serves
    a different model, and as `verify_target`; CheckpointError.
    """
    _refuse_other_options(options)
    checkpoint = open_checkpoint(hub.local(target))
    original = None if options.baseline is None else open_checkpoint(hub.local(options.baseline))
    http = Http(served.url)
    server = open_server(http, served.model)
    notes = [*http.notes, _asked_of(server), *([_own_baseline(checkpoint, http.url)] if original is None else [])]
    suite = suites.choose_by_tokens(
        options.suite, options.measures, options.segments, options.trials, score_prompts=served.score_prompts
    )
    inspected = inspection.inspect_checkpoint(checkpoint)
    lengths = _lengths(server, lengths_of(inspected, checkpoint), original, options)
    notes += [lengths.cut] if lengths.cut else []
    documents = documents_of(options.texts, max(lengths.measured), notes)
    checks = _length_checks(lengths, comparable=inspected.made is not None or original is not None)
    runner = _runner(server, served, checkpoint)
    notes += runner.notes
    if served.score_prompts and say is not None:
        say(_cost(server, max(lengths.measured), vocabulary_of(checkpoint)))
    models = {TARGET: checkpoint} if original is None else {TARGET: checkpoint, BASELINE: original}
    computed_by = (options.device, options.dtype, http.url, server.model, str(served))
    with _journal(server, run_key(models, documents, computed_by), models, documents, options, notes) as wrap:
        result = verify(
            Models(SERVED, None if original is None else original.path, runner=partial(_open, runner), wrap=wrap),
            Workload(documents, lengths.measured, lengths.trained, lengths.context, suite),
            options,
            checks=checks,
            progress=progress,
            say=say,
            foretell=partial(_request_count, server, runner.prefix, served.score_prompts),
        )
    return replace(
        result, target=f"{server.model} at {http.url}", checks=(*result.checks, _shown(runner.unseen)),
        notes=(*notes, *result.notes), texts=catalogue.described(documents, bundled=not options.texts),
    )  # fmt: skip


@dataclass(frozen=True)
class _ServedLengths:
    """The lengths of a run on a server, in tokens.

    measured: the lengths to measure.
    trained: the trained length.
    context: the context length that the run should reach.
    left_out: why longer lengths are left out, or "".
    cut: why the longest length is shortened, or "".
    """

    measured: list[int]
    trained: int
    context: int
    left_out: str
    cut: str


def _lengths(
    server: Server, configured: tuple[int, int], original: Checkpoint | None, options: VerifyOptions
) -> _ServedLengths:
    """Return the lengths to measure. configured: context and trained length of the target. Raises: as `_accepted`."""
    context, trained = configured
    if original is not None:
        trained = min(trained, lengths_of(inspection.inspect_checkpoint(original), original)[1])
    trained = (options.terms and options.terms.trained_length) or trained
    measured, left_out, cut = _accepted(server, default_lengths(trained, max(trained, context)), options.lengths)
    if cut:
        context = min(context, max(measured))
    return _ServedLengths(measured, trained, context, left_out, cut)


def _length_checks(lengths: _ServedLengths, *, comparable: bool) -> list[Check]:
    """Return a check for each reason why a longer context cannot be evaluated completely.

    comparable: a record or a baseline describes the model before the extension.
    """
    missing = missing_comparisons(comparable, lengths.measured, lengths.trained, lengths.context)
    if not lengths.left_out:
        return missing
    return [*missing, Check("server's context", None, None, NOT_RUN, lengths.left_out)]


def _runner(server: Server, served: Served, checkpoint: Checkpoint) -> ServerRunner:
    """Return the runner that asks the server. A server that accepts only text gets the tokenizer's words."""
    reader = reader_of(open_checkpoint(Path(served.tokenizer)) if served.tokenizer is not None else checkpoint)
    vocabulary = vocabulary_of(checkpoint)
    if isinstance(server, TextServer):
        server.words = TokenizerWords(reader, vocabulary or 0)
    return ServerRunner(server, reader, vocabulary=vocabulary, score_prompts=served.score_prompts)


def _open(runner: ServerRunner, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner:
    """Return the server's runner for SERVED, and open any other checkpoint on this machine."""
    return runner if path == SERVED else Open({})(path, device=device, dtype=dtype, report=report)


def _request_count(
    server: Server, prefix: tuple[int, ...], score_prompts: bool, measurements: Sequence[Measurement]
) -> str:
    """Return a sentence about the number and the size of the requests of these measurements."""
    counting = Counting(server.limits, prefix, score_prompts=score_prompts)
    for measurement in measurements:
        # A measurement that can run on a server calls only the methods that `Counting` has.
        measurement.run(counting, TARGET, ignore)  # type: ignore[arg-type]
    return (
        f"{server.program} will get about {counting.requests} requests, {server.limits.at_once} at a time, with about "
        f"{counting.tokens} prompt tokens in all, {counting.longest} in the longest prompt"
    )


def _journal(
    server: Server,
    key: str,
    models: Mapping[str, Checkpoint],
    documents: Sequence[Document],
    options: VerifyOptions,
    notes: list[str],
) -> AbstractContextManager[Wrap | None]:
    """Return the journal of a run on a server; None if the server does not return exact probabilities.

    Raises: ConfigError if --resume is set for such a run; CheckpointError.
    """
    run_conditions = {
        **conditions(models, documents, {}, options.device if BASELINE in models else None),
        "the server": server.program, "the limits of the server": str(server.limits),
    }  # fmt: skip
    journal = kept_on_disk(key, run_conditions, options.resume, notes, changes=True)
    return _kept(server, options.resume, _same(server, journal) if options.resume else journal)


def _refuse_other_options(options: VerifyOptions) -> None:
    """Raise ConfigError for an option that needs a model that is run from its files."""
    usual = VerifyOptions()
    for name, reason in UNSERVED.items():
        if getattr(options, name) != getattr(usual, name):
            raise ConfigError(f"does not work with --server: {reason}", where=name, try_=f"without {name}")


def _kept(server: Server, resume: bool, journal: AbstractContextManager[Wrap]) -> AbstractContextManager[Wrap | None]:
    """Return the journal, or None for a server that does not return all probabilities.

    The journal cannot store which tokens were missing. Raises: ConfigError if `resume` is set for such a run.
    """
    if server.limits.exact:
        return journal
    if resume:
        raise ConfigError(
            f"{server.program} does not return all probabilities, and such a run saves no results",
            where="--resume",
            try_="without --resume",
        )
    return nullcontext()


@contextmanager
def _same(server: Server, journal: AbstractContextManager[Wrap]) -> Iterator[Wrap]:
    """Yield the journal of an interrupted run, and compare the server with its earlier answers.

    Raises: ConfigError if the server answers differently, because its options or weights have changed.
    """
    with journal as wrap:

        def wrap_unchanged(runner: Runner, role: str) -> Runner:
            journaled = wrap(runner, role)
            changed = journaled.changed() if role == TARGET and isinstance(journaled, JournaledRunner) else 0.0
            if changed > CHANGED:
                raise ConfigError(
                    f"{server.program} now scores the same passage {changed:.2g} nats per token differently: its options "
                    "or its weights have changed",
                    where="--resume",
                    try_="without --resume",
                )
            return journaled

        yield wrap_unchanged


def _cost(server: Server, longest: int, vocabulary: int | None) -> str:
    """Return a sentence about the memory that the server needs to score a prompt."""
    tokens = min(longest, server.limits.scored or longest)
    size = (
        "4 bytes per vocabulary entry" if vocabulary is None
        else f"{vocabulary} x 4 bytes, {4e-9 * tokens * vocabulary:.2g} GB in all"
    )  # fmt: skip
    bound = (
        "" if server.limits.scored is not None
        else "; start it with --max-num-batched-tokens 1024 to keep the logits of 1024 tokens at a time"
    )  # fmt: skip
    return (
        f"--score-prompts: {server.program} also needs memory for the logits of {tokens} prompt tokens, "
        f"{tokens} x {size}{bound}"
    )


def reader_of(checkpoint: Checkpoint) -> TextTokenizer:
    """Return the tokenizer of a directory or of a GGUF file."""
    return TorchTokenizer(checkpoint.path) if isinstance(checkpoint, HfCheckpoint) else LlamaRunner(checkpoint.path)


def _asked_of(server: Server) -> str:
    limit = "" if server.limits.context is None else f", {server.limits.context} tokens"
    return f"{server.program} serves {server.model}{limit}; this model is verified, with tokenizer and record of the checkpoint"


def _own_baseline(target: Checkpoint, url: str) -> str:
    """Return a note that without a baseline any model with the same tokenizer would be compared with itself."""
    option = "--source" if isinstance(target, HfCheckpoint) else "--gguf"
    return (
        f"the served model is compared with itself, so its weights may differ from {hub.name_of(target.path)}; pass "
        f"--baseline SOURCE, or run ropetool identify {option} {word(target.path)} --server {word(url)}"
    )


def _accepted(server: Server, doubled: list[int], requested: Sequence[int] | None) -> tuple[list[int], str, str]:
    """Return the lengths that the server accepts, a note on dropped lengths, and a note on a shortened length.

    A length is shortened if the server needs more room for its answer.
    doubled: the default lengths. requested: the lengths that the user chose, or None.
    Raises: ConfigError if requested lengths are too long, or if no length is left.
    """
    limit = server.limits.context
    lengths = list(requested) if requested is not None else doubled
    accepted = [length for length in lengths if limit is None or length <= limit]
    if accepted != lengths and (requested is not None or not accepted):
        raise ConfigError(
            f"the server has a context of {limit} tokens, and the longest length is {max(lengths)}",
            where="--lengths",
            try_=f"start the server with a context of {max(lengths)} or more, or pass shorter --lengths",
        )
    longest = server.limits.prompt
    measured = list(dict.fromkeys(length if longest is None else min(length, longest) for length in accepted))
    cut = ""
    if longest is not None and max(accepted) > longest:
        cut = f"measured up to {longest} of {limit} tokens, because the server needs room for an answer"
    if len(accepted) == len(lengths):
        return measured, "", cut
    return (
        measured,
        f"the server accepts {limit} of the configured {max(lengths)} tokens, so longer texts were not measured",
        cut,
    )


def _shown(unseen: Unseen) -> Check:
    """Return a line of the gate with the share of scored tokens whose probability the server returned."""
    if not unseen.count:
        return Check(SHOWN, 1.0, None, NOT_ASKED, "the server returned the probability of every requested token")
    share = 1 - unseen.count / unseen.asked
    detail = (
        f"the server did not return {unseen.count} of {unseen.asked} tokens; they count with their smallest possible loss, "
        f"{unseen.least / unseen.asked:.2f} nats per token of all, and up to {unseen.missing:.2f} of the probability is hidden"
    )
    return Check(SHOWN, share, None, NOT_RUN, detail)
