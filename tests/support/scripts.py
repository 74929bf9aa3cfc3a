"""Scripts beside the package as modules: they belong to no package, so that nothing else imports them."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = ["accountant", "script"]


@cache
def script(path: Path) -> ModuleType:
    """Run a script as a module of its own name, once."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def accountant() -> ModuleType:
    """The accountant that knows nothing of the package."""
    return script(Path(__file__).parents[1] / "reference" / "brute_force_accountant.py")
