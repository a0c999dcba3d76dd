"""ropetool gguf: the keys of GGUF files, and models split over several of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, is_terminal, local_source, print_json, print_result, show
from ropetool.cli.options import FORCE, JSON, WHOLE, check_in_place, check_output_path, gathered, in_place
from ropetool.errors import CorruptFile
from ropetool.escaping import read_number

if TYPE_CHECKING:
    from ropetool.files.gguf import GgufHeader
    from ropetool.plans.key_edits import KeyEdit
    from ropetool.plans.resharding import Resharded


FILE = click.argument("source", metavar="FILE", type=click.Path())
KEY = click.argument("key")


@click.group("gguf")
def gguf_command() -> None:
    """List and set keys of GGUF files, and split or merge them.

    FILE is a GGUF file of any architecture, or any file of a split model.

    \b
    ropetool gguf list model.gguf
    ropetool gguf get model.gguf tokenizer.chat_template > template.jinja
    """


@gguf_command.command("list")
@FILE
@JSON
def list_command(source: str, as_json: bool) -> None:
    """List the keys of a file with types and values.

    Shortens long arrays and texts. `ropetool gguf get` prints the whole value.

    \b
    ropetool gguf list model.gguf
    """
    from ropetool.files.gguf import read_shards
    from ropetool.report.gguf_keys import keys_json, keys_parts

    files = read_shards(local_source(source))
    print_result(as_json, lambda: keys_json(files), lambda: keys_parts(files))


@gguf_command.command("get")
@FILE
@KEY
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with the type.")
def get_command(source: str, key: str, as_json: bool) -> None:
    """Print the value of a key.

    Writes text to a pipe or a file byte for byte, and arrays as JSON. `ropetool gguf set --from-file` reads both.

    \b
    ropetool gguf get model.gguf llama.context_length
    ropetool gguf get model.gguf tokenizer.chat_template > template.jinja
    """
    from ropetool.files.gguf import read_shards
    from ropetool.plans.key_edits import present
    from ropetool.report.gguf_keys import exact_bytes, key_json, whole

    header = read_shards(local_source(source))[0]
    value = present(header, key)
    if as_json:
        print_json(key_json(header, key))
    elif is_terminal(sys.stdout):
        show(f"{whole(value)}\n")
    else:
        click.echo(exact_bytes(value), nl=False)


class _Valued(click.Command):
    """A command whose last words may be negative numbers; any other word that begins with a dash is an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = True
        rest = super().parse_args(ctx, args)
        for word in ctx.params.get("words") or ():
            if word.startswith("-") and word != "-" and not _is_number(word):
                raise click.NoSuchOption(word, ctx=ctx)
        return rest


def _is_number(word: str) -> bool:
    try:
        read_number(word)
    except ValueError:
        return False
    return True


FORCE_EDIT = click.option(
    "--force", is_flag=True,
    help="Make an edit that llama.cpp rejects or misreads. Also replace an earlier output of ropetool.",
)  # fmt: skip
OUTPUT = click.option("-o", "--output", metavar="FILE", type=click.Path(), required=True, help="The output file.")
EITHER = click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), help="Write a copy to this file, instead of --in-place."
)


@dataclass(frozen=True)
class EditOptions:
    """The options of an edit of a key.

    output: the file for a copy; None edits the file itself.
    in_place, copy_if_needed: as in `OutputOptions`.
    force: make an edit that llama.cpp rejects or misreads, and replace an earlier output of ropetool.
    as_json: print the result as JSON.
    """

    output: str | None
    in_place: bool
    copy_if_needed: bool
    force: bool
    as_json: bool


def edits_key(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an edit of a key, and pass them as `EditOptions`."""
    decorated: Callable[..., None] = EITHER(in_place(FORCE_EDIT(JSON(gathered(options=EditOptions)(command)))))
    return decorated


@gguf_command.command("set", cls=_Valued)
@FILE
@KEY
@click.argument("words", metavar="[TYPE] VALUE", nargs=-1)
@click.option(
    "--from-file", metavar="PATH", type=click.Path(),
    help="Read the value from this file byte for byte, or from standard input with -.",
)  # fmt: skip
@edits_key
def set_command(source: str, key: str, words: tuple[str, ...], from_file: str | None, options: EditOptions) -> None:
    """Set a key in a file or in a copy.

    TYPE is u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool, str, or arr: with one of these, such as arr:i32. Default: the
    type that llama.cpp requires, else the type in the file, else the type that the gguf package writes. Write arrays as JSON.

    It refuses a value that llama.cpp rejects or silently misreads, and names the rule. If the RoPE table changes,
    ropetool prints the old and the new table.

    \b
    ropetool gguf set model.gguf general.name "My model" --in-place
    ropetool gguf set model.gguf tokenizer.chat_template --from-file template.jinja -o new.gguf
    ropetool gguf set model.gguf general.tags arr:str '["long", "context"]' -o new.gguf
    """
    from ropetool.files.gguf.texts import is_type, type_label
    from ropetool.plans.key_edits import set_key

    most = 1 if from_file is not None else 2
    if not most - 1 <= len(words) <= most:
        raise click.UsageError(
            f"expects FILE KEY {'[TYPE] with --from-file' if from_file is not None else '[TYPE] VALUE'}."
        )
    typed = len(words) == most
    if typed and not is_type(words[0]):
        type_label(words[0])
    text = _text_of(from_file) if from_file is not None else words[-1]
    label = type_label(words[0]) if typed else ""
    edit = set_key(_headers(source, options), key, text, label, force=options.force)
    _write(edit, options)


@gguf_command.command("unset")
@FILE
@KEY
@edits_key
def unset_command(source: str, key: str, options: EditOptions) -> None:
    """Remove a key from a file or from a copy.

    It refuses to remove a key that llama.cpp requires.

    \b
    ropetool gguf unset model.gguf tokenizer.chat_template --in-place
    """
    from ropetool.plans.key_edits import unset_key

    _write(unset_key(_headers(source, options), key, force=options.force), options)


def _text_of(path: str) -> str:
    """Return the content of a file as a value holds it, with bytes that are not UTF-8 kept."""
    from ropetool.files.gguf.texts import MAX_VALUE_BYTES
    from ropetool.files.regular import read_regular

    if path != "-":
        raw = read_regular(Path(path), MAX_VALUE_BYTES)
    elif len(raw := sys.stdin.buffer.read(MAX_VALUE_BYTES + 1)) > MAX_VALUE_BYTES:
        raise CorruptFile(f"has more than {MAX_VALUE_BYTES:,} bytes, the limit for a value", where="standard input")
    return raw.decode("utf-8", "surrogateescape")


def _headers(source: str, options: EditOptions) -> tuple[GgufHeader, ...]:
    """Return the headers of a model that is edited, in place or in a copy."""
    from ropetool.files.gguf import read_shards
    from ropetool.plans.in_place import editable

    check_in_place("output")
    if not options.in_place and options.output is None:
        raise click.UsageError("requires -o FILE for a copy, or --in-place.")
    check_output_path(options.output, source, force=options.force)
    return editable(source) if options.in_place else read_shards(local_source(source))


def _write(edit: KeyEdit, options: EditOptions) -> None:
    """Write the edit, and print it."""
    from ropetool.cli.progress import BYTES, bar
    from ropetool.plans.key_output import write_copy, write_in_place
    from ropetool.report.gguf_keys import edit_json, edit_parts
    from ropetool.report.planned import in_place_json, in_place_text

    if options.output is None:
        edited = write_in_place(edit, copy_if_needed=options.copy_if_needed, command=command_line())
        row, write_notes = ("in place", in_place_text(edited)), edited.notes
        place: dict[str, Any] = {"in_place": in_place_json(edited)}
    else:
        with bar(BYTES) as progress:
            written = write_copy(edit, Path(options.output), force=options.force, progress=progress)
        files = [str(path) for path in written.files]
        row, place, write_notes = ("output", files[0]), {"output": files}, written.notes
    print_result(
        options.as_json, lambda: edit_json(edit, place), lambda: edit_parts(edit, [row]), [*edit.notes, *write_notes]
    )


@gguf_command.command("split")
@FILE
@click.option("--max-size", metavar="SIZE", help="At most this many bytes of tensors per file: 2G or 500M. G is 10^9.")
@click.option("--max-tensors", metavar="N", type=WHOLE, help="At most N tensors per file.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), required=True,
    help="The output name: NAME.gguf becomes NAME-00001-of-00003.gguf.",
)  # fmt: skip
@FORCE
@JSON
def split_command(
    source: str, max_size: str | None, max_tensors: int | None, output: str, force: bool, as_json: bool
) -> None:
    """Write a model as several files.

    Writes the same bytes as llama.cpp's gguf-split. The first file has all keys. A new file begins before a tensor would exceed
    a limit. You can pass both limits. FILE can be part of a split model.

    \b
    ropetool gguf split model.gguf --max-size 2G -o parts/model.gguf
    """
    from ropetool.cli.progress import BYTES, bar
    from ropetool.files.gguf.splitting import limits_of
    from ropetool.plans.resharding import PREFIX, split_model

    if max_size is None and max_tensors is None:
        raise click.UsageError("requires --max-size or --max-tensors.")
    limits = limits_of(max_size, max_tensors, PREFIX)
    check_output_path(output, source, force=force, directory=False, several=True)
    with bar(BYTES) as progress:
        done = split_model(Path(local_source(source)), Path(output), limits, force=force, progress=progress)
    _show_files(done, as_json)


@gguf_command.command("merge")
@click.argument("source", metavar="SHARD", type=click.Path())
@OUTPUT
@FORCE
@JSON
def merge_command(source: str, output: str, force: bool, as_json: bool) -> None:
    """Write a model of several files as one.

    SHARD is any of the files. ropetool refuses a missing file, a file of a different model, or a file whose name contradicts
    its keys. Writes the same bytes as llama.cpp's gguf-split --merge.

    \b
    ropetool gguf merge parts/model-00001-of-00003.gguf -o model.gguf
    """
    from ropetool.cli.progress import BYTES, bar
    from ropetool.plans.resharding import merge_model

    check_output_path(output, source, force=force, directory=False)
    with bar(BYTES) as progress:
        done = merge_model(Path(local_source(source)), Path(output), force=force, progress=progress)
    _show_files(done, as_json)


def _show_files(done: Resharded, as_json: bool) -> None:
    from ropetool.report.gguf_keys import files_json, files_parts

    print_result(as_json, lambda: files_json(done), lambda: files_parts(done), done.notes)
