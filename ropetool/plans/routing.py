"""Configs of llama-swap and LiteLLM for one model in several context lengths, so that short prompts keep the source.

llama-swap starts the server that a request names, and has no rule for prompt lengths: internal/config/selectors.go of
its commit 0bdb372 (August 2026) knows `warm`, `pin` and `spillover`. LiteLLM chooses by length: in release 1.108.7,
Router._pre_call_checks removes the servers whose max_input_tokens is below its count of the prompt, then
get_order_filtered_deployments keeps the lowest order. It counts with cl100k_base, not with the model's tokenizer. If
a server refuses a prompt as too long, context_window_fallbacks name the next ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import OutputError
from ropetool.escaping import word
from ropetool.files.output import check_output
from ropetool.files.regular import open_regular
from ropetool.files.transaction import transaction
from ropetool.runtimes.base import Serving

HEAD = "# Written by ropetool extend --variants"
FIRST_PORT = 8081  # 8080 is the port of llama-swap
SHARE = 0.75  # of a context, for the prompt: the rest is for the answer, and for tokens that LiteLLM does not count
LLAMA_SWAP = """\
{head}, for llama-swap: llama-swap --config THIS-FILE
# llama-swap starts the server of the model that a request names. It does not choose by prompt length: LiteLLM does that,
# with the other file.
healthCheckTimeout: 600
models:
{models}
# One server runs at a time. To keep all of them loaded, remove the # from these lines:
#groups:
#  {group}:
#    swap: false
#    members: [{members}]
"""
LITELLM = """\
{head}, for LiteLLM. Start the servers, then the proxy:
{commands}
#   LITELLM_MASTER_KEY=sk-YOUR-SECRET litellm --config THIS-FILE
# If llama-swap starts the servers, replace each api_base by the address of llama-swap: http://127.0.0.1:8080/v1
#
# A request for {group} goes to the first server whose max_input_tokens its prompt does not exceed, else to the last one.
# LiteLLM counts the prompt with cl100k_base, not with the tokenizer of the model. A limit is three quarters of the
# context, because the answer needs room and the counts differ. If a server still refuses a prompt as too long, LiteLLM
# tries the following ones.
model_list:
{models}
router_settings:
  enable_pre_call_checks: true
  context_window_fallbacks: [{{{group}: [{longer}]}}]
"""


@dataclass(frozen=True)
class RoutedModel:
    """A checkpoint that a router offers.

    name: the name that clients use.
    path: the absolute path of its first file, or of its directory.
    context: in tokens.
    """

    name: str
    path: Path
    context: int


def prompt_limits(models: Sequence[RoutedModel]) -> list[int | None]:
    """Return the longest prompt that LiteLLM sends to each model, in tokens; None for no limit.

    models: the shortest context first.
    """
    return [*(int(SHARE * model.context) for model in models[:-1]), None]


def llama_swap(group: str, models: Sequence[RoutedModel], serving: Serving) -> str:
    """Return the config of llama-swap. group, models, serving: as for `litellm`."""
    lines = [
        f"  {_yaml(model.name)}:\n    cmd: {_yaml(serving.named_line(str(model.path), model.context, '${PORT}', model.name))}"
        for model in models
    ]
    members = ", ".join(_yaml(model.name) for model in models)
    return LLAMA_SWAP.format(head=HEAD, models="\n".join(lines), group=_yaml(group), members=members)


def litellm(group: str, models: Sequence[RoutedModel], serving: Serving) -> str:
    """Return the config of LiteLLM.

    group: the name that clients use for all models together.
    models: the shortest context first.
    serving: how the servers of the models are started.
    """
    ports = range(FIRST_PORT, FIRST_PORT + len(models))
    commands = [
        f"#   {serving.named_line(str(model.path), model.context, str(port), model.name)}"
        for model, port in zip(models, ports, strict=True)
    ]
    routed, single = [], []
    for order, (model, port, limit) in enumerate(zip(models, ports, prompt_limits(models), strict=True), 1):
        server = f'model: {_yaml(f"openai/{model.name}")}, api_base: "http://127.0.0.1:{port}/v1", api_key: "none"'
        bound = "" if limit is None else f", max_input_tokens: {limit}"
        routed.append(
            f"  - model_name: {_yaml(group)}\n    litellm_params: {{{server}, order: {order}}}\n"
            f"    model_info: {{id: {_yaml(model.name)}{bound}}}"
        )
        single.append(f"  - model_name: {_yaml(model.name)}\n    litellm_params: {{{server}}}")
    longer = ", ".join(_yaml(model.name) for model in models[1:])
    return LITELLM.format(
        head=HEAD, commands="\n".join(commands), group=_yaml(group), models="\n".join([*routed, *single]), longer=longer
    )


def check_paths(models: Sequence[RoutedModel]) -> None:
    """Raise OutputError for a path that llama-swap would not pass on unchanged."""
    for model in models:
        if "$" in word(model.path):  # ${NAME} is a macro, and llama-swap does not read $'...'
            raise OutputError(
                "llama-swap cannot start a server for this path, because it contains $ or an invisible character",
                where=str(model.path), try_="rename the file or its folder",
            )  # fmt: skip


def check_files(files: Sequence[Path], source: Path, *, force: bool) -> None:
    """Return if the routing files may be written. Raises: OutputError."""
    for file in files:
        check_output(file, source, force=force, may_replace=_objection)


def write_files(texts: dict[Path, str], source: Path, *, force: bool) -> tuple[str, ...]:
    """Write the routing files, all or none. Return notes on leftovers of dead processes. Raises: OutputError."""
    with transaction(next(iter(texts)), source, force=force, may_replace=_objection) as files:
        for path, text in texts.items():
            files.stage(path).write_text(text, encoding="utf-8")
    return tuple(files.notes)


def _objection(path: Path) -> str:
    """Return why a file may not be replaced: ropetool did not write it. Empty if it may."""
    with open_regular(path) as file:
        return "" if file.read(len(HEAD)) == HEAD.encode() else "ropetool did not write it"


def _yaml(text: str) -> str:
    """Return a text as a quoted YAML scalar. It has no invisible characters, which `check_paths` refuses."""
    return json.dumps(text, ensure_ascii=False)
