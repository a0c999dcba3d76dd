"""What runs in the converter's process, before the converter: limits, no network, no other program, no file elsewhere.

Run as a file by the converter's own Python, which may have no ropetool: the standard library alone. Its one argument
is JSON: script, arguments, folder (where alone it may write), limits (by resource), vocabulary, rotary (how many channels of
a head of how many turn).
"""

import contextlib
import importlib
import json
import os
import runpy
import sys
import threading
from typing import Any

_FORBIDDEN = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.forkpty", "pty.spawn", "webbrowser.open",
)  # fmt: skip
# Events that change names: the places of their arguments that are paths.
_CHANGING = {
    "os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,), "os.mkdir": (0,), "os.link": (0, 1),
    "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
    "shutil.rmtree": (0,),
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    """Confine this process, then run the converter in it."""
    task = json.loads(sys.argv[1])
    _end_with_parent()
    _limit(task["limits"])
    folder = os.path.dirname(task["script"])
    sys.path.insert(0, folder)
    sys.argv = [task["script"], *task["arguments"]]
    sys.addaudithook(_guard(os.path.realpath(task["folder"])))
    _with_every_key()
    _with_rotary_part(*task["rotary"])
    _with_matrices_for_images()
    _without_endless_calls()
    if not task["vocabulary"]:
        _without_vocabulary()
    runpy.run_path(task["script"], run_name="__main__")


def _end_with_parent() -> None:
    """End when the process that started this one does: its end of the pipe is then closed."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _limit(limits: "dict[str, int]") -> None:
    if sys.platform == "win32":  # which has none of them; the time is the parent's to watch
        return
    import resource

    for name, most in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError):  # macOS takes no limit on addresses
            resource.setrlimit(number, (most, most))


def _guard(folder: str) -> Any:
    """Return an audit hook, which nothing in this process can take back."""

    def is_elsewhere(path: Any) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False  # a descriptor, which was opened before
        real = os.path.realpath(os.fsdecode(path))
        return real != os.devnull and os.path.commonpath([real, folder]) != folder

    def hook(event: str, arguments: "tuple[Any, ...]") -> None:
        if event in _FORBIDDEN:
            raise PermissionError(f"{event} is not for a converter")
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & _WRITING) if isinstance(flags, int) else any(c in (mode or "r") for c in "wax+")
            if writes and is_elsewhere(path):
                raise PermissionError(f"{os.fsdecode(path)} is outside the folder to write in")
        for place in _CHANGING.get(event, ()):
            if place < len(arguments) and is_elsewhere(arguments[place]):
                raise PermissionError(f"{event} outside the folder to write in")

    return hook


def _with_every_key() -> None:
    """Have the converter see each key of config.json: it reads them by a class of transformers, which drops some."""
    try:
        model: Any = importlib.import_module("conversion").ModelBase
    except (ImportError, AttributeError):  # an older converter, which is one script
        return
    found = model.load_hparams

    def load_hparams(folder: Any, *arguments: Any, **options: Any) -> Any:
        config = found(folder, *arguments, **options)
        with (
            contextlib.suppress(FileNotFoundError),
            open(os.path.join(folder, "config.json"), encoding="utf-8") as file,
        ):
            _fill(config, json.load(file))
        return config

    model.load_hparams = staticmethod(load_hparams)


def _fill(config: "dict[str, Any]", stated: "dict[str, Any]") -> None:
    """Add what is stated and lost; kinds of layer as they are stated, for the class may give them other names."""
    for key, value in stated.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            _fill(config[key], value)
        elif key == "layer_types":
            config[key] = value
        else:
            config.setdefault(key, value)


def _with_rotary_part(channels: int, head: int) -> None:
    """Have the converter put next to each other what turns together, in heads of which a part turns: it permutes them whole."""
    if channels == head:
        return
    try:
        model: Any = importlib.import_module("conversion.llama").LlamaModel
    except (ImportError, AttributeError):  # an older converter, which is one script
        return
    whole = model.permute

    def permute(weights: Any, heads: int, key_heads: "int | None") -> Any:
        import torch

        count = key_heads or heads
        if weights.shape[0] != count * head:
            return whole(weights, heads, key_heads)
        parts = weights.reshape(count, head, *weights.shape[1:])
        turning, still = parts[:, :channels], parts[:, channels:]
        turning = turning.reshape(count, 2, channels // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(turning.shape)
        return torch.cat([turning, still], dim=1).reshape(weights.shape)

    model.permute = staticmethod(permute)


def _with_matrices_for_images() -> None:
    """Have the converter keep the matrices that a cogvlm has for images in each layer, which it takes for an image tower's."""
    try:
        model: Any = importlib.import_module("conversion.cogvlm").CogVLMModel
    except (ImportError, AttributeError):  # an older converter, which is one script
        return
    found = model.filter_tensors.__func__

    def filter_tensors(cls: Any, item: Any) -> Any:
        return item if ".vision_expert_" in item[0] or ".vision_mlp." in item[0] else found(cls, item)

    model.filter_tensors = classmethod(filter_tensors)


def _without_endless_calls() -> None:
    """Have a class of the converter pass a tensor on that it hands to itself again and again, as Baichuan's does."""
    try:
        conversion: Any = importlib.import_module("conversion")
    except ImportError:  # an older converter, which is one script
        return
    found = conversion.get_model_class

    def get_model_class(*arguments: Any, **options: Any) -> Any:
        model = found(*arguments, **options)
        own, called = model.modify_tensors, set()

        def modify_tensors(self: Any, data: Any, name: str, bid: Any) -> Any:
            call = (id(data), name)
            if call in called:
                yield from super(model, self).modify_tensors(data, name, bid)
                return
            called.add(call)
            yield from own(self, data, name, bid)
            called.discard(call)

        model.modify_tensors = modify_tensors
        return model

    conversion.get_model_class = get_model_class


def _without_vocabulary() -> None:
    """Have the converter write no tokenizer, which the parent puts into the file; for one that has no such tokenizer."""
    conversion: Any = importlib.import_module("conversion")

    found = conversion.get_model_class

    def get_model_class(*arguments: Any, **options: Any) -> Any:
        model = found(*arguments, **options)
        model.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
        return model

    conversion.get_model_class = get_model_class


if __name__ == "__main__":
    main()
