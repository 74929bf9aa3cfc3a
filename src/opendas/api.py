"""The Python interface: every function that the commands run.

Each function imports its implementation when called, so that a run does not load tables or tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from opendas.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from opendas.allocation.histogram import Level
    from opendas.allocation.programs_6_7 import Allocation
    from opendas.comparison.comparison import Comparison
    from opendas.comparison.page import write_comparison
    from opendas.comparison.swapping import Swapped
    from opendas.intervals.laws import exact_level
    from opendas.measurement.account import PlanAccount
    from opendas.metrics.evaluate import Evaluation
    from opendas.privacy.zcdp import Account
    from opendas.runs.allocate import allocate_run
    from opendas.runs.borrowed.taking import estimate_published
    from opendas.runs.context.run import Run, define, load
    from opendas.runs.finished_release import NoisyFile, Release
    from opendas.runs.plan import PlanTable, describe_spine
    from opendas.runs.publish import publish_to
    from opendas.runs.simulated.curves import curves
    from opendas.runs.simulated.experiment import experiment
    from opendas.runs.simulated.published_replicates import PublishedMicrodata
    from opendas.sampling.laws import DiscreteGaussian, DiscreteLaplace
    from opendas.tuning.advice import advise
    from opendas.tuning.improve import improve
    from opendas.tuning.tune import Tuning

__all__ = [
    "NoisyFile",
    "PublishedMicrodata",
    "Release",
    "Run",
    "account",
    "add_to_ledger",
    "advise",
    "allocate",
    "allocate_run",
    "compare",
    "create_ledger",
    "curves",
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
    "improve",
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

Exact = str | int | Fraction
"""An exact number; decimals and fractions as text."""

_ELSEWHERE = {
    "NoisyFile": "opendas.runs.finished_release",
    "PublishedMicrodata": "opendas.runs.simulated.published_replicates",
    "Release": "opendas.runs.finished_release",
    "Run": "opendas.runs.context.run",
    "advise": "opendas.tuning.advice",
    "allocate_run": "opendas.runs.allocate",
    "curves": "opendas.runs.simulated.curves",
    "define": "opendas.runs.context.run",
    "describe_spine": "opendas.runs.plan",
    "estimate_published": "opendas.runs.borrowed.taking",
    "exact_level": "opendas.intervals.laws",
    "experiment": "opendas.runs.simulated.experiment",
    "improve": "opendas.tuning.improve",
    "load": "opendas.runs.context.run",
    "publish_to": "opendas.runs.publish",
    "write_comparison": "opendas.comparison.page",
}
"""Public names defined in other modules."""


def __getattr__(name: str) -> Any:
    """Import a public name of another module when it is first used."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE[name]), name)


def plan(run: Run, *, records: float | None = None) -> PlanTable:
    """Plan a run: its measurements and their noise. Draws no noise and spends no budget.

    Parameters
    ----------
    run : Run
    records : float, optional
        Approximate number of records, for trials on synthetic ones; by default 45 per leaf, or 2.3 people per
        home.
    """
    from opendas.runs.plan import make_plan

    return make_plan(run, records)


def tune(run: Run, targets: str | Path, *, source: str, **settings: Any) -> Tuning:
    """Find the least loss that meets accuracy targets on public stand-in data, and its allocation.

    Parameters
    ----------
    run : Run
        Its input is the stand-in data.
    targets : path
        A file of targets (docs/explanation/tuning.md).
    source : str
        Name of the public data, written into the plan.
    **settings
        The other fields of :class:`opendas.tuning.tune.Settings`: ``method``, ``runs``, ``confirm``, ...
    """
    from opendas.tuning.tune import Settings
    from opendas.tuning.tune import tune as run_tuning

    return run_tuning(run, Path(targets), Settings(source=source, **settings))


def discrete_gaussian(variance: Exact) -> DiscreteGaussian:
    """Return the exact discrete Gaussian law.

    Parameters
    ----------
    variance : exact number
        The parameter sigma squared, in squared counts. The law's variance is slightly smaller if sigma
        squared is below about 1, and equal to it in double precision from 8 on.

    Examples
    --------
    >>> law = discrete_gaussian("7/3")
    >>> law.pmf([-1, 0, 1]).round(4).tolist()
    [0.2108, 0.2612, 0.2108]
    >>> float(law.tail(4).round(6)), law.margin(Fraction(9, 10)), round(law.variance, 6)
    (0.001355, 2, 2.333333)
    """
    from opendas.privacy.exact import parse_fraction
    from opendas.sampling.laws import DiscreteGaussian

    return DiscreteGaussian(parse_fraction(variance, "variance"))


def discrete_laplace(scale: Exact) -> DiscreteLaplace:
    """Return the exact discrete Laplace law; `scale` is L1 sensitivity over epsilon, in counts."""
    from opendas.privacy.exact import parse_fraction
    from opendas.sampling.laws import DiscreteLaplace

    return DiscreteLaplace(parse_fraction(scale, "scale"))


def sample_discrete_gaussian(
    variance: Exact, size: int | tuple[int, ...] | None = None, rng: np.random.Generator | None = None
) -> npt.NDArray[np.int64]:
    """Draw from the exact discrete Gaussian, without floating-point arithmetic.

    Parameters
    ----------
    variance : exact number
        The parameter sigma squared, as of :func:`discrete_gaussian`: a fraction, an int or text.
    size : int or tuple of int, optional
        Shape of the result; by default, one number.
    rng : numpy.random.Generator, optional
        For repeatable simulations and tests; anyone who knows its seed can remove the noise. By default, the
        operating system's secure generator, for noise that protects data.

    Returns
    -------
    int64 array
        In counts. A draw takes 64 random bits, and more if these do not determine it.

    Raises
    ------
    ConfigError
        If the variance is a binary floating-point number, or `rng` is not a numpy generator.
    PrivacyError
        If the variance is not positive, or above about 4.9e10.

    Notes
    -----
    Canonne, Kamath & Steinke (2020), Definition 1: ``P(k)`` is proportional to ``exp(-k**2 / (2 variance))``.
    The argument for exactness is docs/proofs/noise.md, section 1.

    Examples
    --------
    >>> import numpy as np
    >>> sample_discrete_gaussian("10", 5, np.random.default_rng(1)).dtype
    dtype('int64')
    """
    from opendas.sampling.draws import sample

    return sample(discrete_gaussian(variance), size, rng)


def sample_discrete_laplace(
    scale: Exact, size: int | tuple[int, ...] | None = None, rng: np.random.Generator | None = None
) -> npt.NDArray[np.int64]:
    """Draw from the exact discrete Laplace law with a `scale` in counts; otherwise as the Gaussian above."""
    from opendas.sampling.draws import sample

    return sample(discrete_laplace(scale), size, rng)


def release(run: Run, out: str | Path, **options: Any) -> Release:
    """Run from the confidential input to a finished release.

    Parameters
    ----------
    run : Run
    out : path
        Output folder: new, or with other products of the same office.
    **options
        ``workers``, ``resume``, ``seed``, ``measurements``, ``mdf_format``, ``ledger``, ``key_command``,
        ``passphrase``, ``keep_key``, ``progress``, ``engine``, ``master`` and ``expect``, as
        :class:`opendas.runs.options.RunOptions` explains them.

    Raises
    ------
    ConfigError, DataError, PrivacyError, EstimationError, EnvironmentFailure
        See :mod:`opendas.errors`.
    """
    from opendas.runs.finished_release import Release
    from opendas.runs.options import RunOptions
    from opendas.runs.release import release as run_release

    run_release(run, Path(out), RunOptions.of("release", options))
    return Release(out)


def measure(run: Run, out: str | Path, **options: Any) -> Release:
    """Take and write all measurements, without an estimate.

    Options as for :func:`release`, without ``measurements`` and ``mdf_format``.
    """
    from opendas.runs.finished_release import Release
    from opendas.runs.options import RunOptions
    from opendas.runs.release import measure as run_measure

    run_measure(run, Path(out), RunOptions.of("measure", options))
    return Release(out)


def estimate(run: Run, out: str | Path, **options: Any) -> Release:
    """Estimate from the measurements in `out`, without opening input or key.

    Spends no budget. A shared `ledger` that holds the act of the measurements notes it as finished. Options
    as for :func:`release`: ``workers``, ``resume``, ``mdf_format``, ``ledger``, ``progress``, ``engine`` and
    ``master``.
    """
    from opendas.runs.finished_release import Release
    from opendas.runs.options import RunOptions
    from opendas.runs.release import estimate as run_estimate

    run_estimate(run, Path(out), RunOptions.of("estimate", options))
    return Release(out)


def tabulate(
    release: Release,
    tables: str | Sequence[str],
    geolevel: str | Sequence[str] = (),
    *,
    blocks: str | Path | None = None,
    plans: bool = False,
    format: str = "parquet",  # noqa: A002  # the option's name
    intervals: str | float | Fraction | None = None,
    long: bool = False,
    allow_derived: bool = False,
    to: str | Path | None = None,
) -> tuple[Path, ...]:
    """Write tables of a release to `to`, or into the release, whose certificate is then issued again.

    Each table is written at each geolevel; with `long`, all go into one file with columns geocode, name,
    geolevel, variable, label, value and margin. `intervals`, a level such as ``"0.90"``, adds an estimate and
    interval to each count. Tables of data that the input lacks need `allow_derived`.

    `blocks`, a file of districts in any published form, replaces the geolevel; one file in long form, named
    after it, is written into `to`. With `plans`, each column of that file, or each file of a folder, is a
    plan.
    """
    from opendas.custody.folders import holding
    from opendas.files.release_folder import check_outside
    from opendas.intervals.laws import exact_level
    from opendas.runs.context.facts import issue_certificate
    from opendas.tables.interval_tables import DEFAULT_CONFIDENCE
    from opendas.tables.plans import write_plans
    from opendas.tables.tabulate import write_tables
    from opendas.version import issue_date

    folder = _path(to)
    names = tuple(dict.fromkeys([tables] if isinstance(tables, str) else tables))
    if folder is not None:
        check_outside(folder)
    if (blocks is None) != (bool(geolevel) or format == "pl94"):
        raise ConfigError("give either a geolevel or blocks for the tables.")
    if blocks is not None:
        if folder is None or format == "pl94" or intervals is not None:
            raise ConfigError(
                "a table of your own districts is not part of the release: give a folder for it (--to), in "
                "Parquet or CSV. opendas interval --blocks gives intervals."
            )
        districts = Path(blocks)
        return (
            write_plans(
                release.path,
                names,
                districts,
                many=plans,
                fmt=format,
                allow_derived=allow_derived,
                to=folder,
            ),
        )
    confidence = DEFAULT_CONFIDENCE if intervals is None else exact_level(intervals)
    issue_date()  # refuse before writing a table that cannot be certified
    with holding(release.path):
        written = write_tables(
            release.path,
            names,
            (geolevel,) if isinstance(geolevel, str) else tuple(dict.fromkeys(geolevel)),
            fmt=format,
            confidence=confidence,
            intervals=intervals is not None,
            long=long,
            allow_derived=allow_derived,
            to=folder,
        )
        if folder is None:
            issue_certificate(release.folder)
    return tuple(written)


def export_measurements(out: str | Path, to: str | Path, *, product: str | None = None) -> tuple[Path, ...]:
    """Write noisy measurements of a release in the Census Bureau's public layout, a folder for each product.

    Parameters
    ----------
    out : path
        An output folder, or a copy of its ``release/``.
    to : path
        Folder for ``<product>/State.parquet`` and so on.
    product : str, optional
        One product; by default, all with a published layout and full measurements.

    Raises
    ------
    ConfigError
        If the place is not empty, or the release holds no such measurements.
    FormatError
        If it holds only the measurements that an estimate used.
    """
    from opendas.custody.folders import nothing_half_written
    from opendas.files.mdf.reading import write_stamps
    from opendas.files.nmf.bureau_writing import write_bureau_file
    from opendas.files.release_folder import ReleaseFolder
    from opendas.files.release_tree import noisy_tree

    held = ReleaseFolder(Path(out))
    written: list[Path] = []
    layouts = ("pl94-persons", "pl94-units", "dhc-persons", "dhc-units")
    with nothing_half_written(Path(to)):
        names = _published(held.names, product, Path(to), layouts)
        for name in names:
            second = held[name].product.companion
            companion = None if second is None else noisy_tree(held[second.name])
            written += write_bureau_file(noisy_tree(held[name]), Path(to) / name, companion)
        write_stamps({name: held[name].stamps for name in names}, Path(to))
    return tuple(written)


def export_microdata(out: str | Path, to: str | Path, *, product: str | None = None) -> tuple[Path, ...]:
    """Write redistricting microdata as the public files of 2020: one comma CSV for each state.

    Parameters
    ----------
    out, product
        As for :func:`export_measurements`.
    to : path
        Folder for ``2020_ppmf_bystate/2020_ppmf_person_44.csv``; data of 2010 carry that year.

    Raises
    ------
    ConfigError
        If the place is not empty, or the release holds no such microdata.
    """
    from opendas.custody.folders import nothing_half_written
    from opendas.files.mdf.reading import write_stamps, write_state_files
    from opendas.files.release_folder import ReleaseFolder

    held = ReleaseFolder(Path(out))
    written: list[Path] = []
    with nothing_half_written(Path(to)):
        exported = [held[name] for name in _published(held.names, product, Path(to))]
        for one in exported:
            census = 0 if one.official is None else one.official.census
            written += write_state_files(one.mdf, one.product, one.frame, Path(to), census or 2020)
        write_stamps({one.name: one.stamps for one in exported}, Path(to))
    return tuple(written)


def export_tidy(
    out: str | Path, to: str | Path, *, product: str | None = None, state: str | None = None
) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write noisy measurements as tables without lists: a row for each geounit, a column for each cell.

    Parameters
    ----------
    out : path
        An output folder, or a copy of its ``release/``; or a noisy measurement file in the Census Bureau's
        layout, a folder with ``State.parquet`` and so on.
    to : path
        Folder for ``<product>/<geolevel>/<query>.parquet``.
    product : str, optional
        One product; by default, all.
    state : str, optional
        The only state to read from a file of all states in the Bureau's layout.

    Returns
    -------
    (tuple of path, tuple of str)
        The files, and the query groups with too many cells for a table.
    """
    from opendas.custody.folders import nothing_half_written
    from opendas.files.nmf.bureau import is_bureau_folder
    from opendas.files.nmf.bureau_tree import BureauFile
    from opendas.files.release_folder import ReleasedProduct, ReleaseFolder, check_outside
    from opendas.files.storage.addresses import located
    from opendas.files.tidy_measurements import write_tidy
    from opendas.geography.states import find_state
    from opendas.intervals.noisy_tree import NoisyTree

    held: dict[str, ReleasedProduct | NoisyTree]
    place = located(out)
    if is_bureau_folder(place):
        file = BureauFile.open(place, None if state is None else find_state(state).fips)
        trees = (file.tree(), *(() if file.product.companion is None else (file.companion(),)))
        held = {tree.product.name: tree for tree in trees}
    elif state is not None:
        raise ConfigError("state applies only to a noisy measurement file in the Census Bureau's layout.")
    else:
        folder = ReleaseFolder(Path(out))
        held = {name: folder[name] for name in folder.names}
    if product is not None and product not in held:
        raise ConfigError(f"{out} holds {', '.join(held)}, not {product}.")
    check_outside(Path(to))
    paths: list[Path] = []
    left_out: list[str] = []
    with nothing_half_written(Path(to)):
        for name in held if product is None else [product]:
            written, missing = write_tidy(held[name], Path(to) / name)
            paths += written
            left_out += [f"{name}:{query}" for query in missing]
    return tuple(paths), tuple(left_out)


def _published(
    names: Sequence[str],
    product: str | None,
    to: Path,
    layouts: Sequence[str] = ("pl94-persons", "pl94-units"),
) -> list[str]:
    """Return the products that have a published layout.

    Raises
    ------
    ConfigError
        If there is none, or the place is not empty, or in a release.
    """
    from opendas.files.release_folder import check_outside

    known = [name for name in names if name in layouts]
    chosen = known if product is None else [product]
    if not chosen:
        raise ConfigError(
            f"the release holds {', '.join(names)}; the published layout is that of {', '.join(layouts)}."
        )
    if to.exists() and any(to.iterdir()):
        raise ConfigError(f"{to} is not empty; give another folder.")
    check_outside(to)
    return chosen


def describe_measurements(
    path: str | Path,
    state: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Describe a noisy measurement file, in the Census Bureau's or our layout, without reading answers.

    Parameters
    ----------
    path : path
        A folder with ``State.parquet`` and so on, or ``release/measurements/<product>``.
    state : str, optional
        Name, postal or FIPS code of the only state to describe.
    progress : callable(stage, done, total), optional

    Returns
    -------
    dict
        Product, layout, states, rho along the path to a leaf, levels with query groups and variances, missing
        and contradictory parts, and the available tables and query groups.
    """
    from opendas.geography.states import find_state
    from opendas.tables.interval_tables import describe_measurements as describe

    return describe(Path(path), None if state is None else find_state(state).fips, progress)


def replicates(
    release: Release | PublishedMicrodata,
    *,
    runs: int = 50,
    product: str | None = None,
    seed: int = 0,
    workers: int | None = None,
    resume: bool = False,
    microdata: str | Path | None = None,
    tied: Release | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Path]:
    """Repeat a release on its own counts, which gives :meth:`Release.margin` its margins.

    Costs no budget, because replicates start from published counts. They are written into the release, whose
    certificate is issued again. If there are fewer than `runs`, only the missing ones are drawn.

    Parameters
    ----------
    release : Release or PublishedMicrodata
        Replicates of published microdata are written beside them.
    runs : int
        Replicates of each product.
    product : str, optional
        By default, all products of the release.
    seed : int
        Seed of their noise.
    workers : int, optional
        Processes; by default one per core. Each takes the memory of a run.
    resume : bool
        Finish an interrupted call.
    microdata : path, optional
        Folder outside the release for the records of each replicate and of its starting counts.
    tied : Release, optional
        The release that `release` is tied to, if any: each replicate agrees with one of that release.
    progress : callable(stage, done, total), optional

    Returns
    -------
    dict of product name to path
    """
    from opendas.files.release_folder import ReleasedProduct
    from opendas.files.replicate_files import REPLICATES
    from opendas.runs.context.facts import issue_certificate
    from opendas.runs.simulated.published_replicates import PublishedMicrodata
    from opendas.runs.simulated.replicates import (
        Base,
        check_earlier,
        draw_replicates,
        write_replicate_microdata,
    )
    from opendas.version import issue_date

    if runs < 2 or seed < 0:
        raise ConfigError("replicates: expected 2 runs or more, and a seed that is 0 or more.")
    records = None if microdata is None else Path(microdata).absolute()
    draw = partial(draw_replicates, runs=runs, seed=seed, workers=workers, resume=resume, progress=progress)
    if isinstance(release, PublishedMicrodata):
        if tied is not None:
            raise ConfigError("tied belongs to a release: published microdata have no ties that are known.")
        with release.at_hand() as own:
            file = draw(own.base, own.replicates_file, own.folder / "state")
            if records is not None:
                write_replicate_microdata(own.base, file, records / own.base.product, ())
            return {own.base.product: file.path}
    if records is not None and records.is_relative_to(release.folder.absolute()):
        raise ConfigError("microdata of replicates do not belong in a release: give a folder outside it.")
    issue_date()  # refuse before writing what cannot be certified
    names = release.products if product is None else (release.product_name(product),)
    earlier = None if tied is None else tied.folder.absolute()
    bases = {name: Base(release.folder.absolute(), name, earlier) for name in names}
    if tied is not None and not any(ReleasedProduct(release.folder, name).product.tied for name in names):
        raise ConfigError(f"--tied: {', '.join(names)} is tied to no release; leave it out.")
    for base in bases.values():  # before a file is written
        check_earlier(base)
    found = {}
    for name, base in bases.items():
        path = release.folder / REPLICATES / f"{name}.parquet"
        file = draw(base, path, release.scratch / REPLICATES)
        issue_certificate(release.folder)
        found[name] = file.path
        if records is not None:
            stamps = ReleasedProduct(release.folder, name).stamps
            write_replicate_microdata(base, file, records / name, stamps)
    return found


def evaluate(
    release: Release,
    truth: Run,
    *,
    entities: bool = False,
    blocks: Any = None,
    save: bool = True,
    ledger: str | Path | None = None,
) -> Evaluation:
    """Compare a release with the confidential input. The result is confidential.

    The account of the data records the reading, and the certificate states it from then on.

    Parameters
    ----------
    release : Release
    truth : Run
        The run file with the input; its product must be in the release.
    entities : bool
        Also give errors at every entity category: places, school districts, ...
    blocks : path, or frame, optional
        A district plan, in the forms that :meth:`Release.interval` takes: also give errors of its districts,
        as a geolevel `district`.
    save : bool
        Also write tables and plots under ``confidential/evaluation``.
    ledger : path, optional
        The book of the data; by default, the release's, or one that covers the input.
    """
    from opendas.custody.folders import holding, keep_from_git
    from opendas.files.area_files import areas_of
    from opendas.files.release_folder import ReleaseFolder
    from opendas.metrics.evaluate import evaluate as measure_errors
    from opendas.metrics.output import write_evaluation
    from opendas.runs.finished_release import read_truth

    name = truth.product.name
    if save and release.folder == release.path:
        raise ConfigError(
            f"{release.path} is only a release: give the output folder, which has a place for "
            "what is confidential."
        )
    districts = None
    if blocks is not None:  # refused before the truth is read and the reading noted
        released = ReleaseFolder(release.path)[name]
        areas = areas_of(blocks, released.frame, False, released.official)
        districts = areas.districts(released.frame)
    data = read_truth([release], truth, _path(ledger))
    estimate = release.estimate(name)
    result = measure_errors(
        data.histogram, estimate, data.frame, truth.product, entities=entities, districts=districts
    )
    if save:
        with holding(release.path):
            write_evaluation(release.path / "confidential" / "evaluation" / name, result)
            keep_from_git(release.path / "confidential")
    return result


def compare(
    *sources: str | Path | Release,
    truth: Run | None = None,
    tables: Sequence[str] = (),
    geolevels: Sequence[str] = (),
    blocks: Any = None,
    level: str | float | Fraction = "0.90",
    ledger: str | Path | None = None,
) -> Comparison:
    """Compare counts of the same areas: area, name, value in each source, difference, margin.

    Parameters
    ----------
    *sources : path or Release
        Releases, official redistricting files (zip), files or folders of microdata (MDF, PPMF). The others
        are compared with the last.
    truth : Run, optional
        The run file with the confidential input. All sources are then compared with it, and the result is
        confidential. The account of every release among the sources records the reading, as with
        :func:`evaluate`.
    tables : sequence of str
        Tables or query groups; by default P2, P4 and H1 of the redistricting data, without combinations of
        races, and for other products all query groups with few rows.
    geolevels : sequence of str
        By default, all levels and entity categories of the sources.
    blocks : path, or frame, optional
        A district plan: the district of each block, as for :meth:`Release.interval`.
    level : str, float or Fraction
        Level of the margins.
    ledger : path, optional
        The book of the data, as for :func:`evaluate`.

    Returns
    -------
    Comparison
        With the long ``table``, the ``summary``, and :func:`write_comparison`, which writes both.

    Raises
    ------
    ConfigError
        If a source has another form, or the sources have no product or area in common.
    """
    from opendas.comparison.comparison import Comparison
    from opendas.comparison.sources import open_source, truth_source
    from opendas.files.area_files import areas_of
    from opendas.intervals.laws import exact_level
    from opendas.runs.finished_release import Release, read_truth

    opened = [open_source(each.path if isinstance(each, Release) else Path(each)) for each in sources]
    if truth is not None:
        certified = [Release(each.path) for each in opened if each.path is not None and each.certified]
        opened.append(truth_source(truth.resolved.reader, read_truth(certified, truth, _path(ledger))))
    return Comparison(
        tuple(opened),
        tuple(geolevels),
        tuple(tables),
        exact_level(level),
        None if blocks is None else lambda frame: areas_of(blocks, frame, True),
    )


def swap(
    run: Run, to: str | Path, *, seed: int | None = None, ledger: str | Path | None = None, **parameters: Any
) -> Swapped:
    """Swap households of a run's records, as before 2020: for comparison, without a formal guarantee.

    Counts of persons by the attributes that swapped households share stay exact in every leaf. The account of
    the data, if there is one, records the reading.

    Parameters
    ----------
    run : Run
        With the reader ``records``, one row per person with the household's number.
    to : path
        New folder, readable by its owner only; :func:`compare` reads it.
    seed : int, optional
        By default, from the operating system. Anyone who has it can undo the swaps.
    ledger : path, optional
        The book of the data.
    **parameters
        Those of :class:`opendas.comparison.swapping.Swap`: ``rate``, ``targeting``, ``match``, ``within``,
        ``across``, ``risk`` and ``household``.

    Returns
    -------
    Swapped
        Numbers of households in all, moved, and without a match.
    """
    from opendas.comparison.swapping import Swap, write_swapped
    from opendas.custody.account import EXACT
    from opendas.runs.context.account import note_reading, tagger_of

    chosen = Swap(**parameters)
    note_reading(EXACT, tagger_of(run), product=run.product.name, ledger=_path(ledger))
    return write_swapped(run.resolved.reader, run.frame, Path(to), chosen, seed)


@overload
def account(source: Run, delta: Exact | None = None) -> PlanAccount: ...
@overload
def account(source: Exact, delta: Exact | None = None) -> Account: ...
@overload
def account(*, rho: Exact, delta: Exact | None = None) -> Account: ...


def account(
    source: Run | Exact | None = None, delta: Exact | None = None, *, rho: Exact | None = None
) -> Account | PlanAccount:
    """Return the (epsilon, delta) and the bounds on an attacker of a rho or of a run's plan.

    Parameters
    ----------
    source : Run, or exact number
        A run, or a rho, as with the keyword.
    delta : exact number in (0, 1), optional
        Delta at which epsilon is quoted; by default, that of the run's budget, and 1e-10 for a rho.
    rho : exact number, optional

    Returns
    -------
    Account or PlanAccount
        Both have ``epsilon(formula)`` with ``"cks"`` and ``"bun-steinke"``; that of a run also has
        ``"exact"``, curves, losses of parts of a record and within official areas, spare noise and the
        attacker.

    Raises
    ------
    ConfigError
        If both or neither of a run and a rho are given, or a number is out of range.
    PrivacyError
        If the exact facts of a run leave nothing to protect.
    """
    from opendas.measurement.account import PlanAccount
    from opendas.privacy.exact import parse_fraction
    from opendas.privacy.zcdp import Account
    from opendas.runs.context.run import Run

    if (source is None) == (rho is None):
        raise ConfigError("give either a run or a rho, and not both.")
    if isinstance(source, Run):
        at = source.budget.delta if delta is None else parse_fraction(delta, "delta")
        return PlanAccount(source.plan, at, source.frame, source.protection)
    value = rho if source is None else source
    return Account(parse_fraction(value, "rho"), parse_fraction(delta or "1e-10", "delta"))


def allocate(
    levels: Sequence[Level] | Mapping[str, npt.ArrayLike],
    mechanism: str,
    *,
    total: str | int | Fraction | None = None,
    mse: str | int | Fraction | None = None,
    weights: Sequence[float] | None = None,
    neighbours: str = "unbounded",
) -> Allocation:
    """Allocate a budget over the levels of a hierarchy for least squared error after clamping at zero.

    Parameters
    ----------
    levels : mapping, or sequence of :class:`~opendas.allocation.histogram.Level`
        Level -> array of counts, one per node; or the number of nodes alone, if their counts are not used.
        All must be public, because an allocation is published.
    mechanism : str
        ``laplace``, ``gaussian``, ``discrete-laplace`` or ``discrete-gaussian``.
    total, mse : str, int or Fraction
        Total epsilon or rho, or a target for the weighted sum of mean squared errors.
    weights : sequence of float, optional
        One per level; 1 each by default.
    neighbours : str
        ``unbounded`` or ``bounded``.

    Examples
    --------
    >>> allocate({"region": 4, "ward": 36}, "gaussian", total=1).budgets
    (0.25, 0.75)
    """
    from opendas.allocation.programs_6_7 import allocate_target, allocate_total

    if (total is None) == (mse is None):
        raise ConfigError("give a total budget, or a target for the mean squared error (mse), not both.")
    made = _levels(levels) if isinstance(levels, Mapping) else levels
    if mse is not None:
        return allocate_target(made, mechanism, mse, weights, neighbours)
    return allocate_total(made, mechanism, total or 0, weights, neighbours)


def _levels(counts: Mapping[str, npt.ArrayLike]) -> list[Level]:
    import numpy as np

    from opendas.allocation.histogram import CountHistogram, Level, unknown_counts

    levels = []
    for name, values in counts.items():
        if isinstance(values, int | np.integer):
            levels.append(unknown_counts(name, values))
            continue
        try:
            levels.append(Level(name, CountHistogram.of(values)))
        except DataError as error:
            raise type(error)(f"level {name!r}: {error}") from None
    return levels


def create_ledger(
    book: str | Path,
    unit: str,
    *,
    rho: Exact | None = None,
    epsilon: Exact | None = None,
    delta: Exact | None = None,
    neighbours: str = "bounded",
) -> dict[str, Any]:
    """Create the account (book) of a data set, with a limit: a new file, and its key beside it.

    Parameters
    ----------
    book : path
        New file, passed to runs on the data as ``ledger``.
    unit : str
        Identifier of the protected unit: ``person``, ``housing-unit``, ``patient``, ...
    rho, epsilon, delta : exact numbers
        The limit: a rho, or an epsilon at a delta.
    neighbours : str
        ``bounded`` or ``unbounded``: the neighbour relation of the limit.

    Returns
    -------
    dict
        As :func:`ledger`.

    Raises
    ------
    ConfigError
        If the file exists already, or unit or limit are invalid.
    """
    from opendas.custody.books import create_book

    create_book(Path(book), unit, rho=rho, epsilon=epsilon, delta=delta, relation=neighbours)
    return ledger(book)


def add_to_ledger(book: str | Path, rho: Exact, note: str) -> dict[str, Any]:
    """Enter a loss spent elsewhere, and return the account as :func:`ledger` does.

    Parameters
    ----------
    book : path
    rho : exact number
        Loss of one protected unit of the book.
    note : str
        Description: what was released, where and when.

    Raises
    ------
    PrivacyError
        If the limit is smaller than the sum of all losses.
    """
    from opendas.custody.books import add_loss, book_of

    add_loss(book_of(Path(book)), rho, note)
    return ledger(book)


def ledger(book: str | Path) -> dict[str, Any]:
    """Return the limit and losses of a data set, for each change, and every act on it. Confidential.

    Raises
    ------
    ConfigError
        If the file is not a book.
    PrivacyError
        If it is damaged.
    """
    from opendas.custody.account import book_answer
    from opendas.custody.books import book_of
    from opendas.custody.ledger import Ledger

    return book_answer(Ledger.beside(book_of(Path(book)).path).lines())


def status(out: str | Path) -> list[dict[str, Any]]:
    """Return one row per run in an output folder: its progress, remaining work and loss.

    Only reads, and takes no lock, so a run may be active in the folder. The fields are those of
    :class:`opendas.runs.status.RunStatus`. The loss is the one in the folder's ledger, its own or a
    book; None if the run has not begun.
    """
    from opendas.runs.status import folder_status

    return [row.to_dict() for row in folder_status(Path(out))]


def forget_key(out: str | Path, *, ledger: str | Path | None = None) -> tuple[str, ...]:
    """Destroy the run keys of an output folder, and return the products whose key was destroyed.

    `ledger` is the book with the folder's acts, if it has moved.
    """
    from opendas.phsafe.folder import HouseholdWorkspace, stored_mode
    from opendas.runs.context.workspace import Workspace, forget_keys

    folder = Path(out)
    kind = Workspace if stored_mode(folder) is None else HouseholdWorkspace
    return forget_keys(folder, kind, _path(ledger))


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)
