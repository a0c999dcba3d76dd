"""Options of several commands: their types, their help, and the objects that commands get.

A shell completes names of methods and runtimes. Completion does not import their modules, because numpy would delay
each key.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from click.types import FloatParamType, IntParamType

from ropetool.errors import InvalidRope
from ropetool.escaping import read_length, read_number, read_whole

ALL = "--help-all"
ALL_SHOWN = "ropetool.help_all"  # key in the context's meta: the help shows every option
LONGEST = 2**31  # tokens; equals rope.tables.MAX_LENGTH, whose import would load numpy
_PACKAGE = Path(__file__).parents[1]
T = TypeVar("T")
if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # no generic class before click 8.4


class _WithAliases(click.Option):
    """An option whose help and errors show only its first name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"'{self.opts[0]}'"


def target_length(help: str, **more: Any) -> Callable[..., Any]:
    """Return --target-length. It also has the names that other programs give to the context length."""
    names = ("--target-length", "--context", "--ctx", "--length")
    return click.option(*names, "target_length", cls=_WithAliases, type=Length(), help=help, **more)


class _InAscii(_Type):
    """A number in ASCII digits. int and float also accept 1_024 and the digits of any script."""

    read: Callable[[str], float]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        try:
            return self.read(value) if isinstance(value, str) else super().convert(value, param, ctx)
        except ValueError:
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)


class Whole(_InAscii, IntParamType):
    """A whole number, as 1024."""

    read = staticmethod(read_whole)


class WholeRange(click.IntRange):
    """A whole number in ASCII digits, within a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        return super().convert(WHOLE.convert(value, param, ctx), param, ctx)


class Number(_InAscii, FloatParamType):
    """A number, as 4, 0.5 or 1e6."""

    read = staticmethod(read_number)


WHOLE, NUMBER = Whole(), Number()


class Length(_Type):
    """A length in tokens. With a `lowest` of None, the library checks its range."""

    name = "length"

    def __init__(self, lowest: int | None = 1) -> None:
        self.lowest = lowest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of tokens."""
        try:
            length = read_length(value)
        except InvalidRope as error:
            self.fail(error.message, param, ctx)
        if self.lowest is not None and not self.lowest <= length <= LONGEST:
            self.fail(f"{value} is not in the range {self.lowest} to {LONGEST} tokens", param, ctx)
        return length


class LengthList(_Type):
    """Lengths in tokens, between commas."""

    name = "lengths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Return the numbers of tokens."""
        try:
            return value if isinstance(value, list) else [read_length(part) for part in value.split(",")]
        except InvalidRope:
            self.fail(f"{value!r} is not a list of lengths; write 256,512,1024 or 4k,8k,16k", param, ctx)


class Minutes(_Type):
    """The time limit of a run in minutes, or `none`."""

    name = "minutes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; infinity for `none`."""
        try:
            return math.inf if value == "none" else read_number(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of minutes, or none", param, ctx)


class Factor(_Type):
    """A factor: 4 or 4x."""

    name = "factor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            return read_number(value.strip(" ").lower().removesuffix("x")) if isinstance(value, str) else float(value)
        except ValueError:
            self.fail(f"{value!r} is not a factor; write 4 or 4x", param, ctx)


class Name(_Type):
    """A name that the library checks and a shell completes."""

    name = "text"

    def __init__(self, known: Callable[[], list[str]]) -> None:
        self.known = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the known names with this beginning."""
        return [CompletionItem(name) for name in self.known() if name.startswith(incomplete)]


def stated_names(folder: str) -> list[str]:
    """Return the value of NAME in each module of a folder of the package, as discovery does."""
    texts = (path.read_text(encoding="utf-8") for path in (_PACKAGE / folder).rglob("*.py"))
    return sorted(name for text in texts for name in re.findall(r'^NAME = "(.+)"$', text, re.MULTILINE))


METHOD = Name(lambda: stated_names("rope/methods"))
RUNTIME = Name(lambda: stated_names("runtimes"))


def known_families() -> list[str]:
    from ropetool import families

    return families.names()


FAMILY = Name(known_families)


def known_spaces() -> list[str]:
    from ropetool.registry import addition

    return list(addition("SPACES"))


SPACE = Name(known_spaces)


def is_typed(name: str, context: click.Context) -> bool:
    """Return whether a parameter is on the command line. name: of the parameter."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def checked(check: str, parameter: str = "") -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that passes the value of an option to a function of the library, which raises for a wrong value.

    click calls it in the order in which the user typed the options, and before the command opens a file.

    check: the dotted name of the function or class. It is imported only if the user typed the option.
    parameter: the name of its parameter; empty for the first one.
    """

    def callback(context: click.Context, option: click.Parameter, value: Any) -> Any:
        if is_typed(option.name or "", context) and not context.resilient_parsing:
            for each in value if option.multiple else [value]:
                imported(check)(**{parameter: each}) if parameter else imported(check)(each)
        return value

    return callback


SOURCE = click.argument("source", type=click.Path())
DEVICE = click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|mps|map",
    help="The device. map spreads the layers over all devices.",
)  # fmt: skip
DTYPE = click.option("--dtype", default="auto", show_default=True, metavar="auto|float32|bfloat16|float16|float64")
TEXTS = click.option(
    "--text", "texts", type=click.Path(), multiple=True,
    help="A document, a folder of documents, or a .jsonl file (repeatable). Default: the bundled texts.",
)  # fmt: skip
SEGMENTS = click.option(
    "--segments", type=WHOLE, callback=checked("ropetool.verification.preparing.check_segments"),
    help="Number of passages per length, 8 or more. Default: from the suite.",
)  # fmt: skip
TRIALS = click.option(
    "--trials", type=WHOLE, callback=checked("ropetool.verification.preparing.check_trials"),
    help="Number of retrieval trials per depth. Default: from the suite.",
)  # fmt: skip


def seed(choice: str) -> Callable[..., Any]:
    """Return --seed of a choice, such as `passages`."""
    return click.option(
        "--seed", type=WHOLE, default=0, show_default=True, help=f"Random seed for the choice of {choice}."
    )


SEED = seed("passages")
READING = click.option(
    "--from", "reading", type=click.Choice(["original", "current"]),
    help="For a source that is already scaled: replace its scaling (original), or build on its current table and context "
    "length (current).",
)  # fmt: skip
ORIGINAL_LENGTH = click.option(
    "--original-length", type=Length(None), callback=checked("ropetool.plans.basis.check_original_length"),
    help="The context length before any scaling, in tokens. Overrides the file.",
)  # fmt: skip
BASELINE = click.option(
    "--baseline", type=click.Path(), help="The model before the extension. Default: from the record of TARGET."
)
TRAINED_LENGTH = click.option(
    "--trained-length", type=Length(None), metavar="LENGTH",
    callback=checked("ropetool.verification.readback.terms.Terms", "trained_length"),
    help="The trained length in tokens, before any extension. Default: from the record, else from the baseline.",
)  # fmt: skip
GRADE = click.option(
    "--grade", metavar="publishable|usable|research", callback=checked("ropetool.verification.gate.Limits"),
    help="The allowed rise of perplexity at every length: 3 % (publishable), 10 % (usable) or 50 % (research). Default in a suite: "
    "usable.",
)  # fmt: skip
AS = click.option(
    "--as", "as_type", type=FAMILY, metavar="MODEL_TYPE",
    help="Read a model_type of remote code as this built-in model_type. The output gets this type.",
)  # fmt: skip
NO_SIDECARS = click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Do not change the model card. For a GGUF file, do not write a card or a Modelfile.",
)  # fmt: skip
DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the plan with every value. Do not write the output.")


def plan_out(help: str) -> Callable[..., Any]:
    """Return --plan-out with this help."""
    return click.option("--plan-out", type=click.Path(), help=help)


PLAN_OUT = plan_out("Also write the plan to this file, for `ropetool apply`.")
COPY = click.option("--copy", is_flag=True, help="Copy the weight files instead of linking them.")
FORCE = click.option("--force", is_flag=True, help="Replace an earlier output of ropetool.")
RESUME = click.option("--resume", is_flag=True, help="Continue an interrupted run.")


def report(content: str) -> Callable[..., Any]:
    """Return --report with this content of the page, such as `an HTML report`."""
    return click.option("--report", type=click.Path(), help=f"Write {content} into this new folder.")


REPORT = report("an HTML report with plots")
FORCE_REPORT = click.option("--force", is_flag=True, help="Replace the folder of an earlier report.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def output(help: str, **more: Any) -> Callable[..., Any]:
    """Return --output with this help."""
    return click.option("--output", "-o", type=click.Path(), help=help, **more)


def explain(**more: Any) -> Callable[..., Any]:
    """Return --explain of a plan."""
    return click.option(
        "--explain", is_flag=True,
        help="Print the reason for each way of writing the table that was refused, not only for the first one.",
        **more,
    )  # fmt: skip


def for_runtimes(help: str) -> Callable[..., Any]:
    """Return --for with this help."""
    return click.option(
        "--for", "for_runtimes", type=RUNTIME, multiple=True, metavar="RUNTIME", help=help,
        callback=checked("ropetool.runtimes.all_of"),
    )  # fmt: skip


_IN_PLACE = click.option(
    "--in-place", is_flag=True, help="For GGUF: edit the keys and vectors of the file itself, without a copy."
)
_COPY_IF_NEEDED = click.option(
    "--copy-if-needed", is_flag=True, help="With --in-place: rewrite the whole file if the edit does not fit."
)


def in_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --in-place and --copy-if-needed."""
    return _IN_PLACE(_COPY_IF_NEEDED(command))


def refuse(messages: Mapping[str, str]) -> None:
    """Raise click.UsageError for the first option in the order of the help that has a message and was passed.

    Works only in a click command: it reads the options of the current context.

    messages: the message by the name of the parameter, with {} for the option. An option that was passed with its
      default value is not refused.
    """
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        if name in messages and is_typed(name, context) and context.params[name] != option.get_default(context):
            shown = next((each for each in option.opts if each.startswith("--")), option.opts[0])
            raise click.UsageError(messages[name].format(shown))


def check_in_place(*others: str) -> None:
    """Raise click.UsageError for options that exclude each other.

    Works only in a click command with the options of `in_place`: it reads the current context.

    others: the names of parameters for a separate output.
    """
    values = click.get_current_context().params
    if not values["in_place"]:
        refuse({"copy_if_needed": "{} requires --in-place"})
        return
    refuse(dict.fromkeys(others, "--in-place edits the source itself and does not accept {}"))


def check_output_path(
    output: str | None, source: str, *, force: bool = False, directory: bool | None = None, several: bool = False
) -> None:
    """Refuse an output that cannot be written, before the source is downloaded or read. An output of None passes.

    source: as the user wrote it.
    force: replace an earlier output of ropetool.
    directory: whether the output is a directory; None if it has the format of the source.
    several: the output is several files with other names, so the path itself may exist.
    Raises: OutputError.
    """
    if output is None:
        return
    from ropetool.checkpoint.listings import check_unused
    from ropetool.files.output import check_place

    origin = origin_of(source)
    if directory is None:
        directory, several = _format_of(source)
        if directory is None:  # a folder of models, or no model at all
            check_place(Path(output), Path(os.devnull))
            return
    if several:
        check_place(Path(output), origin)
    else:
        check_unused(Path(output), origin, force=force, directory=directory)


def origin_of(source: str) -> Path:
    """Return the path of a source that an output must not touch. A model on the hub has none before its download."""
    from ropetool.files.hub import hub_id

    return Path(os.devnull if hub_id(source) is not None else source)


def _format_of(source: str) -> tuple[bool | None, bool]:
    """Return whether a model is a directory (None: the path is not a model), and whether it has several GGUF files."""
    from ropetool.files.hub import hub_id
    from ropetool.files.shard_names import model_name
    from ropetool.names import CONFIG_JSON

    path, model_id = Path(source), hub_id(source)
    file = path.name if model_id is None else model_id.file
    split = model_name(Path(file)) != file.removesuffix(".gguf")
    if model_id is not None:
        return not file, split
    directory = (path / CONFIG_JSON).is_file()
    return directory if directory or path.is_file() else None, split and not directory


# --- options as objects


def gathered(**groups: type[Any] | str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Pass parameters to a command as objects, one for each argument that is named here.

    groups: the dataclass or TypedDict of each argument. For a class of another module, its dotted name, because
      `--help` imports only this module.

    An object has the parameters with the names of its fields. A parameter can be in several objects. The command gets
    parameters that are in no object under their own names.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @wraps(command)
        def call(**values: Any) -> T:
            classes = {argument: imported(group) for argument, group in groups.items()}
            objects = {argument: instance(group, values) for argument, group in classes.items()}
            taken = {name for group in classes.values() for name in _field_names(group)}
            rest = {name: value for name, value in values.items() if name not in taken}
            return command(**objects, **rest)

        return call

    return decorate


def instance(group: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Return the object of a dataclass or TypedDict with the values that have the names of its fields."""
    return group(**{name: values[name] for name in _field_names(group) if name in values})


def _field_names(group: Any) -> Collection[str]:
    names: frozenset[str] | None = getattr(group, "__optional_keys__", None)  # of a TypedDict
    return [field.name for field in fields(group)] if names is None else names


def imported(name: Any) -> Any:
    """Return the object that a dotted name refers to. Any other value is returned unchanged."""
    if not isinstance(name, str):
        return name
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


# --- help of commands with many options


class Grouped(click.Command):
    """A command whose help shows some options in groups.

    groups: names of parameters by the title of their group.
    """

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.groups = groups

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `-p NAME=VALUE` like `-p NAME VALUE`."""
        parts = []
        for before, each in zip(["", *args], args, strict=False):
            parts += each.split("=", 1) if before == "-p" else [each]
        return super().parse_args(ctx, parts)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters with --help-all before --help."""
        *params, last = super().get_params(ctx)
        shown = click.Option(
            [ALL], is_flag=True, is_eager=True, expose_value=False, callback=show_all, help="Show all options and exit."
        )
        return [*params, shown, last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups, then all other options, or their number."""
        *params, show_rest, show_help = self.get_params(ctx)
        records = {param.name: param.get_help_record(ctx) for param in params}
        about_help = [record for param in (show_rest, show_help) if (record := param.get_help_record(ctx))]
        grouped = {name for names in self.groups.values() for name in names}
        rest = [record for name, record in records.items() if record and name not in grouped]
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([record for name in names if (record := records[name])])
        if ctx.meta.get(ALL_SHOWN):
            with formatter.section("Other options"):
                formatter.write_dl([*rest, *about_help])
            return
        with formatter.section("Help"):
            formatter.write_dl(about_help)
        formatter.write_paragraph()
        formatter.write_text(f"{len(rest)} more options: {ctx.command_path} {ALL}")


def show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the help with every option, and exit."""
    if value and not ctx.resilient_parsing:
        ctx.meta[ALL_SHOWN] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
