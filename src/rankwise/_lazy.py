"""Import the names of a package when they are first used, so that importing it stays fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def import_lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package; the latter lists its `__all__`.

    `modules` are modules relative to it, such as ".config", with the names that each defines,
    separated by spaces. No module of the package may have one of these names.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get_name(name: str) -> object:
        if name not in module_of:
            # With these two, Python's traceback ends with "Did you mean: …?".
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}",
                name=name,
                obj=sys.modules[package],
            )
        value = getattr(import_module(module_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get_name, list_names
