"""ropetool verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ropetool.cli import local_source, show
from ropetool.cli import options as shared
from ropetool.escaping import command

if TYPE_CHECKING:
    from ropetool.cli.runs import GateOptions, ResultOptions, RunnerOptions
    from ropetool.verification.options import VerifyArguments
    from ropetool.verification.readback.terms import Terms


CHECK_MEASURES = shared.checked("ropetool.verification.suites.check_measure")


def say_grade(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Refuse an option of earlier versions, and name what took its place."""
    if value is not None:
        raise click.UsageError(
            "--max-ratio, --max-tax and --min-retrieval were removed. Pass --grade publishable, usable or research: at every "
            "length, it allows 1.03, 1.10 or 1.5 times the baseline's perplexity, and 0.05, 0.10 or 0.20 of the answers lost. "
            "--grade research is nearest to the old limits"
        )


def print_measures(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names. For the name "list", print all measures instead, and end."""
    if "list" in names:
        from ropetool.verification import measures

        show("".join(f"{name}\n" for name in measures.offered()))
        context.exit(0)
    CHECK_MEASURES(context, parameter, names)
    return names


def by_key(context: click.Context, parameter: click.Parameter, value: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a dictionary."""
    return dict(value)


GROUPS = {
    "What to compare": ("baseline", "trained_length", "texts", "server"),
    "How much": ("budget", "resume", "suite", "grade"),
    "How to compute": ("device", "dtype"),
    "Output": ("certificate_file", "report", "explain", "as_json"),
}


@click.command("verify", cls=shared.Grouped, groups=GROUPS, context_settings={"allow_extra_args": True})
@click.argument("target", type=click.Path())
@shared.BASELINE
@click.option(
    "--against", type=click.Path(),
    help="A different file of the same model. Compares the logits of both files, token by token.",
)  # fmt: skip
@click.option(
    "--judge", type=click.Path(),
    help="A model that selects the tokens whose prediction needs distant text. It needs the same tokenizer, and reads the whole context.",
)  # fmt: skip
@click.option(
    "--compare-with", metavar="NAME,...",
    help="Also run these attention variants, which a file cannot contain, on the baseline: rerope, leaky-rerope, self-extend, "
    "sliding-window, lambda, dynamic-ntk, dynamic-yarn. Parameters: rerope(512).",
)  # fmt: skip
@click.option(
    "--lm-eval", type=click.Path(), metavar="DIR",
    help="Compare the scores that lm-evaluation-harness logged in DIR for both models. Without logs, print the commands that "
    "create them.",
)  # fmt: skip
@shared.TRAINED_LENGTH
@click.option(
    "--stated", type=(str, str), multiple=True, metavar="KEY VALUE", callback=by_key,
    help="For a TARGET without a record: accept this key although the method gives a different value (repeatable). The VALUE "
    "as-is accepts any value.",
)  # fmt: skip
@click.option("--finetuned", is_flag=True, help="The weights are fine-tuned: report differences, but do not fail.")
@click.option(
    "--strict", is_flag=True,
    help="Also fail on differences that do not change the numbers: templates, names, generation config.",
)  # fmt: skip
@shared.TEXTS
@click.option(
    "--lengths", type=shared.LengthList(), metavar="N,N,...",
    callback=shared.checked("ropetool.verification.preparing.check_lengths"),
    help="The lengths to measure, in tokens: 4096,8192 or 4k,8k. Default: doubling up to the configured context length.",
)  # fmt: skip
@click.option(
    "--suite", metavar="quick|standard|full", callback=shared.checked("ropetool.verification.suites.check_suite"),
    help="Measure a whole suite with a fixed number of texts. Default: read texts until the verdict is clear or the budget ends.",
)  # fmt: skip
@click.option(
    "--measure", "measures", multiple=True, metavar="NAME", callback=print_measures, is_eager=True,
    help="Add this measure to --suite, or run only this one (repeatable): last-segment, far, retrieval and others. `--measure "
    "list` prints all.",
)  # fmt: skip
@shared.GRADE
@click.option(
    "--max-ratio", "--max-tax", "--min-retrieval", "replaced", hidden=True, callback=say_grade, expose_value=False,
    help="Replaced by --grade.",
)  # fmt: skip
@click.option(
    "--max-kl", type=shared.NUMBER, callback=shared.checked("ropetool.verification.gate.Limits", "max_kl"),
    help="The limit of the mean KL divergence for --against, in nats per token. Default: from the types of both files.",
)  # fmt: skip
@click.option(
    "--require-useful", is_flag=True, help="Fail if the longer context is not significantly better than truncated text."
)
@shared.SEGMENTS
@click.option(
    "--budget", type=shared.Minutes(), metavar="MINUTES|none", callback=shared.checked("ropetool.verification.options.check_budget"),
    help="The time limit of the command in minutes. Default: 10, or 60 for a whole suite.",
)  # fmt: skip
@shared.TRIALS
@shared.SEED
@shared.DEVICE
@shared.DTYPE
@click.option(
    "--exact-numbers", is_flag=True,
    help="Let llama.cpp compute in float32 without flash attention. A whole suite always does this.",
)  # fmt: skip
@click.option(
    "--cache-type", metavar="f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl",
    callback=shared.checked("ropetool.verification.runners.llama_cache.check_cache_type"),
    help="The type of llama.cpp's KV cache for a GGUF TARGET. The cache of the baseline follows --dtype.",
)  # fmt: skip
@click.option(
    "--server", metavar="URL",
    help="Measure the model on this server: vLLM, SGLang, llama-server, Ollama, or any server with OpenAI's interface. TARGET "
    "provides tokenizer and record, and ROPETOOL_API_KEY the API key.",
)  # fmt: skip
@click.option("--model", metavar="NAME", help="With --server: the model on the server. Default: its only model.")
@click.option(
    "--tokenizer", type=click.Path(), metavar="DIR", help="With --server: the tokenizer. Default: from TARGET."
)
@click.option(
    "--runner", type=click.Choice(["vllm"]),
    help="Run TARGET and the baseline with vLLM in this process. It must be installed in the same Python. Default: "
    "transformers, or llama.cpp for GGUF files.",
)  # fmt: skip
@click.option(
    "--tensor-parallel-size", type=shared.WHOLE, metavar="N",
    help="With --runner vllm: the number of devices that share each layer. Default: 1.",
)  # fmt: skip
@click.option(
    "--pipeline-parallel-size", type=shared.WHOLE, metavar="N",
    help="With --runner vllm: the number of pipeline stages. Default: 1.",
)  # fmt: skip
@click.option(
    "--score-prompts", is_flag=True,
    help="With --server (vLLM, SGLang) or --runner vllm: score whole prompts. This needs GB of memory, so do not use it on a "
    "shared server.",
)  # fmt: skip
@shared.REPORT
@click.option("--resume", is_flag=True, help="Continue an undecided or interrupted run.")
@click.option(
    "--certificate", "certificate_file", type=click.Path(),
    help="The file for the certificate, if ropetool did not write the checkpoint. Default: the record of TARGET.",
)  # fmt: skip
@click.option(
    "--full-hash", is_flag=True,
    help="Bind the certificate to every byte of the weights. Default: only to samples if the weights have 2 GB or more.",
)  # fmt: skip
@shared.FORCE_REPORT
@click.option("--explain", is_flag=True, help="Also print the single texts and all checks, and describe the columns.")
@shared.JSON
@shared.gathered(
    arguments="ropetool.verification.options.VerifyArguments",
    terms="ropetool.verification.readback.terms.Terms",
    gate="ropetool.cli.runs.GateOptions",
    runner="ropetool.cli.runs.RunnerOptions",
    printing="ropetool.cli.runs.ResultOptions",
)
def verify_command(
    target: str, arguments: VerifyArguments, terms: Terms, gate: GateOptions, runner: RunnerOptions,
    printing: ResultOptions,
) -> int:  # fmt: skip
    """Measure whether an extended model still works.

    Answers three questions within --budget minutes. Do tables, weights and files match the record and the source? How much
    worse are short texts? Does the model work at its new context length? verify reads texts until the verdict is clear:

    \b
      keep    perplexity rises by at most 10 %
      works   by at most 50 %, and 10 % is still open or distant text is used less
      costs   by more than 10 % and at most 50 %
      broken  by more than 50 %, or tables, weights or files do not match

    If the time ends first, the output names the command and the minutes that are still necessary.

    --suite, --grade, --lengths, --measure and --segments select a whole suite, which can certify higher grades. The perplexity
    ratio to the baseline must be at most 1.03 for --grade publishable, 1.10 for usable and 1.5 for research.

    Exit code 3 for a broken model or a failed check, 1 for an open result.

    \b
    ropetool verify model-yarn-8x
    ropetool verify model-yarn-8x --resume --budget 30
    ropetool verify model-yarn-8x --baseline model --lengths 4096,8192,32768 --suite quick --grade research
    ropetool verify model.gguf --against model-yarn-8x
    ropetool verify model-yarn-8x --server http://localhost:8000
    ropetool verify model-yarn-8x --runner vllm --tensor-parallel-size 8
    """
    extra = click.get_current_context().args
    if extra:
        line = command("ropetool", "verify", target, "--baseline", extra[0])
        raise click.UsageError(f"Got unexpected extra argument {extra[0]!r}. To compare with it: {line}")
    from ropetool.cli.runs import lacks_logs, run_verify

    options, served = runner.options(arguments, terms, gate), runner.served()
    printing.check_report()
    if options.place is not None:
        from ropetool.checkpoint.certificate import check_file

        check_file(shared.origin_of(target), options.place)
    path = local_source(target)
    if lacks_logs(path, options):
        return 1
    return run_verify(path, options, served, printing).exit_code
