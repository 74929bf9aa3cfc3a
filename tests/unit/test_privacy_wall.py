"""The privacy wall in the code: who imports what, and what can arrive in which parameter.

The layers of ``pyproject.toml`` say the same of whole packages; here stand the few modules where truth meets
a key, by name, so that another one cannot appear unnoticed.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.sources import ROOT, imports_of, nodes_of, paths

from opendas.gls.operators import Operators
from opendas.report.facts import RunFacts

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
MODULES = paths()


def importers(wanted: str) -> set[str]:
    """Modules that import a name, under whatever path it is re-exported."""
    return {name for name in MODULES if any(found == wanted for _, found in imports_of(name))}


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


BEHIND_THE_WALL = (
    "opendas.topdown",
    "opendas.gls",
    "opendas.intervals",
    "opendas.allocation",
    "opendas.files",
    "opendas.tables",
    "opendas.verify",
    "opendas.report",
)

SEES_TRUTH_OR_KEY = (
    "opendas.readers",
    "opendas.custody.run_key",
    "opendas.sampling.noise",
    "opendas.measurement.answered",
    "opendas.measurement.noisy",
    "opendas.measurement.invariants",
    "opendas.metrics",
    "opendas.runs.context.workspace",
    "opendas.runs.release",
    "opendas.runs.act",
    "opendas.runs.prepare",
)


def test_what_follows_the_measurement_imports_neither_readers_nor_keys() -> None:
    behind = [name for name in MODULES if within(name, *BEHIND_THE_WALL)]
    assert len(behind) > 40
    for name in behind:
        bad = [
            (module, what)
            for module, what in imports_of(name)
            if within(module, *SEES_TRUTH_OR_KEY) or within(f"{module}.{what}", *SEES_TRUTH_OR_KEY)
        ]
        assert bad == [], name
        for package in ("opendas.sampling", "opendas.measurement", "opendas.files"):
            names = {what for module, what in imports_of(name) if module == package}
            assert not names & {"RunKey", "NoiseSource", "NoisyMeasurements", "readers"}, name


def test_the_modules_that_hold_a_key_are_these() -> None:
    assert importers("NoiseSource") == {
        "opendas.engines.work",
        "opendas.measurement.answered",
        "opendas.measurement.discovery",
        "opendas.measurement.noisy",
        "opendas.phsafe.measure",
    }
    assert importers("RunKey") == {
        "opendas.engines.spark.counts",  # for the input tag, as next
        "opendas.engines.truth",
        "opendas.cli.custody",  # keys split and join: makes one, in shares
        "opendas.custody.books",  # a book's own key: tags and heads, no noise
        "opendas.runs.context.account",  # the same, by return value
        "opendas.phsafe.run",  # for the input tag
        "opendas.phsafe.accuracy",
        "opendas.phsafe.measure",
        "opendas.runs.act",
        "opendas.runs.starting.discovery",
        "opendas.custody.input_tag",
        "opendas.runs.simulated.simulation",
        "opendas.runs.context.workspace",
    }
    assert importers("NoisyMeasurements") == {"opendas.engines.work"}
    assert importers("AnsweredMeasurements") == {"opendas.engines.work"}
    assert importers("KeyedSource") == {
        "opendas.engines.warm_up",  # no key: zeros in its place, for synthetic counts
        "opendas.engines.spark.engine",
        "opendas.engines.spark.backend",
        "opendas.runs.release",
        "opendas.runs.simulated.forecast",  # no key: zeros in its place, for synthetic counts
        "opendas.engines.local_backend",
        "opendas.runs.simulated.simulation",
    }


def test_truth_and_key_meet_only_in_measurement_and_in_the_wiring() -> None:
    truth = importers("Histogram") | importers("InputData") | importers("make_reader")
    truth |= importers("ExactCounts") | importers("SparkCounts") | importers("count_values")
    key = importers("NoiseSource") | importers("RunKey") | importers("KeyedSource") | importers("open_act")
    assert truth & key == {
        "opendas.engines.warm_up",  # neither: synthetic counts, and zeros in place of a key
        "opendas.engines.spark.engine",
        "opendas.engines.spark.counts",  # the key of the input tag
        "opendas.engines.truth",  # the key of the input tag
        "opendas.runs.context.account",  # a book's key and the table that it tags
        "opendas.engines.work",
        "opendas.measurement.answered",
        "opendas.measurement.noisy",
        "opendas.engines.spark.backend",
        "opendas.runs.starting.discovery",
        "opendas.runs.release",
        "opendas.runs.simulated.forecast",  # neither: synthetic counts, and zeros in place of a key
        "opendas.engines.local_backend",
        "opendas.runs.simulated.simulation",  # seeded noise, on counts that are public
    }
    keys = re.findall(
        r"RunKey\.\w+", (ROOT / "runs" / "simulated" / "simulation.py").read_text(encoding="utf-8")
    )
    assert keys == ["RunKey.seeded"]


def test_persons_and_key_meet_only_in_the_measurement_and_the_wiring_of_phsafe() -> None:
    truth = importers("Inputs") | importers("Linked") | importers("Persons") | importers("Joined")
    truth |= importers("Households")
    key = importers("NoiseSource") | importers("RunKey") | importers("open_act")
    assert truth & key == {
        "opendas.phsafe.accuracy",  # truth beside seeded noise, for test data only
        "opendas.phsafe.run",
    }, "phsafe.measure is handed cubes of counts, and sees no person"
    keys = re.findall(r"RunKey\.\w+", (ROOT / "phsafe" / "accuracy.py").read_text(encoding="utf-8"))
    assert keys == ["RunKey.seeded"]


def test_ciphers_and_operating_system_randomness_are_in_one_place() -> None:
    ciphers = {n for n in MODULES if any(m.startswith("cryptography") for m, _ in imports_of(n))}
    assert ciphers == {
        "opendas.custody.run_key",
        "opendas.sampling.noise",
        "opendas.sampling.ordering",
        "opendas.custody.passphrase",
        "opendas.custody.input_tag",
        "opendas.custody.signing_key",  # of certificates: it hides nothing
    }
    random = {n for n in MODULES if any(m in ("random", "secrets") for m, _ in imports_of(n))}
    explorer = {f"opendas.explore.{part}" for part in ("app", "session")}
    spark = {f"opendas.engines.spark.{part}" for part in ("counts", "engine", "session")}
    ours = {"opendas.runs.act", "opendas.custody.folders", "opendas.custody.books"}
    ours.add("opendas.runs.starting.discovery")
    assert random == ours | explorer | spark, (
        "secrets: run ids, tokens of the page, names of probes, folders and temporary files"
    )


def generators(nodes: Iterable[ast.AST]) -> Iterator[str]:
    wanted = {"default_rng", "RandomState", "urandom", "getrandom", "PCG64", "Philox", "SFC64", "MT19937"}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in wanted:
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name in wanted)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
            ("np.random.", "numpy.random.")
        ):
            yield ast.unparse(node.func)


def test_the_search_sees_generators_however_they_are_named() -> None:
    for text in (
        "np.random.default_rng(1)",
        "np.random.normal(0, 1)",
        "numpy.random.seed(1)",
        "from numpy.random import default_rng",
        "from os import urandom",
        "np.random.Generator(bits)",
        "os.getrandom(8)",
    ):
        assert list(generators(ast.walk(ast.parse(text)))), text
    harmless = ast.parse("def draw(rng: np.random.Generator) -> None: rng.normal()")
    assert not list(generators(ast.walk(harmless)))


def test_other_generators_are_only_where_nothing_confidential_is_drawn() -> None:
    """numpy's generators make the demonstration state, and move released records, for replicates;
    the operating system's make and destroy keys.

    Swapping draws with numpy's, too: it protects nothing, and everything it writes says so.

    The public samplers draw for their caller, with either; no run uses them.
    """
    found = {name: set(generators(nodes_of(name))) for name in MODULES}
    system = {"urandom", "getrandom"}
    numpy = {name for name, used in found.items() if used - system}
    public = ("opendas.demo", "opendas.comparison.swapping", "opendas.runs.simulated.replicates")
    assert all(within(name, *public) for name in numpy), numpy
    keys = {f"opendas.custody.{part}" for part in ("run_key", "passphrase", "secret_files")}
    assert {name for name, used in found.items() if used & system} == keys | {"opendas.sampling.draws"}
    assert {n for n in MODULES if ("opendas.sampling.draws", "sample") in imports_of(n)} == {"opendas.api"}


def test_no_clock_and_no_memory_gauge_decides_an_estimate() -> None:
    clocks = {"time", "datetime", "resource", "signal", "psutil", "gc"}
    for name in MODULES:
        if not within(name, "opendas.topdown", "opendas.solvers", "opendas.measurement", "opendas.gls"):
            continue
        assert not {module.split(".")[0] for module, _ in imports_of(name)} & clocks, name
        strings = {node.value for node in nodes_of(name) if isinstance(node, ast.Constant)}
        names = {node.arg for node in nodes_of(name) if isinstance(node, ast.keyword)}
        assert not (strings | names) & {"time_limit", "max_time"}, name


# Signatures.


def package_modules(package: str) -> Iterator[object]:
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, package + "."):
        yield importlib.import_module(found.name)


def public_callables(package: str) -> Iterator[tuple[str, object]]:
    """Public functions, and constructors and public methods of public classes."""
    for module in package_modules(package):
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", "") != module.__name__:  # type: ignore[attr-defined]
                continue
            where = f"{module.__name__}.{name}"  # type: ignore[attr-defined]
            if inspect.isfunction(thing):
                yield where, thing
            elif inspect.isclass(thing):
                yield where, thing.__init__
                for method, function in vars(thing).items():
                    if inspect.isfunction(function) and not method.startswith("_"):
                        yield f"{where}.{method}", function


def closure(annotation: object, seen: set[object]) -> Iterator[object]:
    """Yield a type and every type that its parts and fields can hold."""
    try:
        if annotation in seen:
            return
    except TypeError:
        return
    seen.add(annotation)
    yield annotation
    if typing.get_origin(annotation) is np.ndarray:
        return
    for part in typing.get_args(annotation):
        yield from closure(part, seen)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        for hint in hints_of(annotation).values():
            yield from closure(hint, seen)


FRAMES = {
    "pd": SimpleNamespace(DataFrame=object),
    "gpd": SimpleNamespace(GeoDataFrame=object),
    "pl": SimpleNamespace(DataFrame=object, LazyFrame=object),
}
FOR_TYPES = {"RunFacts": RunFacts, "Operators": Operators, **FRAMES}


def hints_of(thing: object) -> dict[str, object]:
    """Resolve annotations, with names that are imported for type checkers only."""
    return typing.get_type_hints(thing, localns=FOR_TYPES)


def parameter_types(function: object) -> set[str]:
    """Names of all classes that can arrive in the parameters of a function."""
    hints = hints_of(function)
    hints.pop("return", None)
    found: set[str] = set()
    for hint in hints.values():
        for kind in closure(hint, set()):
            found.add(getattr(kind, "__qualname__", str(kind)))
    return found


CONFIDENTIAL = {
    "InputData",
    "Reader",
    "ReaderSpec",
    "Run",
    "RunKey",
    "NoiseSource",
    "NoisyMeasurements",
    "KeyedSource",
    "Task",
    "Worker",
    "Workspace",
}


def test_estimation_has_no_parameter_for_truth() -> None:
    """Not even a table: what estimation takes are noisy answers, public counts and declared invariants."""
    functions = list(public_callables("opendas.topdown"))
    assert len(functions) > 10
    for where, function in functions:
        signature = inspect.signature(function)  # type: ignore[arg-type]
        types = parameter_types(function)
        assert not types & (CONFIDENTIAL | {"Histogram", "Path", "Any", "object"}), where
        unannotated = [
            name
            for name, p in signature.parameters.items()
            if p.annotation is inspect.Parameter.empty and name != "self" and p.kind.name[:3] != "VAR"
        ]
        assert unannotated == [], where


@pytest.mark.parametrize("package", [p for p in BEHIND_THE_WALL if p != "opendas.topdown"])
def test_writers_tables_and_reports_take_nothing_that_reads_or_draws(package: str) -> None:
    functions = list(public_callables(package))
    assert functions
    for where, function in functions:
        assert not parameter_types(function) & CONFIDENTIAL, where


def test_the_scan_of_signatures_sees_what_it_looks_for() -> None:
    from opendas.engines.subtree import Part
    from opendas.readers.input.spec import InputData

    def takes_truth(data: list[InputData]) -> None: ...

    def takes_a_part(part: Part | None) -> None: ...

    takes_truth.__annotations__ = {"data": list[InputData], "return": None}
    takes_a_part.__annotations__ = {"part": Part | None, "return": None}
    assert {"InputData", "Histogram"} <= parameter_types(takes_truth)
    assert {"Part", "Histogram", "LevelConstraints"} <= parameter_types(takes_a_part)


def test_measurements_give_noisy_answers_only() -> None:
    """The object through which a run sees counts has five public methods, and no public attribute."""
    from opendas.measurement.noisy import NoisyMeasurements

    public = {name for name in dir(NoisyMeasurements) if not name.startswith("_")}
    assert public == {"family", "full", "sums", "used"}
    assert all(name.startswith("_") for name in NoisyMeasurements.__slots__)


def test_the_layer_contract_of_the_project_names_the_same_wall() -> None:
    if not PROJECT.is_file():
        pytest.skip("pyproject.toml is not beside the tests")
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    forbidden = [c for c in contracts if c["type"] == "forbidden"]
    for target in ("opendas.readers", "opendas.custody.run_key", "opendas.sampling.noise"):
        sources = {s for c in forbidden if target in c["forbidden_modules"] for s in c["source_modules"]}
        assert sources >= set(BEHIND_THE_WALL), target
    ignored = [edge for c in forbidden for edge in c.get("ignore_imports", [])]
    assert ignored == []
