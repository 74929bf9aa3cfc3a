"""OpenDAS: an open disclosure avoidance system.

Turns a confidential table in a hierarchy into a release that is formally private, consistent at every level
and made of non-negative whole records.

>>> import opendas as od
>>> run = od.load("run.toml")                      # doctest: +SKIP
>>> release = od.release(run, out="out")           # doctest: +SKIP
>>> release.verify()                               # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opendas.api import (
        NoisyFile,
        PublishedMicrodata,
        Release,
        Run,
        account,
        add_to_ledger,
        advise,
        allocate,
        allocate_run,
        compare,
        create_ledger,
        define,
        describe_measurements,
        describe_spine,
        discrete_gaussian,
        discrete_laplace,
        estimate,
        evaluate,
        exact_level,
        experiment,
        export_measurements,
        export_microdata,
        export_tidy,
        forget_key,
        ledger,
        load,
        measure,
        plan,
        publish_to,
        release,
        replicates,
        sample_discrete_gaussian,
        sample_discrete_laplace,
        status,
        swap,
        tabulate,
        tune,
        write_comparison,
    )
    from opendas.version import __version__

__all__ = [
    "NoisyFile",
    "PublishedMicrodata",
    "Release",
    "Run",
    "__version__",
    "account",
    "add_to_ledger",
    "advise",
    "allocate",
    "allocate_run",
    "compare",
    "create_ledger",
    "define",
    "describe_measurements",
    "describe_spine",
    "discrete_gaussian",
    "discrete_laplace",
    "estimate",
    "estimate_published",
    "evaluate",
    "exact_level",
    "experiment",
    "export_measurements",
    "export_microdata",
    "export_tidy",
    "forget_key",
    "ledger",
    "load",
    "measure",
    "plan",
    "publish_to",
    "release",
    "replicates",
    "sample_discrete_gaussian",
    "sample_discrete_laplace",
    "status",
    "swap",
    "tabulate",
    "tune",
    "write_comparison",
]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that ``import opendas`` stays fast."""
    if name == "__version__":
        from opendas.version import __version__

        return __version__
    if name in __all__:
        from opendas import api

        return getattr(api, name)
    raise AttributeError(f"module 'opendas' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
