"""The server at an address. Each program is recognised by an answer that only this program gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.errors import ConfigError, ServerError, did_you_mean
from ropetool.servers.base import Server, positive
from ropetool.servers.http import OPTION, Http
from ropetool.servers.llama_server import LlamaServer
from ropetool.servers.sglang import SglangServer
from ropetool.servers.text import OllamaServer, OpenAiServer, context_of
from ropetool.servers.vllm import VllmServer

MODEL = "--model"
KINDS = "llama-server, vLLM, SGLang, Ollama and other servers with OpenAI's interface"


def open_server(http: Http, model: str | None = None) -> Server:
    """Return the server at an address, for its model of this name, or for its only model.

    Raises: ServerError if no supported server answers; ConfigError for a model that the server does not serve.
    """
    properties = http.get("/props")
    if isinstance(properties, dict) and "default_generation_settings" in properties:
        llama = LlamaServer(http, properties)
        alias = str(properties.get("model_alias") or "")
        _check_name(model, {llama.model, llama.model.rpartition("/")[2], alias} - {""}, http)
        return llama
    info = http.get("/model_info") or http.get("/get_model_info")
    if isinstance(info, dict) and "model_path" in info:
        more = http.get("/server_info") or http.get("/get_server_info")
        facts = {**info, **(more if isinstance(more, dict) else {})}
        name = str(facts.get("served_model_name") or facts["model_path"])
        _check_name(model, {name, str(facts["model_path"])}, http)
        return SglangServer(http, name, facts)
    ollama = http.get("/api/version")
    if isinstance(ollama, dict) and "version" in ollama:
        return _ollama(http, str(ollama["version"]), model)
    cards = _cards(http)
    card = _chosen(cards, model, http)
    version = http.get("/version")
    if isinstance(version, dict) and card.get("owned_by") == "vllm":
        return VllmServer(http, str(version.get("version", "")), card)
    return OpenAiServer(http, str(card.get("id")), context_of(card))


def _ollama(http: Http, version: str, model: str | None) -> OllamaServer:
    listed = http.get("/api/tags")
    models = listed.get("models") if isinstance(listed, dict) else None
    names = [str(one.get("name")) for one in models or [] if isinstance(one, dict)]
    name = _chosen([{"id": one} for one in names], model, http)["id"]
    shown = http.post("/api/show", {"model": name})
    facts = shown.get("model_info") if isinstance(shown, dict) else None
    pairs = facts.items() if isinstance(facts, dict) else ()
    context = next((positive(value) for key, value in pairs if str(key).endswith(".context_length")), None)
    return OllamaServer(http, version, name, context)


def _cards(http: Http) -> list[Mapping[str, Any]]:
    answer = http.get("/v1/models")
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list) or not all(isinstance(one, dict) for one in cards):
        raise ServerError(
            f"no language model server answers here; supported are {KINDS}",
            where=http.url,
            try_=f"{OPTION} URL, without /v1",
        )
    return cards


def _check_name(model: str | None, names: set[str], http: Http) -> None:
    """Raise ConfigError for a name that is not a name of the one served model."""
    if model is not None and model not in names:
        raise ConfigError(f"{http.url} does not serve {model!r}; it serves {', '.join(sorted(names))}", where=MODEL)


def _chosen(cards: list[Mapping[str, Any]], model: str | None, http: Http) -> Mapping[str, Any]:
    names = [str(card.get("id")) for card in cards]
    if model is None and len(cards) == 1:
        return cards[0]
    if model in names:
        return cards[names.index(model)]
    listed = ", ".join(names[:8]) or "none"
    if model is None:
        raise ConfigError(f"{http.url} serves {len(names)} models: {listed}", where=MODEL, try_=f"{MODEL} NAME")
    raise ConfigError(
        f"{http.url} does not serve {model!r}{did_you_mean(model, names)}; it serves {listed}", where=MODEL
    )
