# mypy: disallow-subclassing-any = false, allow-untyped-calls
"""How functions are compiled that only compiled ones call; apart, as it stands on the insides of numba.

For numba every compiled function is a library of its own. It links what it calls, optimises all of it again,
and makes it machine code again. Of a function that Python never calls only the code to link is of use: here
it is inlined and tidied, but neither optimised nor made machine code.

Numba documents the compiler (``pipeline_class``), not the library: what is overridden here was tried with
numba 0.61 and 0.68. Code kept in numba's cache is an ordinary library again when it is read.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class _ToLink(JITCodeLibrary):
    """The code of a function, and of those that it calls, for callers to link."""

    def _optimize_final_module(self) -> None:
        """Run numba's first, cheap passes alone: the caller's library runs all of them on what it links."""
        made = self._codegen._module_pass_manager(
            opt=0, loop_vectorize=False, slp_vectorize=False, cost="cheap"
        )
        passes, *builder = made if isinstance(made, tuple) else (made,)  # no builder before numba 0.62
        passes.run(self._final_module, *builder)

    def _finalize_final_module(self) -> None:
        """Leave the engine, which makes machine code, without it."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return null, as where a library has no such entry."""
        return 0

    @property
    def codegen(self) -> _ToLink:
        """What is asked to set the environment of the machine code, of which there is none."""
        return self

    def set_env(self, name: str, environment: object) -> None:
        """Leave it to the libraries that link this one."""

    def serialize_using_object_code(self) -> Any:
        """Return what numba keeps in its cache."""
        return self.serialize_using_bitcode()


class InnerCompiler(Compiler):
    """Numba's compiler, into such a library."""

    def __init__(self, typing: Any, target: Any, library: None, *rest: Any) -> None:
        super().__init__(typing, target, _ToLink(target.codegen(), "inner"), *rest)
