"""Verification of a model behind a server: what it computes is judged, whatever its files say.

The checkpoint at hand gives the tokenizer, the record and the lengths; its own weights are never loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
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
from ropetool.verification.run import Material, Models, verify
from ropetool.verification.runners.llama_runner import LlamaRunner
from ropetool.verification.runners.served_words import TokenizerWords
from ropetool.verification.runners.server_runner import Counting, Reader, ServerRunner, Unseen
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer
from ropetool.verification.scoring import BASELINE, TARGET, Measurement, Progress, Runner, ignore
from ropetool.verification.session import documents_of, lengths_of
from ropetool.verification.whole_suites import Wrap, kept_on_disk, vocabulary_of, yardsticks

SERVED = Path("the served model")  # in the place of a path: the target's own may be the baseline's too
SHOWN = "answers shown"
CHANGED = 0.03  # nats a token by which a server that is the same may differ: batches are rounded otherwise each time


@dataclass(frozen=True)
class Served:
    """A server to ask. model: which of those that it serves. tokenizer: a directory with it, if not the target.

    score_prompts: take its scores of whole prompts.
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
    """Return what a suite measures of a served model. Without a suite it is the quick one.

    A baseline runs on this machine. Without one, the served model's own figures within its trained length are the baseline.
    Lengths that the server does not take are left out, and the verdict is then partial.

    Raises: ServerError if the server does not answer, or not by its interface; ConfigError if it serves another model,
    and as `verify_target`; CheckpointError.
    """
    _refuse_other_options(options)
    checkpoint = open_checkpoint(hub.local(target))
    original = None if options.baseline is None else open_checkpoint(hub.local(options.baseline))
    http = Http(served.url)
    server = open_server(http, served.model)
    notes = [*http.notes, _asked_of(server), *([_own_baseline(checkpoint, http.url)] if original is None else [])]
    chosen = suites.choose_by_tokens(
        options.suite, options.measures, options.segments, options.trials, score_prompts=served.score_prompts
    )
    found = inspection.inspect_checkpoint(checkpoint)
    context, trained = lengths_of(found, checkpoint)
    if original is not None:
        trained = min(trained, lengths_of(inspection.inspect_checkpoint(original), original)[1])
    trained = (options.terms and options.terms.trained_length) or trained
    asked, left_out, cut = _taken(server, default_lengths(trained, max(trained, context)), options.lengths)
    if cut:
        notes.append(cut)
        context = min(context, max(asked))
    documents = documents_of(options.texts, max(asked), notes)
    checks = [
        *yardsticks(found.made is not None or original is not None, asked, trained, context),
        *([Check("server's context", None, None, NOT_RUN, left_out)] if left_out else []),
    ]
    reader = reader_of(open_checkpoint(Path(served.tokenizer)) if served.tokenizer is not None else checkpoint)
    if isinstance(server, TextServer):
        server.words = TokenizerWords(reader, vocabulary_of(checkpoint) or 0)
    vocabulary = vocabulary_of(checkpoint)
    asking = ServerRunner(server, reader, vocabulary=vocabulary, score_prompts=served.score_prompts)
    notes += asking.notes
    if served.score_prompts and say is not None:
        say(_cost(server, max(asked), vocabulary))

    def foretold(measurements: Sequence[Measurement]) -> str:
        counting = Counting(server.limits, asking.prefix, score_prompts=served.score_prompts)
        for measurement in measurements:
            measurement.run(counting, TARGET, ignore)  # type: ignore[arg-type] # all that runs on a server asks for these
        return (
            f"{server.program} will get about {counting.requests} requests, {server.limits.at_once} at a time, with about "
            f"{counting.tokens} prompt tokens in all, {counting.longest} in the longest prompt"
        )

    def runner(path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner:
        if path == SERVED:
            return asking
        return Open({})(path, device=device, dtype=dtype, report=report)

    models = {TARGET: checkpoint} if original is None else {TARGET: checkpoint, BASELINE: original}
    decides = {
        **conditions(models, documents, {}, None if original is None else options.device),
        "the server": server.program, "the limits of the server": str(server.limits),
    }  # fmt: skip
    key = run_key(models, documents, (options.device, options.dtype, http.url, server.model, str(served)))
    kept = kept_on_disk(key, decides, options.resume, notes, changes=True)
    with _kept(server, options.resume, _same(server, kept) if options.resume else kept) as wrap:
        opened = Models(SERVED, None if original is None else original.path, runner=runner, wrap=wrap)
        material = Material(documents, asked, trained, context, chosen)
        result = verify(opened, material, options, checks=checks, progress=progress, say=say, foretell=foretold)
    read = catalogue.described(documents, bundled=not options.texts)
    shown = _shown(asking.unseen)
    return replace(
        result, target=f"{server.model} at {http.url}", checks=(*result.checks, shown), notes=(*notes, *result.notes),
        texts=read,
    )  # fmt: skip


def _refuse_other_options(options: VerifyOptions) -> None:
    """Raise ConfigError for an option that needs a model that is run from its files."""
    usual = VerifyOptions()
    for name, reason in UNSERVED.items():
        if getattr(options, name) != getattr(usual, name):
            raise ConfigError(f"does not work with --server: {reason}", where=name, try_=f"without {name}")


def _kept(server: Server, resume: bool, journal: AbstractContextManager[Wrap]) -> AbstractContextManager[Wrap | None]:
    """Return what keeps figures on disk, nothing for a server that leaves tokens out: which they were is not kept.

    Raises: ConfigError where such a run is to be resumed.
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
    """Give what keeps figures on disk, for a server that still answers as it did.

    Raises: ConfigError for one that does not: it was started with other options meanwhile, or serves other weights.
    """
    with journal as wrap:

        def asked_again(runner: Runner, role: str) -> Runner:
            found = wrap(runner, role)
            changed = found.changed() if role == TARGET and isinstance(found, JournaledRunner) else 0.0
            if changed > CHANGED:
                raise ConfigError(
                    f"{server.program} now scores the same passage {changed:.2g} nats per token differently: its options "
                    "or its weights have changed",
                    where="--resume",
                    try_="without --resume",
                )
            return found

        yield asked_again


def _cost(server: Server, longest: int, vocabulary: int | None) -> str:
    """Return what the scores of a prompt take on the server's side, as a sentence."""
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


def reader_of(checkpoint: Checkpoint) -> Reader:
    """Return the tokenizer of a checkpoint, a directory's or a GGUF file's own."""
    return TorchTokenizer(checkpoint.path) if isinstance(checkpoint, HfCheckpoint) else LlamaRunner(checkpoint.path)


def _asked_of(server: Server) -> str:
    limit = "" if server.limits.context is None else f", {server.limits.context} tokens"
    return f"{server.program} serves {server.model}{limit}; this model is verified, with tokenizer and record of the checkpoint"


def _own_baseline(target: Checkpoint, url: str) -> str:
    """Return what a run without a baseline leaves open: another model with the same tokenizer is judged by itself too."""
    option = "--source" if isinstance(target, HfCheckpoint) else "--gguf"
    return (
        f"the served model is compared with itself, so its weights may differ from {hub.name_of(target.path)}; pass "
        f"--baseline SOURCE, or run ropetool identify {option} {word(target.path)} --server {word(url)}"
    )


def _taken(server: Server, doubled: list[int], lengths: Sequence[int] | None) -> tuple[list[int], str, str]:
    """Return the lengths that the server accepts, a note on dropped lengths, and a note on a shortened length.

    A length is shortened if the server needs more room for its answer.
    Raises: ConfigError if requested lengths are too long, or if no length is left.
    """
    limit = server.limits.context
    asked = list(lengths) if lengths is not None else doubled
    taken = [length for length in asked if limit is None or length <= limit]
    if taken != asked and (lengths is not None or not taken):
        raise ConfigError(
            f"the server has a context of {limit} tokens, and the longest length is {max(asked)}",
            where="--lengths",
            try_=f"start the server with a context of {max(asked)} or more, or pass shorter --lengths",
        )
    longest = server.limits.prompt
    kept = list(dict.fromkeys(length if longest is None else min(length, longest) for length in taken))
    cut = ""
    if longest is not None and max(taken) > longest:
        cut = f"measured up to {longest} of {limit} tokens, because the server needs room for an answer"
    if len(taken) == len(asked):
        return kept, "", cut
    return (
        kept,
        f"the server accepts {limit} of the configured {max(asked)} tokens, so longer texts were not measured",
        cut,
    )


def _shown(unseen: Unseen) -> Check:
    """Return whether every token that was scored was among those that the server shows."""
    if not unseen.count:
        return Check(SHOWN, 1.0, None, NOT_ASKED, "the server returned the probability of every requested token")
    share = 1 - unseen.count / unseen.asked
    detail = (
        f"the server did not return {unseen.count} of {unseen.asked} tokens; they count with their smallest possible loss, "
        f"{unseen.least / unseen.asked:.2f} nats per token of all, and up to {unseen.missing:.2f} of the probability is hidden"
    )
    return Check(SHOWN, share, None, NOT_RUN, detail)
