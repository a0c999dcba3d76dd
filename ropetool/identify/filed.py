"""Prompts and answers as a file, for programs without a supported server interface.

`write_prompts` writes the prompts with empty answers. The user fills in `top` of each answer and passes the file back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import CheckpointError, OutputError
from ropetool.files.hf import read_object
from ropetool.files.hf.jsontext import JsonLimits
from ropetool.files.json_types import JsonType, check_members
from ropetool.identify.asking import PromptIds
from ropetool.servers.base import MOST_SHOWN, TOKENS, Answer, Score, ServerLimits, answer_of

SCHEMA = "ropetool prompts 1"
UNKNOWN = ServerLimits(None, MOST_SHOWN, exact=False)
_LIMITS = JsonLimits(64 << 20, 4_000_000)
_ANSWER = {
    "ids": JsonType("a list of token ids, with at least one", lambda value: TOKENS.holds(value) and len(value) > 0),
    "top": JsonType(
        "a list of pairs [token, log probability]",
        lambda value: isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value),
    ),
}


def write_prompts(path: Path, prompt_ids: PromptIds) -> None:
    """Write prompts as a file for a program to answer. Raises: OutputError if the file exists or cannot be written."""
    entries = [{"ids": list(ids), "top": []} for ids in (*prompt_ids.singles, *prompt_ids.prompts)]
    text = json.dumps({"schema": SCHEMA, "program": "", "answers": entries})
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OutputError("the file exists already", where=str(path), try_="a different name") from None
    except OSError as error:
        raise OutputError(f"cannot write the file: {error.strerror}", where=str(path)) from None


@dataclass(frozen=True)
class FiledServer:
    """The answers in a file, with the interface of a server. It can answer only these prompts.

    program: the name of the program that answered.
    answers: the answers by prompt, in the file's order.
    where: the path of the file, for errors.
    """

    program: str
    answers: dict[tuple[int, ...], Answer]
    where: str
    model: str = ""
    limits: ServerLimits = UNKNOWN

    @classmethod
    def read(cls, path: Path) -> FiledServer:
        """Return the answers in a file. Raises: CheckpointError for a different format, or if an answer is missing."""
        data = read_object(path, _LIMITS)[1]
        entries = data.get("answers")
        if data.get("schema") != SCHEMA or not isinstance(entries, list) or not entries:
            raise CheckpointError(
                "not a file written by `identify --prompts-out`",
                where=str(path),
                try_="ropetool identify --prompts-out FILE",
            )
        answers = {}
        for number, entry in enumerate(entries):
            check_members(entry, _ANSWER, place=f"answer {number}", where=str(path))
            answers[tuple(entry["ids"])] = answer_of(entry["top"], len(entry["top"]), f"{path}: answer {number}")
        if not any(len(ids) > 1 for ids in answers):
            raise CheckpointError(
                "the file contains no prompt of several tokens",
                where=str(path),
                try_="ropetool identify --prompts-out FILE",
            )
        return cls(str(data.get("program") or "the program"), answers, str(path))

    def check(self, vocabulary: int | None, context: int | None) -> None:
        """Raise CheckpointError if a prompt has a token beyond the vocabulary, or more tokens than the context."""
        for ids in self.answers:
            if vocabulary is not None and max(ids) >= vocabulary:
                raise CheckpointError(
                    f"a prompt contains token {max(ids)}, but the checkpoint has {vocabulary} tokens", where=self.where
                )
            if context is not None and len(ids) > context:
                raise CheckpointError(
                    f"a prompt has {len(ids)} tokens, but the context length of the checkpoint is {context}",
                    where=self.where,
                )

    @property
    def prompts(self) -> PromptIds:
        """Return the prompts that the file answers."""
        return PromptIds(
            tuple(ids for ids in self.answers if len(ids) == 1), tuple(ids for ids in self.answers if len(ids) > 1)
        )

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return the answer to one of the prompts in the file."""
        return self.answers[tuple(ids)]

    def tokens_of(self, text: str) -> list[int] | None:
        """Return None, because a file cannot tokenize text."""
        return None

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return None, because a file contains only the last distribution of each prompt."""
        return None
