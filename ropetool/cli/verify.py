"""ropetool verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, in_colour, local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import (
    DEVICE,
    DTYPE,
    GRADE,
    NUMBER,
    TEXTS,
    WHOLE,
    Grouped,
    Lengths,
    Minutes,
    naming_a_smaller_run,
)
from ropetool.escaping import command

if TYPE_CHECKING:
    from ropetool.verification.results import VerifyResult
    from ropetool.verification.runners.vllm_engine import Engine
    from ropetool.verification.served import Served

OF_FILES = ("stated", "finetuned", "strict")  # options of readback


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
    return names


GROUPS = {
    "What to compare": ("baseline", "trained_length", "texts", "server"),
    "How much": ("budget", "resume", "suite", "grade"),
    "How to compute": ("device", "dtype"),
    "Output": ("certificate", "report", "explain", "as_json"),
}


@click.command("verify", cls=Grouped, groups=GROUPS, context_settings={"allow_extra_args": True})
@click.argument("target", type=click.Path())
@click.option(
    "--baseline", type=click.Path(), help="The model before the extension. Default: from the record of TARGET."
)
@click.option(
    "--against",
    type=click.Path(),
    help="A different file of the same model. Compares the logits of both files, token by token.",
)
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
@click.option(
    "--trained-length", type=WHOLE, metavar="N",
    help="The trained length in tokens, before any extension. Default: from the record, else from the baseline.",
)  # fmt: skip
@click.option(
    "--stated", type=(str, str), multiple=True, metavar="KEY VALUE",
    help="For a TARGET without a record: accept this key although the method gives a different value (repeatable). The VALUE "
    "as-is accepts any value.",
)  # fmt: skip
@click.option("--finetuned", is_flag=True, help="The weights are fine-tuned: report differences, but do not fail.")
@click.option(
    "--strict",
    is_flag=True,
    help="Also fail on differences that do not change the numbers: templates, names, generation config.",
)
@TEXTS
@click.option(
    "--lengths",
    type=Lengths(),
    metavar="N,N,...",
    help="The lengths to measure, in tokens: 4096,8192 or 4k,8k. Default: doubling up to the configured context length.",
)
@click.option(
    "--suite", metavar="quick|standard|full",
    help="Measure a whole suite with a fixed number of texts. Default: read texts until the verdict is clear or the budget ends.",
)  # fmt: skip
@click.option(
    "--measure", "measures", multiple=True, metavar="NAME", callback=print_measures, is_eager=True,
    help="Add this measure to --suite, or run only this one (repeatable): last-segment, far, retrieval and others. `--measure "
    "list` prints all.",
)  # fmt: skip
@GRADE
@click.option(
    "--max-ratio", "--max-tax", "--min-retrieval", "replaced", hidden=True, callback=say_grade, expose_value=False,
    help="Replaced by --grade.",
)  # fmt: skip
@click.option(
    "--max-kl", type=NUMBER,
    help="The limit of the mean KL divergence for --against, in nats per token. Default: from the types of both files.",
)  # fmt: skip
@click.option(
    "--require-useful", is_flag=True, help="Fail if the longer context is not significantly better than truncated text."
)
@click.option("--segments", type=WHOLE, help="Number of passages per length, 8 or more. Default: from the suite.")
@click.option(
    "--budget", type=Minutes(), metavar="MINUTES|none",
    help="The time limit of the command in minutes. Default: 10, or 60 for a whole suite.",
)  # fmt: skip
@click.option("--trials", type=WHOLE, help="Number of retrieval trials per depth. Default: from the suite.")
@click.option("--seed", type=WHOLE, default=0, show_default=True, help="Random seed for the choice of passages.")
@DEVICE
@DTYPE
@click.option(
    "--exact-numbers", is_flag=True,
    help="Let llama.cpp compute in float32 without flash attention. A whole suite always does this.",
)  # fmt: skip
@click.option(
    "--cache-type", metavar="f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl",
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
    "--tensor-parallel-size",
    type=WHOLE,
    metavar="N",
    help="With --runner vllm: the number of devices that share each layer. Default: 1.",
)
@click.option(
    "--pipeline-parallel-size",
    type=WHOLE,
    metavar="N",
    help="With --runner vllm: the number of pipeline stages. Default: 1.",
)
@click.option(
    "--score-prompts", is_flag=True,
    help="With --server (vLLM, SGLang) or --runner vllm: score whole prompts. This needs GB of memory, so do not use it on a "
    "shared server.",
)  # fmt: skip
@click.option("--report", type=click.Path(), help="Write an HTML report with plots into this new folder.")
@click.option("--resume", is_flag=True, help="Continue an undecided or interrupted run.")
@click.option(
    "--certificate",
    type=click.Path(),
    help="The file for the certificate, if ropetool did not write the checkpoint. Default: the record of TARGET.",
)
@click.option(
    "--full-hash",
    is_flag=True,
    help="Bind the certificate to every byte of the weights. Default: only to samples if the weights have 2 GB or more.",
)
@click.option("--force", is_flag=True, help="Replace the folder of an earlier report.")
@click.option("--explain", is_flag=True, help="Also print the single texts and all checks, and describe the columns.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify_command(target: str, as_json: bool, explain: bool, **options: Any) -> int:
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
    if options.pop("exact_numbers") and options["dtype"] == "auto":
        options["dtype"] = "float32"
    path = local_source(target)
    served = _served(options)
    if served is not None:
        options["served"] = served
    engine = _engine(options)
    if engine is not None:
        options["engine"] = engine
    if options["lm_eval"] is not None and not _told_commands(path, options):
        return 1
    return run_verify(path, as_json=as_json, explain=explain, **options).exit_code


def _served(options: dict[str, Any]) -> Served | None:
    """Take the options of a server out of the others; return what they say, None where no server is named.

    Raises: click.UsageError for options that say nothing together.
    """
    named = {name: options.pop(name) for name in ("server", "model", "tokenizer")}
    url = named.pop("server")
    if url is None:
        given = next((name for name, value in named.items() if value), None)
        if given is not None:
            raise click.UsageError(f"--{given.replace('_', '-')} requires --server URL")
        return None
    from ropetool.verification.options import UNSERVED
    from ropetool.verification.served import Served

    reasons = {
        **UNSERVED,
        "certificate": UNSERVED["certificate_file"],
        "max_kl": UNSERVED["against"],
        **dict.fromkeys(OF_FILES, "it applies only to files"),
    }
    for name, reason in reasons.items():
        if options.get(name) not in (None, False, ()):
            raise click.UsageError(f"--{name.replace('_', '-')} does not apply to a served model: {reason}")
    return Served(url, score_prompts=options.pop("score_prompts"), **named)


def _engine(options: dict[str, Any]) -> Engine | None:
    """Take the options of vLLM in process out of the others; return what they say, None where it is not asked for.

    Raises: click.UsageError for options that say nothing together.
    """
    sizes = {name: options.pop(name) for name in ("tensor_parallel_size", "pipeline_parallel_size")}
    runner, score_prompts = options.pop("runner"), options.pop("score_prompts", False)
    if runner is None:
        given = next((name for name, value in {**sizes, "score_prompts": score_prompts}.items() if value), None)
        if given is not None:
            needs = "--server URL or --runner vllm" if given == "score_prompts" else "--runner vllm"
            raise click.UsageError(f"--{given.replace('_', '-')} requires {needs}")
        return None
    if "served" in options:
        raise click.UsageError("--runner does not apply to a served model: the server runs it")
    usual = {"against": None, "judge": None, "compare_with": None, "device": "auto"}
    for name, value in usual.items():
        if options[name] != value:
            raise click.UsageError(f"--runner vllm does not accept --{name.replace('_', '-')}")
    from ropetool.verification.runners.vllm_engine import Engine

    return Engine(score_prompts=score_prompts, **{name: size for name, size in sizes.items() if size is not None})


def _told_commands(target: Path, options: Mapping[str, Any]) -> bool:
    """Return whether there are logs of lm-evaluation-harness; if not, print the commands that make them."""
    from ropetool.registry import addition

    named = {name: options[name] for name in ("baseline", "trained_length")}
    lines = addition("lm_eval_lines")(target, Path(options["lm_eval"]), **named)
    if lines:
        show("".join(f"{line}\n" for line in lines))
        notes([f"{options['lm_eval']} does not contain logs yet: run these commands, then verify again"])
    return not lines


def run_verify(target: Path, *, as_json: bool = False, explain: bool = False, **options: Any) -> VerifyResult:
    """Verify, print the result and its notes, write the report asked for, and return the result."""
    result = measured(target, quiet=as_json, **options)
    if as_json:
        from ropetool.report.verdict import verify_json

        print_json(verify_json(result))
    else:
        from ropetool.report.verified import verify_text

        colour = in_colour()
        show(verify_text(result, width=terminal_width(), colour=colour, explained=explain), colour=colour)
    notes(list(result.notes))
    return result


def measured(
    target: Path, *, quiet: bool = False, again: str = "the same command with --resume",
    words: Sequence[str] | None = None, **options: Any,
) -> VerifyResult:  # fmt: skip
    """Run a verification with these options of the command; show the progress and the estimated duration.

    again: the next step after an interruption; empty for none.
    words: the command line of this verification; None for the running command.
    """
    from ropetool.cli.progress import bar, unfinished
    from ropetool.verification.checkpoints import verify_target
    from ropetool.verification.gate import Limits
    from ropetool.verification.options import VerifyOptions
    from ropetool.verification.readback.terms import Terms

    served = options.pop("served", None)
    report, force = options.pop("report", None), options.pop("force", False)
    if report is not None:
        from ropetool.report.page import check_folder

        check_folder(Path(report), force=force)
    asked = {name: options.pop(name, None) for name in ("grade", "max_kl", "require_useful")}
    limits = {name: value for name, value in asked.items() if value is not None and value is not False}
    grade = Limits(**limits) if limits else None
    terms = Terms(
        stated=dict(options.pop("stated", ())),
        **{name: options.pop(name) for name in ("trained_length", "finetuned", "strict") if name in options},
    )
    chosen = VerifyOptions(
        limits=grade, terms=terms, certificate_file=options.pop("certificate", None), command=command_line(), **options
    )
    say = None if quiet else lambda line: notes([line])
    try:
        line = words if words is not None else click.get_current_context().find_root().obj
        with bar() as progress, naming_a_smaller_run(line):
            if served is not None:
                from ropetool.verification.served import verify_served

                result = verify_served(target, served, chosen, progress=progress, say=say)
            else:
                result = verify_target(target, chosen, progress=progress, say=say)
    except KeyboardInterrupt as error:
        if again or getattr(error, "unkept", ""):
            notes([unfinished(error, again)])
        raise
    if report is not None:
        from ropetool.plans.serving import serving_lines
        from ropetool.report.html import write_report
        from ropetool.runtimes.inspection import inspect

        found = inspect(target)
        write_report(
            result, Path(report), force=force, command=command_line(), target=found,
            serving=serving_lines(found, str(target)),
        )  # fmt: skip
    return result
