"""Import a few files of a package as they are, and something inert in place of everything else that they import.

vLLM, SGLang and exllamav3 need a GPU, compiled kernels and dozens of packages to be imported whole; their rotary and
model files alone need none of it. A stand-in is class, function, decorator and value at once, and does nothing.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import types
from functools import cache
from pathlib import Path


class Kind(type):
    """The type of stand-ins: any attribute is another one, calling one with a function or class gives that back."""

    def __getattr__(cls, name):
        return attribute(name)

    def __call__(cls, *arguments, **named):
        return decorated(arguments, named) or super().__call__(*arguments, **named)

    def __getitem__(cls, key):
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())

    def __contains__(cls, value):
        return False

    def __bool__(cls):
        return False

    __lt__ = __le__ = __gt__ = __ge__ = lambda cls, other: False
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = lambda cls, other: cls
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = lambda cls, other: cls

    def __hash__(cls):
        return id(cls)


def attribute(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return stand_in(name)


def decorated(arguments, named):
    if len(arguments) == 1 and not named and isinstance(arguments[0], (type, types.FunctionType)):
        return arguments[0]
    return None


def stand_in(name):
    """Return a new stand-in of this name."""

    class Inert(metaclass=Kind):
        def __init__(self, *arguments, **named):
            pass

        def __init_subclass__(cls, **named):
            pass

        def __getattr__(self, name):
            return attribute(name)

        def __call__(self, *arguments, **named):
            return decorated(arguments, named) or stand_in(name)()

        def __getitem__(self, key):
            return self

        def __iter__(self):
            return iter(())

        def __bool__(self):
            return False

    return Inert


class Module(types.ModuleType):
    def __getattr__(self, name):
        found = attribute(name)
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `real` below `root`, and stand-ins for the rest of the packages.

    given: what some stand-in modules hold instead of stand-ins, by module.
    """

    def __init__(self, root, real, given, absent):
        self.root, self.real, self.given = Path(root), real, given
        self.packages = {name.partition(".")[0] for name in real} | set(absent)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.packages:
            return None
        if any(name == module or name.startswith(f"{module}.") for module in self.real):
            base = self.root.joinpath(*name.split("."))
            for file in (base / "__init__.py", base.with_suffix(".py")):
                if file.is_file():
                    inside = [str(base)] if file.name == "__init__.py" else None
                    return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = Module(spec.name)
        module.__path__ = []
        vars(module).update(self.given.get(spec.name, {}))
        return module

    def exec_module(self, module):
        pass


def install(root, real, given, absent=()):
    """Have these modules imported from `root`; whatever else of their packages, and the absent ones, are stand-ins."""
    sys.meta_path.insert(0, Finder(root, real, given, absent))


@cache
def _code(file, name):
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.decorator_list, node.returns = [], None
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
            return compile(ast.Module([node], []), str(file), "exec")
    raise LookupError(f"{name} in {file}")


def function(file, name, **scope):
    """Return a function or method of a source file, run by itself: its imports are what `scope` holds."""
    exec(_code(file, name), scope)
    return scope[name]


def called(function, values):
    """Return the result of a call with those of the values that the function has parameters for."""
    wanted = inspect.signature(function).parameters
    return function(**{key: value for key, value in values.items() if key in wanted})


def table(cache, positions):
    """Return the numbers of a cache of cos and sin by position, as vLLM and SGLang keep it."""
    cache = cache.double()
    cos, sin = cache.chunk(2, dim=-1)
    return {
        "inv_freq": sin[1].atan2(cos[1]).tolist(), "attention_factor": float(cos[0, 0]), "reach": len(cache),
        "rows": {str(p): cache[p].tolist() for p in positions if p < len(cache)},
    }  # fmt: skip


def own_scale(config):
    """Return the softmax scale that the family has without any scaling of positions."""
    if hasattr(config, "qk_nope_head_dim"):
        return (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    if getattr(config, "attention_multiplier", None):
        return config.attention_multiplier
    if config.model_type in ("gemma3n_text", "gemma4_text"):
        return 1.0
    width = getattr(config, "query_pre_attn_scalar", None) or getattr(config, "head_dim", None)
    return (width or config.hidden_size // config.num_attention_heads) ** -0.5
