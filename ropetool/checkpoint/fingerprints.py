"""The fingerprint that binds a certificate to what a program reads that runs the model: settings, tokenizer, code, weights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ropetool import names
from ropetool.checkpoint import identity
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import CheckpointError
from ropetool.files.hf import read_header

BLOCKS = 64  # with the first and the last: 4.3 MB of a weight file, however long it is
ALL_BELOW = 2 * 10**9  # bytes of weights, all of which count; SHA-256 reads that much in 1 to 8 seconds
# What decides the tokens; transformers reads the last four beside an older tokenizer.
_TOKENS = (
    names.CONFIG_JSON, names.SAFETENSORS_INDEX_JSON, names.TOKENIZER_JSON, names.TOKENIZER_CONFIG_JSON,
    "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip
# What else a program reads that runs the model: how it generates, what a prompt becomes, code of its own.
_READ = (
    "generation_config.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
    "processor_config.json", "preprocessor_config.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
    "*.tiktoken", "tekken.json", "*.py",
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """What a fingerprint is over: names of files, and whether all bytes of the weights or samples of them."""

    files: tuple[str, ...]
    full: bool


# By the word in front of the digest. The first two are of earlier versions, whose certificates are still compared by them.
FORMS = {
    "sampled": Form(_TOKENS, full=False), "sha256": Form(_TOKENS, full=True),
    "blocks": Form((*_TOKENS, *_READ), full=False), "bytes": Form((*_TOKENS, *_READ), full=True),
}  # fmt: skip
PATTERN = re.compile(rf"({'|'.join(FORMS)}):[0-9a-f]{{64}}")


def of(source: Path | Checkpoint, full: bool = False) -> str:
    """Return a digest of what a program reads that runs the model; a copy elsewhere has the same.

    It is over config, tokenizer, templates, generation settings, code, and all bytes of the weights where those are of less
    than `ALL_BELOW`, or with `full`. Of longer ones it takes the size of each file, the header and blocks spread evenly
    over the data; the form, `bytes:...` or `blocks:...`, tells which.

    Raises: CheckpointError for files that are broken or cannot be read.
    """
    checkpoint = open_checkpoint(source)
    return of_form(checkpoint, "bytes" if full or sum(_weight_bytes(checkpoint)) < ALL_BELOW else "blocks")


def stamps(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the size, the modification time and the inode of each file of a model, by the file's name.

    They show a change between the blocks of a sampled fingerprint. In a directory, they cover every `.json` and
    `.safetensors` file and all files of the fingerprint, but not ropetool's record.

    Raises: CheckpointError.
    """
    files = {file.name: file for _, file, _ in _parts(checkpoint, FORMS["bytes"])}
    if not isinstance(checkpoint, GgufCheckpoint):
        others = (file for pattern in ("*.json", "*.safetensors") for file in sorted(checkpoint.path.glob(pattern)))
        files |= {file.name: file for file in others if file.is_file() and file.name != names.PROVENANCE_JSON}
    found = {}
    for name, file in files.items():
        try:
            state = file.stat()
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror}", where=str(file)) from error
        found[name] = f"{state.st_size} bytes, modified at {state.st_mtime_ns} ns, inode {state.st_ino}"
    return found


def holds(source: Path | Checkpoint, known: str) -> bool:
    """Return whether a checkpoint still has this fingerprint, taken in the same form. Raises: CheckpointError."""
    return of_form(open_checkpoint(source), known.partition(":")[0]) == known


def is_full(known: str) -> bool:
    """Return whether a fingerprint is over all bytes."""
    return FORMS[known.partition(":")[0]].full


def unbound(source: Path | Checkpoint, known: str) -> int:
    """Return how many bytes of the weights a fingerprint does not read. Raises: CheckpointError."""
    if is_full(known):
        return 0
    return sum(max(0, size - (BLOCKS + 2) * identity.BLOCK) for size in _weight_bytes(open_checkpoint(source)))


def of_form(checkpoint: Checkpoint, form: str) -> str:
    """Return the fingerprint in one of `FORMS`. Raises: CheckpointError."""
    digest = hashlib.sha256()
    for label, file, data_start in _parts(checkpoint, FORMS[form]):
        identity.feed(digest, file, None if FORMS[form].full else data_start, BLOCKS, label=label)
    return f"{form}:{digest.hexdigest()}"


def _parts(checkpoint: Checkpoint, form: Form) -> Iterator[tuple[str, Path, int | None]]:
    """Yield the files by the name under which they count, and where the data of a weight file begins."""
    if isinstance(checkpoint, GgufCheckpoint):
        for number, header in enumerate(checkpoint.files):
            yield f"gguf {number}", header.path, header.data_start  # the name of a GGUF file decides nothing
        return
    path = checkpoint.path
    found = {str(file.relative_to(path)): file for pattern in form.files for file in sorted(path.glob(pattern))}
    yield from ((name, file, None) for name, file in found.items() if file.is_file())
    yield from ((file.name, file, read_header(file).data_start) for file in checkpoint.directory.weights)


def _weight_bytes(checkpoint: Checkpoint) -> list[int]:
    """Return the size of each file of weights."""
    if isinstance(checkpoint, GgufCheckpoint):
        return [header.path.stat().st_size for header in checkpoint.files]
    return [file.stat().st_size for file in checkpoint.directory.weights]
