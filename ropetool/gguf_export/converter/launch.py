"""The first code in the converter's process: it sets limits and blocks network, programs and writing to other folders.

The converter's Python runs this file. That Python may not have ropetool, so the file imports only the standard library.
Its argument is JSON with these keys: script, arguments, folder (the only place to write), limits (by resource),
vocabulary (false skips the tokenizer), rotary (the rotating channels and all channels of a head).
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
# Events that change files or folders, with the indices of their arguments that are paths.
_CHANGING = {
    "os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,), "os.mkdir": (0,), "os.link": (0, 1),
    "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
    "shutil.rmtree": (0,),
}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    """Restrict this process, then run the converter in it."""
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
    """Start a thread that ends this process when the parent ends, because the parent's end of the pipe closes."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _limit(limits: "dict[str, int]") -> None:
    if sys.platform == "win32":  # Windows has no such limits; the parent limits the time
        return
    import resource

    for name, most in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError):  # macOS does not support a limit on addresses
            resource.setrlimit(number, (most, most))


def _guard(folder: str) -> Any:
    """Return an audit hook that raises PermissionError for forbidden actions.

    No code in this process can remove the hook.
    """

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
    """Make the converter read every key of config.json.

    It reads the config through a transformers class that drops some keys.
    """
    try:
        model: Any = importlib.import_module("conversion").ModelBase
    except (ImportError, AttributeError):  # an older converter, which is one script
        return
    original = model.load_hparams

    def load_hparams(folder: Any, *arguments: Any, **options: Any) -> Any:
        config = original(folder, *arguments, **options)
        with (
            contextlib.suppress(FileNotFoundError),
            open(os.path.join(folder, "config.json"), encoding="utf-8") as file,
        ):
            _fill(config, json.load(file))
        return config

    model.load_hparams = staticmethod(load_hparams)


def _fill(config: "dict[str, Any]", from_file: "dict[str, Any]") -> None:
    """Add the keys of the file that the class dropped.

    Layer types always come from the file, because the class may rename them.
    """
    for key, value in from_file.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            _fill(config[key], value)
        elif key == "layer_types":
            config[key] = value
        else:
            config.setdefault(key, value)


def _with_rotary_part(channels: int, head: int) -> None:
    """Make the converter interleave only the rotating channels of a head. It permutes whole heads."""
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
        rotating, others = parts[:, :channels], parts[:, channels:]
        rotating = rotating.reshape(count, 2, channels // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(rotating.shape)
        return torch.cat([rotating, others], dim=1).reshape(weights.shape)

    model.permute = staticmethod(permute)


def _with_matrices_for_images() -> None:
    """Make the converter keep the image matrices in each layer of a cogvlm, which it treats as an image tower."""
    try:
        model: Any = importlib.import_module("conversion.cogvlm").CogVLMModel
    except (ImportError, AttributeError):  # an older converter, which is one script
        return
    original = model.filter_tensors.__func__

    def filter_tensors(cls: Any, item: Any) -> Any:
        return item if ".vision_expert_" in item[0] or ".vision_mlp." in item[0] else original(cls, item)

    model.filter_tensors = classmethod(filter_tensors)


def _without_endless_calls() -> None:
    """Break the endless recursion of converter classes that pass a tensor to themselves, as Baichuan does."""
    try:
        conversion: Any = importlib.import_module("conversion")
    except ImportError:  # an older converter, which is one script
        return
    original = conversion.get_model_class

    def get_model_class(*arguments: Any, **options: Any) -> Any:
        model = original(*arguments, **options)
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
    """Make the converter skip a tokenizer that it does not support. The parent process then adds one."""
    conversion: Any = importlib.import_module("conversion")

    original = conversion.get_model_class

    def get_model_class(*arguments: Any, **options: Any) -> Any:
        model = original(*arguments, **options)
        model.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
        return model

    conversion.get_model_class = get_model_class


if __name__ == "__main__":
    main()
