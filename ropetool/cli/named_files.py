"""Files that options name: their place is checked before long work, and each is written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropetool.errors import ConfigError, OutputError

LIST_FILE_BYTES = 4 << 20
_NO_SOURCE = Path(os.devnull)  # the file does not replace a source


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
