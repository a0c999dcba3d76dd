"""The fingerprint of a model's files. It binds a certificate to settings, tokenizer, code and weights."""

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

BLOCKS = 64  # with the first and the last: 4.3 MB of a weight file, however long it is
ALL_BELOW = 2 * 10**9  # bytes of weights, all of which count; SHA-256 reads that much in 1 to 8 seconds
# These files decide the tokens. transformers reads the last four with an older tokenizer.
_TOKENS = (
    names.CONFIG_JSON, names.SAFETENSORS_INDEX_JSON, names.TOKENIZER_JSON, names.TOKENIZER_CONFIG_JSON,
    "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
)  # fmt: skip
# These files decide generation, prompts and code.
_READ = (
    "generation_config.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
    "processor_config.json", "preprocessor_config.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
    "*.tiktoken", "tekken.json", "*.py",
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The content that a fingerprint covers.

    files: glob patterns of the files besides the weights.
    full: all bytes of the weights, not only samples.
    """

    files: tuple[str, ...]
    full: bool


# By the word in front of the digest. The first two are of earlier versions, whose certificates are still compared by them.
FORMS = {
    "sampled": Form(_TOKENS, full=False), "sha256": Form(_TOKENS, full=True),
    "blocks": Form((*_TOKENS, *_READ), full=False), "bytes": Form((*_TOKENS, *_READ), full=True),
}  # fmt: skip
PATTERN = re.compile(rf"({'|'.join(FORMS)}):[0-9a-f]{{64}}")


def of(source: Path | Checkpoint, full: bool = False) -> str:
    """Return a digest of all files that decide a model's output. The digest does not depend on the folder.

    It covers config, tokenizer, templates, generation settings, code and weights. If the weights have less than
    `ALL_BELOW` bytes, or with `full`, it covers all of their bytes, and begins with `bytes:`. Otherwise it covers the
    size of each weight file, its header and blocks spread evenly over its data, and begins with `blocks:`.

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
    states = {}
    for name, file in files.items():
        try:
            state = file.stat()
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror}", where=str(file)) from error
        states[name] = f"{state.st_size} bytes, modified at {state.st_mtime_ns} ns, inode {state.st_ino}"
    return states


def holds(source: Path | Checkpoint, known: str) -> bool:
    """Return whether a checkpoint still has this fingerprint, taken in the same form. Raises: CheckpointError."""
    return of_form(open_checkpoint(source), known.partition(":")[0]) == known


def is_full(known: str) -> bool:
    """Return whether a fingerprint covers all bytes."""
    return FORMS[known.partition(":")[0]].full


def unbound(source: Path | Checkpoint, known: str) -> int:
    """Return the number of bytes of the weights that a fingerprint does not cover. Raises: CheckpointError."""
    if is_full(known):
        return 0
    return sum(max(0, size - (BLOCKS + 2) * identity.BLOCK) for size in _weight_bytes(open_checkpoint(source)))


def of_form(checkpoint: Checkpoint, form: str) -> str:
    """Return the fingerprint in one of `FORMS`. Raises: CheckpointError."""
    digest = hashlib.sha256()
    for label, file, begin in _parts(checkpoint, FORMS[form]):
        identity.feed(digest, file, None if FORMS[form].full else begin, BLOCKS, label=label)
    return f"{form}:{digest.hexdigest()}"


def _parts(checkpoint: Checkpoint, form: Form) -> Iterator[tuple[str, Path, int | None]]:
    """Yield a label, the path, and the offset of the data for each file. Only weights have an offset."""
    if isinstance(checkpoint, GgufCheckpoint):
        for number, header in enumerate(checkpoint.files):
            yield f"gguf {number}", header.path, header.data_start  # the name of a GGUF file decides nothing
        return
    path = checkpoint.path
    files = {str(file.relative_to(path)): file for pattern in form.files for file in sorted(path.glob(pattern))}
    yield from ((name, file, None) for name, file in files.items() if file.is_file())
    yield from ((header.path.name, header.path, header.data_start) for header in checkpoint.headers)


def _weight_bytes(checkpoint: Checkpoint) -> list[int]:
    """Return the size of each file of weights."""
    if isinstance(checkpoint, GgufCheckpoint):
        return [header.path.stat().st_size for header in checkpoint.files]
    return [file.stat().st_size for file in checkpoint.directory.weights]
