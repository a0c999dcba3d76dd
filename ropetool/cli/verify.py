"""ropetool verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, in_colour, local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import (
    DEVICE,
    DTYPE,
    GRADE,
    JSON,
    NUMBER,
    REPORT,
    TEXTS,
    WHOLE,
    Grouped,
    LengthList,
    Minutes,
    ResultOptions,
    gathered,
    naming_a_smaller_run,
)
from ropetool.escaping import command

if TYPE_CHECKING:
    from ropetool.verification.gate import Limits
    from ropetool.verification.options import VerifyOptions
    from ropetool.verification.readback.terms import Terms
    from ropetool.verification.results import VerifyResult
    from ropetool.verification.runners.vllm_engine import Engine
    from ropetool.verification.served import Served

OPTIONS = "ropetool.verification.options.VerifyOptions"
OF_FILES = ("stated", "finetuned", "strict")  # options of readback
AGAIN = "the same command with --resume"


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


def by_key(context: click.Context, parameter: click.Parameter, value: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a dictionary."""
    return dict(value)


@dataclass(frozen=True)
class GateOptions:
    """The limits of a verification: `Limits` explains the fields."""

    grade: str | None
    max_kl: float | None
    require_useful: bool

    def limits(self) -> Limits | None:
        """Return the limits, or None if no option sets one. Raises: ConfigError."""
        from ropetool.verification.gate import Limits

        values = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        return Limits(**values) if values else None


@dataclass(frozen=True)
class RunnerOptions:
    """What runs the model.

    server: the URL of a server.
    model, tokenizer: the model on the server, and a directory with its tokenizer; None for the defaults.
    runner: `vllm` for vLLM in this process; None for transformers or llama.cpp.
    tensor_parallel_size, pipeline_parallel_size: numbers of devices and stages for vLLM.
    score_prompts: a server or vLLM scores whole prompts.
    exact_numbers: llama.cpp computes in float32.
    """

    server: str | None
    model: str | None
    tokenizer: str | None
    runner: str | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    score_prompts: bool
    exact_numbers: bool

    def served(self, others: Mapping[str, Any]) -> Served | None:
        """Return the server, or None without --server.

        others: the other options by name.
        Raises: click.UsageError for an option that does not apply to a server, or that requires one.
        """
        if self.server is None:
            for option, value in {"--model": self.model, "--tokenizer": self.tokenizer}.items():
                if value:
                    raise click.UsageError(f"{option} requires --server URL")
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
            if others.get(name) not in (None, False, (), {}):
                raise click.UsageError(f"--{name.replace('_', '-')} does not apply to a served model: {reason}")
        return Served(self.server, self.model, self.tokenizer, self.score_prompts)

    def engine(self, options: VerifyOptions) -> Engine | None:
        """Return the engine of vLLM, or None without --runner vllm.

        Raises: click.UsageError for an option that does not apply to vLLM, or that requires it.
        """
        sizes = {
            "tensor_parallel_size": self.tensor_parallel_size,
            "pipeline_parallel_size": self.pipeline_parallel_size,
        }
        score_prompts = self.score_prompts and self.server is None  # else it is an option of the server
        if self.runner is None:
            for name, value in {**sizes, "score_prompts": score_prompts}.items():
                if value:
                    needs = "--server URL or --runner vllm" if name == "score_prompts" else "--runner vllm"
                    raise click.UsageError(f"--{name.replace('_', '-')} requires {needs}")
            return None
        if self.server is not None:
            raise click.UsageError("--runner does not apply to a served model: the server runs it")
        defaults = {"against": None, "judge": None, "compare_with": None, "device": "auto"}
        for name, default in defaults.items():
            if getattr(options, name) != default:
                raise click.UsageError(f"--runner vllm does not accept --{name.replace('_', '-')}")
        from ropetool.verification.runners.vllm_engine import Engine

        return Engine(score_prompts=score_prompts, **{name: size for name, size in sizes.items() if size is not None})


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
    "--stated", type=(str, str), multiple=True, metavar="KEY VALUE", callback=by_key,
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
    type=LengthList(),
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
@REPORT
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
@JSON
@gathered(
    options=OPTIONS,
    terms="ropetool.verification.readback.terms.Terms",
    gate=GateOptions,
    runner=RunnerOptions,
    printing=ResultOptions,
)
def verify_command(
    target: str,
    options: VerifyOptions,
    terms: Terms,
    gate: GateOptions,
    runner: RunnerOptions,
    printing: ResultOptions,
    certificate: str | None,
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
    printing.check_report()
    path = local_source(target)
    served = runner.served({**vars(options), **vars(terms), **vars(gate), "certificate": certificate})
    options = replace(options, engine=runner.engine(options), terms=terms, certificate_file=certificate)
    if runner.exact_numbers and options.dtype == "auto":
        options = replace(options, dtype="float32")
    if options.lm_eval is not None and _lacks_logs(path, options.lm_eval, options.baseline, terms.trained_length):
        return 1
    options = replace(options, limits=gate.limits())
    return run_verify(path, options, served, printing).exit_code


def _lacks_logs(target: Path, folder: str | Path, baseline: str | Path | None, trained_length: int | None) -> bool:
    """Return whether there are no logs of lm-evaluation-harness. Then print the commands that make them."""
    from ropetool.registry import addition

    lines = addition("lm_eval_lines")(target, Path(folder), baseline=baseline, trained_length=trained_length)
    if lines:
        show("".join(f"{line}\n" for line in lines))
        notes([f"{folder} does not contain logs yet: run these commands, then verify again"])
    return bool(lines)


def run_verify(
    target: Path, options: VerifyOptions, served: Served | None = None, printing: ResultOptions | None = None,
    *, again: str = AGAIN, words: Sequence[str] | None = None,
) -> VerifyResult:  # fmt: skip
    """Verify, print the result and its notes, write the requested report, and return the result.

    again, words: as for `measured`.
    """
    printing = printing or ResultOptions()
    result = measured(target, options, served, printing, again=again, words=words)
    if printing.as_json:
        from ropetool.report.verdict import verify_json

        print_json(verify_json(result))
    else:
        from ropetool.report.verified import verify_text

        colour = in_colour()
        text = verify_text(result, width=terminal_width(), colour=colour, explained=printing.explain)
        show(text, colour=colour)
    notes(list(result.notes))
    return result


def measured(
    target: Path, options: VerifyOptions, served: Served | None, printing: ResultOptions,
    *, again: str = AGAIN, words: Sequence[str] | None = None,
) -> VerifyResult:  # fmt: skip
    """Run a verification; show the progress and the estimated duration, and write the requested report.

    served: the server of the model, None for files.
    again: the next step after an interruption; empty for none.
    words: the command line of this verification; None for the running command.
    """
    from ropetool.cli.progress import bar, unfinished
    from ropetool.verification.checkpoints import verify_target

    options = replace(options, command=command_line())
    say = None if printing.as_json else lambda line: notes([line])
    line = words if words is not None else click.get_current_context().find_root().obj
    try:
        with bar() as progress, naming_a_smaller_run(line):
            if served is not None:
                from ropetool.verification.served import verify_served

                result = verify_served(target, served, options, progress=progress, say=say)
            else:
                result = verify_target(target, options, progress=progress, say=say)
    except KeyboardInterrupt as error:
        if again or getattr(error, "unkept", ""):
            notes([unfinished(error, again)])
        raise
    if printing.report is not None:
        _write_report(result, target, Path(printing.report), force=printing.force)
    return result


def _write_report(result: VerifyResult, target: Path, folder: Path, *, force: bool) -> None:
    from ropetool.plans.serving import serving_lines
    from ropetool.report.page import write_page
    from ropetool.report.verified import verify_page
    from ropetool.runtimes.inspection import inspect

    inspection = inspect(target)
    page = verify_page(result, command_line(), serving_lines(inspection, str(target)), inspection)
    write_page(page, folder, force=force)
