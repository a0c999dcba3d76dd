"""ropetool verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, in_colour, local_source, notes, print_json, show, terminal_width
from ropetool.cli.options import GRADE, NUMBER, WHOLE, Grouped, Lengths, Minutes, naming_a_smaller_run
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
            "--max-ratio, --max-tax and --min-retrieval are gone: --grade publishable, usable or research states the limit "
            "for every length, 1.03, 1.10 or 1.5 times the baseline's perplexity and 0.05, 0.10 or 0.20 of the answers lost; "
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
@click.option("--baseline", type=click.Path(), help="What to compare with. Default: the unchanged source of TARGET.")
@click.option("--against", type=click.Path(), help="Another file of the same model: compare logits, token by token.")
@click.option(
    "--judge", type=click.Path(),
    help="A model with the same tokenizer that reads the whole context: it chooses the key tokens.",
)  # fmt: skip
@click.option(
    "--compare-with", metavar="NAME,...",
    help="Also run these attention variants, which a file cannot contain, on the baseline: rerope, leaky-rerope, self-extend, "
    "sliding-window, lambda, dynamic-ntk, dynamic-yarn. Parameters: rerope(512).",
)  # fmt: skip
@click.option(
    "--lm-eval", type=click.Path(), metavar="DIR",
    help="Gate what lm-evaluation-harness logged of both models in DIR; without logs there, print the commands that make them.",
)  # fmt: skip
@click.option(
    "--trained-length", type=WHOLE, metavar="N",
    help="What the model was trained on before any extension. Default: as the record or the baseline says.",
)  # fmt: skip
@click.option(
    "--stated", type=(str, str), multiple=True, metavar="KEY VALUE",
    help="A key of a TARGET without a record that is meant as it is, though the method would give another; as-is for any "
    "value. Repeat for several.",
)  # fmt: skip
@click.option("--finetuned", is_flag=True, help="Its weights were trained: tell how they differ, and do not judge it.")
@click.option(
    "--strict", is_flag=True, help="Fail for what changes no number too: templates, names, generation config."
)
@click.option(
    "--text", "texts", type=click.Path(), multiple=True,
    help="A document, a folder of them, or a .jsonl file; repeat for several. Default: texts of the package.",
)  # fmt: skip
@click.option(
    "--lengths",
    type=Lengths(),
    metavar="N,N,...",
    help="As 4096,8192 or 4k,8k. Default: doubling up to the context stated.",
)
@click.option(
    "--suite", metavar="quick|standard|full",
    help="Measure a whole suite, however many texts it takes. Default: as many texts as decide, or as the budget allows.",
)  # fmt: skip
@click.option(
    "--measure", "measures", multiple=True, metavar="NAME", callback=print_measures, is_eager=True,
    help="Measure this too, or only this without --suite: last-segment, far, retrieval and others; `--measure list` prints all. "
    "Repeat for several.",
)  # fmt: skip
@GRADE
@click.option(
    "--max-ratio", "--max-tax", "--min-retrieval", "replaced", hidden=True, callback=say_grade, expose_value=False,
    help="Gone; --grade.",
)  # fmt: skip
@click.option(
    "--max-kl", type=NUMBER,
    help="Nats a token allowed with --against. Default: 1e-4, or by the unextended pair for quantised files.",
)  # fmt: skip
@click.option("--require-useful", is_flag=True, help="Fail where the longer context does not beat truncation.")
@click.option("--segments", type=WHOLE, help="Number of passages per length, 8 or more. Default: from the suite.")
@click.option(
    "--budget", type=Minutes(), metavar="MINUTES|none",
    help="How long the command may take. Default: 10; 60 for a whole suite.",
)  # fmt: skip
@click.option("--trials", type=WHOLE, help="Number of retrieval trials per depth. Default: from the suite.")
@click.option("--seed", type=WHOLE, default=0, show_default=True, help="Which passages.")
@click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|mps|map",
    help="Where to compute; map spreads the layers over all devices.",
)  # fmt: skip
@click.option("--dtype", default="auto", show_default=True, metavar="auto|float32|bfloat16|float16|float64")
@click.option(
    "--exact-numbers", is_flag=True,
    help="Have llama.cpp compute in float32, without flash attention. A whole suite always does.",
)  # fmt: skip
@click.option(
    "--cache-type", metavar="f32|f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0|iq4_nl",
    help="The type of keys and values where llama.cpp runs TARGET, a GGUF file; the baseline's is that of --dtype.",
)  # fmt: skip
@click.option(
    "--server", metavar="URL",
    help="Judge what this server computes: vLLM, SGLang, llama-server, Ollama or OpenAI's interface. TARGET gives tokenizer and "
    "record. A key is taken from ROPETOOL_API_KEY.",
)  # fmt: skip
@click.option("--model", metavar="NAME", help="With --server: which of its models. Default: the only one.")
@click.option(
    "--tokenizer", type=click.Path(), metavar="DIR", help="With --server: whose tokenizer. Default: TARGET's."
)
@click.option(
    "--runner", type=click.Choice(["vllm"]),
    help="Have vLLM run TARGET and baseline in this process, asked for single tokens; it has to be in this Python. Default: "
    "transformers, and llama.cpp for GGUF files.",
)  # fmt: skip
@click.option(
    "--tensor-parallel-size", type=WHOLE, metavar="N", help="With --runner vllm: over how many devices a layer goes."
)
@click.option(
    "--pipeline-parallel-size", type=WHOLE, metavar="N", help="With --runner vllm: into how many stages layers go."
)
@click.option(
    "--score-prompts", is_flag=True,
    help="With --server (vLLM, SGLang) or --runner vllm: take scores of whole prompts. Takes gigabytes there: not on a server that "
    "others use.",
)  # fmt: skip
@click.option("--report", type=click.Path(), help="Write an HTML report with plots into this new folder.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run.")
@click.option("--certificate", type=click.Path(), help="Where to certify a checkpoint that ropetool did not write.")
@click.option(
    "--full-hash",
    is_flag=True,
    help="Bind the certificate to all bytes of weights of 2 GB and more too, not to samples.",
)
@click.option("--force", is_flag=True, help="Replace the folder of an earlier report.")
@click.option("--explain", is_flag=True, help="Say below each table what its columns mean.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify_command(target: str, as_json: bool, explain: bool, **options: Any) -> int:
    """Measure what a longer context does, and judge it.

    Three questions are answered within --budget minutes. Is the file what it says? What do short texts pay? Does it work
    at its new length? Text after text is read until the answer is sure: keep (at most 10 % more perplexity), works (at
    most 50 %), costs (between the two) or broken. Where the time ends first, you are told what more time would decide.

    --suite, --grade, --lengths, --measure and --segments ask for a whole suite, and for a certificate of a higher grade.
    Its perplexity must be at most 1.03 times the baseline's for --grade publishable, 1.10 for usable, 1.5 for research.

    Exit code 3 for a broken model or a failed check, 1 if the question stays open.

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
            raise click.UsageError(f"--{given.replace('_', '-')} needs --server URL")
        return None
    from ropetool.verification.options import UNSERVED
    from ropetool.verification.served import Served

    reasons = {
        **UNSERVED,
        "certificate": UNSERVED["certificate_file"],
        "max_kl": UNSERVED["against"],
        **dict.fromkeys(OF_FILES, "it is about the model's files, and the served model is judged"),
    }
    for name, reason in reasons.items():
        if options.get(name) not in (None, False, ()):
            raise click.UsageError(f"--{name.replace('_', '-')} is not for a server's model: {reason}")
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
            raise click.UsageError(f"--{given.replace('_', '-')} needs {needs}")
        return None
    if "served" in options:
        raise click.UsageError("--runner is not for a server's model: the server runs it")
    usual = {"against": None, "judge": None, "compare_with": None, "device": "auto"}
    for name, value in usual.items():
        if options[name] != value:
            raise click.UsageError(f"--{name.replace('_', '-')} is not for --runner vllm")
    from ropetool.verification.runners.vllm_engine import Engine

    return Engine(score_prompts=score_prompts, **{name: size for name, size in sizes.items() if size is not None})


def _told_commands(target: Path, options: Mapping[str, Any]) -> bool:
    """Return whether there are logs of lm-evaluation-harness; if not, print the commands that make them."""
    from ropetool.registry import addition

    named = {name: options[name] for name in ("baseline", "trained_length")}
    lines = addition("lm_eval_lines")(target, Path(options["lm_eval"]), **named)
    if lines:
        show("".join(f"{line}\n" for line in lines))
        notes([f"there are no logs in {options['lm_eval']}, so nothing is verified; these commands make them"])
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
    from ropetool.cli.progress import bar
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
        unkept, rows = getattr(error, "unkept", ""), getattr(error, "rows", 0)
        if unkept:
            notes([f"what was measured is not kept: {unkept}"])
        elif again and rows:
            notes([f"{rows} rows are kept; {again} goes on"])
        elif again:
            notes(["nothing was measured that could be kept"])
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
