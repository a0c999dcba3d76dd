"""ropetool identify."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from ropetool.cli import local_source, notes, print_result
from ropetool.cli.options import JSON, Length, LengthList, WholeRange, gathered
from ropetool.errors import ConfigError
from ropetool.escaping import word

if TYPE_CHECKING:
    from ropetool.checkpoint.hf import HfCheckpoint
    from ropetool.identify.asking import IdentifyOptions, PromptIds
    from ropetool.identify.hypotheses import Hypothesis
    from ropetool.servers.base import Server

UNNAMED = 3


@dataclass(frozen=True)
class AnswerOptions:
    """The source of the answers.

    server, model: the URL of a server, and the model on it.
    logprobs: a file of prompts and answers.
    prompts_out: the file for the prompts, if there are no answers yet.
    """

    server: str | None
    model: str | None
    logprobs: str | None
    prompts_out: str | None

    def check(self) -> None:
        """Raise click.UsageError unless there is exactly one source."""
        if [self.server, self.logprobs, self.prompts_out].count(None) != 2:
            raise click.UsageError("pass exactly one of --server, --logprobs and --prompts-out")

    def server_for(self, checkpoint: HfCheckpoint) -> tuple[Server, PromptIds | None]:
        """Return the server, or the file as one with its prompts. Raises: CheckpointError for a file of another model."""
        if self.logprobs is not None:
            from ropetool.checkpoint.style import context_key
            from ropetool.identify.filed import FiledServer

            filed = FiledServer.read(Path(self.logprobs))
            part = checkpoint.section
            filed.check(part.get("vocab_size"), part.get(context_key(part, checkpoint.family)))
            return filed, filed.prompts
        from ropetool.servers.http import Http
        from ropetool.servers.opening import open_server

        http = Http(str(self.server))
        notes(http.notes)
        return open_server(http, self.model), None


def only_one(context: click.Context, parameter: click.Parameter, value: list[int] | None) -> int | None:
    """Return the only length of a list, None without the option. Raises: click.UsageError for others than one length."""
    if value is None:
        return None
    if len(value) != 1:
        raise click.UsageError("--length accepts only one number of tokens")
    return Length().convert(value[0], parameter, context)


@click.command("identify")
@click.option("--source", type=click.Path(), metavar="DIR", help="The served checkpoint, with its weights.")
@click.option(
    "--gguf", type=click.Path(), metavar="FILE",
    help="Instead of --source: the served GGUF file. ropetool imports it into a temporary checkpoint.",
)  # fmt: skip
@click.option("--server", metavar="URL", help="The address of the server. Put its API key into ROPETOOL_API_KEY.")
@click.option("--model", metavar="NAME", help="The model on the server. Default: its only model.")
@click.option(
    "--logprobs", type=click.Path(), metavar="FILE",
    help="Instead of --server: the prompts of --prompts-out, with the answers of any program.",
)  # fmt: skip
@click.option(
    "--prompts-out", type=click.Path(), metavar="FILE",
    help="Write the prompts to FILE and exit without contacting a server.",
)  # fmt: skip
@click.option(
    "--length", type=LengthList(), callback=only_one, metavar="N",
    help="Length of the longest prompt in tokens. Default: the limit of the model and the server.",
)  # fmt: skip
@click.option(
    "--prompts", "count", type=WholeRange(12, 400), default=24, show_default=True, help="The number of prompts."
)
@click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|mps|map",
    help="The device of the reference model.",
)  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, metavar="auto|float32|bfloat16|float16|float64")
@JSON
@gathered(answers=AnswerOptions, options="ropetool.identify.asking.IdentifyOptions")
def identify_command(
    source: str | None, gguf: str | None, answers: AnswerOptions, options: IdentifyOptions, as_json: bool
) -> int:
    """Identify the RoPE table that a running server uses.

    Runs the checkpoint with each table that a runtime could use: the intended table, a table without the scaling or without the
    attention factor, one with defaults in place of the keys, one with swapped layer types, and the table of each known release.
    Chooses prompts whose next tokens differ most between these tables, and requests the likeliest next tokens from the server.
    The output names the table that fits the answers, the distance to the next table, and the keys that the server ignores.

    Exit code 3 unless the server uses the intended table, with high confidence.

    \b
    ropetool identify --source model-yarn-8x --server http://localhost:8000
    ropetool identify --gguf model-yarn-8x-F16.gguf --server http://localhost:8080
    ropetool identify --source model-yarn-8x --prompts-out prompts.json
    ropetool identify --source model-yarn-8x --logprobs answers.json
    """
    from contextlib import ExitStack

    from ropetool.cli.named_files import check_new
    from ropetool.cli.progress import bar
    from ropetool.identify import asking
    from ropetool.report.identified import identified_parts

    answers.check()
    if (source is None) == (gguf is None):
        raise click.UsageError("pass exactly one of --source and --gguf")
    if answers.prompts_out is not None:
        check_new("--prompts-out", Path(answers.prompts_out))
    with ExitStack() as stack, bar() as progress:
        checkpoint = _directory(source) if source is not None else stack.enter_context(_imported(str(gguf)))
        if gguf is not None:
            options = replace(options, more=_options_of(gguf))
        if answers.prompts_out is not None:
            _write_prompts(answers.prompts_out, asking.prepare(checkpoint, options, progress=progress))
            return 0
        server, prompts = answers.server_for(checkpoint)
        identified = asking.identify(checkpoint, server, options, given=prompts, progress=progress)
    print_result(as_json, identified.to_json, lambda: identified_parts(identified), width=100)
    return 0 if identified.name == asking.AS_MEANT and identified.sure else UNNAMED


def _write_prompts(file: str, prepared: PromptIds) -> None:
    from ropetool.identify.asking import FILL
    from ropetool.identify.filed import write_prompts

    write_prompts(Path(file), prepared)
    notes([f"{file}: {len(prepared.prompts)} prompts; `{FILL}`"])


def _directory(source: str) -> HfCheckpoint:
    from ropetool.checkpoint.hf import HfCheckpoint
    from ropetool.checkpoint.opening import open_checkpoint

    checkpoint = open_checkpoint(local_source(source))
    if not isinstance(checkpoint, HfCheckpoint):
        raise ConfigError(
            "must be a directory, because transformers computes the reference", where="--source",
            try_=f"--gguf {word(source)}",
        )  # fmt: skip
    return checkpoint


@contextmanager
def _imported(file: str) -> Iterator[HfCheckpoint]:
    """Give the checkpoint that a GGUF file is imported as, its numbers as the file has them, until the work is done."""
    from ropetool.checkpoint.hf import HfCheckpoint
    from ropetool.gguf_import import import_gguf

    with TemporaryDirectory(prefix="ropetool-") as folder:
        imported = import_gguf(local_source(file), Path(folder) / "imported", dtype="f32", check=False)
        notes(imported.notes)
        yield HfCheckpoint.open(imported.output)


def _options_of(file: str) -> tuple[Hypothesis, ...]:
    from ropetool.checkpoint.gguf import GgufCheckpoint
    from ropetool.identify.options import of_file

    return of_file(GgufCheckpoint.open(local_source(file)))
