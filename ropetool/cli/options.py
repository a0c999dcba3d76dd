"""Options of several commands: their types, their help, and the objects that commands get.

A shell completes names of methods and runtimes. Completion does not import their modules, because numpy would delay
each key.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem
from click.types import FloatParamType, IntParamType

from ropetool.errors import ConfigError, InvalidRope, OutputError
from ropetool.escaping import command, read_length, read_number, read_whole

ALL = "--help-all"
ALL_SHOWN = "ropetool.help_all"  # key in the context's meta: the help shows every option
LONGEST = 2**31  # tokens
LIST_FILE_BYTES = 4 << 20
_PACKAGE = Path(__file__).parents[1]
_NO_SOURCE = Path(os.devnull)  # the file does not replace a source
T = TypeVar("T")
if TYPE_CHECKING:
    from ropetool.plans.plan import Plan

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


@contextmanager
def naming_a_smaller_run(words: Sequence[str], instead: Mapping[str, str | None] | None = None) -> Iterator[None]:
    """If a run takes too long, add the command line of a shorter run to the error.

    words: the refused command.
    instead: the options to change, if the command cannot run on a smaller scale.
    """
    try:
        yield
    except ConfigError as error:
        changes = getattr(error, "changes", None)
        if changes is None:
            raise
        if instead is not None:
            changes, error.notes = instead, ()
        error.try_ = command("ropetool", *with_options(words, changes or {"--budget": error.try_.split()[-1]}))
        raise


def with_options(words: Sequence[str], changes: Mapping[str, str | None]) -> list[str]:
    """Return the words of a command line with options of one value each changed, added, or removed by None."""
    kept: list[str] = []
    end = _end_of_options(words)
    following = iter(words[:end])
    for each in following:
        if each in changes:
            next(following, None)  # its value
        elif each.partition("=")[0] not in changes:
            kept.append(each)
    added = [each for name, value in changes.items() if value is not None for each in (name, value)]
    return [*kept, *added, *words[end:]]


def with_flag(words: Sequence[str], flag: str) -> list[str]:
    """Return the words of a command line with one more flag, in front of `--`."""
    end = _end_of_options(words)
    return [*words[:end], flag, *words[end:]]


def _end_of_options(words: Sequence[str]) -> int:
    """Return the index of `--`, after which no word is an option, or the number of words."""
    return words.index("--") if "--" in words else len(words)


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
DEVICE = click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|mps|map",
    help="The device. map spreads the layers over all devices.",
)  # fmt: skip
DTYPE = click.option("--dtype", default="auto", show_default=True, metavar="auto|float32|bfloat16|float16|float64")
TEXTS = click.option(
    "--text", "texts", type=click.Path(), multiple=True,
    help="A document, a folder of documents, or a .jsonl file (repeatable). Default: the bundled texts.",
)  # fmt: skip
READING = click.option(
    "--from", "reading", type=click.Choice(["original", "current"]),
    help="For a source that is already scaled: replace its scaling (original), or build on its current table and context "
    "length (current).",
)  # fmt: skip
GRADE = click.option(
    "--grade", metavar="publishable|usable|research",
    help="The allowed rise of perplexity at every length: 3 % (publishable), 10 % (usable) or 50 % (research). Default in a suite: "
    "usable.",
)  # fmt: skip
AS = click.option(
    "--as",
    "as_type",
    type=FAMILY,
    metavar="MODEL_TYPE",
    help="Read a model_type of remote code as this built-in model_type. The output gets this type.",
)


NO_SIDECARS = click.option(
    "--no-sidecars", "sidecars", is_flag=True, default=True, flag_value=False,
    help="Do not change the model card. For a GGUF file, do not write a card or a Modelfile.",
)  # fmt: skip
DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the plan with every value. Do not write the output.")
PLAN_OUT = click.option("--plan-out", type=click.Path(), help="Also write the plan to this file, for `ropetool apply`.")
FORCE = click.option("--force", is_flag=True, help="Replace an earlier output of ropetool.")
REPORT = click.option("--report", type=click.Path(), help="Write an HTML report with plots into this new folder.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def explain(**more: Any) -> Callable[..., Any]:
    """Return --explain of a plan."""
    return click.option(
        "--explain", is_flag=True,
        help="Print the reason for each way of writing the table that was refused, not only for the first one.",
        **more,
    )  # fmt: skip


def for_runtimes(help: str) -> Callable[..., Any]:
    """Return --for with this help."""
    return click.option("--for", "for_runtimes", type=RUNTIME, multiple=True, metavar="RUNTIME", help=help)


def check_new(option: str, path: Path) -> None:
    """Raise ConfigError for a file that exists, or whose folder does not exist. Call this before long work."""
    from ropetool.files.output import check_place

    if os.path.lexists(path):
        raise ConfigError("exists already", where=f"{option} {path}", try_="pass another name, or remove the file")
    with _named(option, path):
        check_place(path, _NO_SOURCE)


def write_new(option: str, path: Path, text: str) -> None:
    """Write the file of an option, completely or not at all. Raises: ConfigError if it exists or cannot be written."""
    from ropetool.files.transaction import staged

    check_new(option, path)
    with _named(option, path), staged(path, _NO_SOURCE) as stage:
        stage.write_bytes(text.encode())


@contextmanager
def written_beside(path: str | None, plan: Plan) -> Iterator[None]:
    """Write the plan file, and remove it again if the body fails."""
    if path is None:
        yield
        return
    write_new("--plan-out", Path(path), json.dumps(plan.to_json(), indent=2) + "\n")
    try:
        yield
    except BaseException:
        Path(path).unlink()
        raise


def list_value(name: str, value: str, option: str = "") -> Any:
    """Return a list from JSON text or a JSON file. The file has the list, or an object with the list under its name."""
    from ropetool.files.hf import parse_object

    where = f"{option or f'-p {name}'} {value if len(value) <= 200 else value[:60] + '...'}"
    text = value if value.lstrip().startswith("[") else _small_text(where, value)
    data = parse_object(f'{{"{name}": {text}}}' if text.lstrip().startswith("[") else text, where).get(name)
    if not isinstance(data, list):
        raise ConfigError(f"does not contain a list {name}", where=where)
    return data


def _small_text(where: str, value: str) -> str:
    path = Path(value)
    try:
        # A device does not end, and a list with one number per rotary pair is short.
        if not path.is_file() or path.stat().st_size > LIST_FILE_BYTES:
            raise ConfigError(f"is neither a JSON list nor a file of at most {LIST_FILE_BYTES:,} bytes", where=where)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot be read ({reason})", where=where) from None


@contextmanager
def _named(option: str, path: Path) -> Iterator[None]:
    """Name the option in the error if a file cannot be written."""
    try:
        yield
    except OutputError as error:
        hint = error.try_.replace("another -o", "another name").replace("an -o", "a name")
        raise ConfigError(f"cannot be written ({error.message})", where=f"{option} {path}", try_=hint) from None


_IN_PLACE = click.option(
    "--in-place",
    is_flag=True,
    help="For GGUF: edit the keys and vectors of the file itself, without a copy.",
)
_COPY_IF_NEEDED = click.option(
    "--copy-if-needed", is_flag=True, help="With --in-place: rewrite the whole file if the edit does not fit."
)


def in_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --in-place and --copy-if-needed."""
    return _IN_PLACE(_COPY_IF_NEEDED(command))


def check_in_place(in_place: bool, copy_if_needed: bool, others: Mapping[str, Any]) -> None:
    """Raise click.UsageError for options that exclude each other.

    others: the values of options for a separate output, by option.
    """
    if copy_if_needed and not in_place:
        raise click.UsageError("--copy-if-needed requires --in-place")
    passed = [name for name, value in others.items() if value]
    if in_place and passed:
        raise click.UsageError(f"--in-place edits the source itself and does not accept {passed[0]}")


# --- options as objects


def gathered(**groups: type[Any] | str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Pass parameters to a command as objects, one for each argument that is named here.

    groups: the dataclass of each argument. For a dataclass of the library, its dotted name, because `--help` does not
      import the library.

    An object has the parameters with the names of its fields. A parameter can be in several objects. The command gets
    parameters that are in no object under their own names.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @wraps(command)
        def call(**values: Any) -> T:
            objects = {argument: instance(_dataclass(group), values) for argument, group in groups.items()}
            known = {field.name for each in objects.values() for field in fields(each)}
            rest = {name: value for name, value in values.items() if name not in known}
            return command(**objects, **rest)

        return call

    return decorate


def instance(group: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Return the object of a dataclass with the values that have the names of its fields."""
    own = {field.name: values[field.name] for field in fields(group) if field.name in values}  # type: ignore[arg-type]
    return group(**own)


def _dataclass(group: type[Any] | str) -> type[Any]:
    if not isinstance(group, str):
        return group
    module, _, name = group.rpartition(".")
    named: type[Any] = getattr(import_module(module), name)
    return named


@dataclass(frozen=True)
class OutputOptions:
    """The options of an output.

    output: the path; None chooses a name next to the source.
    in_place: edit the source itself, a GGUF file.
    copy_if_needed: with in_place, rewrite the whole file if the edit does not fit.
    copy: copy the weight files, and do not link them.
    sidecars: also write the model card, and the Modelfile of a GGUF file.
    force: replace an earlier output of ropetool.
    """

    output: str | None
    in_place: bool
    copy_if_needed: bool
    copy: bool
    sidecars: bool
    force: bool

    def target(self, plan: Plan, source: Path) -> Path:
        """Return the path that the plan changes or writes."""
        if self.output is not None:
            return Path(self.output)
        return source if self.in_place else plan.output_beside(source)


@dataclass(frozen=True)
class PlanOptions(OutputOptions):
    """The options of an output, and of its plan.

    dry_run: print the plan, and do not write the output.
    plan_out: the file for the plan, None for no file.
    """

    dry_run: bool
    plan_out: str | None


@dataclass(frozen=True)
class ResultOptions:
    """How a measured result is printed.

    as_json: as JSON, and no notes on the work ahead.
    explain: with descriptions of the columns.
    report: the folder of an HTML report, None for no report.
    force: replace the folder of an earlier report.
    """

    as_json: bool = False
    explain: bool = False
    report: str | None = None
    force: bool = False

    def check_report(self) -> None:
        """Refuse the folder of the report if it cannot be written, before long work."""
        if self.report is not None:
            from ropetool.report.page import check_folder

            check_folder(Path(self.report), force=self.force)


# --- help of commands with many options


class Grouped(click.Command):
    """A command whose help shows some options in groups.

    groups: names of parameters by the title of their group.
    """

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.groups = groups

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
