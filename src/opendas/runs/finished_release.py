"""A finished release: the folder, read from Python.

Tables, intervals and checks are imported when they are asked for: a run, which ends with one of these, waits
for none of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from opendas.errors import ConfigError, FormatError
from opendas.files.mdf.reading import read_mdf
from opendas.files.release_folder import ReleaseFolder
from opendas.geography.frame import Frame
from opendas.geography.states import find_state
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.tables.frames import Table

if TYPE_CHECKING:
    import geopandas as gpd
    import pandas as pd

    from opendas.files.area_files import AreaWeights
    from opendas.files.nmf.public_totals import PublicTotals
    from opendas.readers.input.spec import InputData
    from opendas.runs.context.run import Run
    from opendas.tables.figures import FunctionOfCounts
    from opendas.tables.interval_tables import MeasuredProduct
    from opendas.verify.check import Check


def _codes(frame: pd.DataFrame) -> list[str]:
    """Return the code of the area of each row of a table."""
    return list(frame["geocode" if "geocode" in frame.columns else "GEOID"])


class IntervalEstimates:
    """Estimates of true counts, with intervals, from noisy measurements: nothing confidential."""

    def _measured(self, query: str) -> tuple[MeasuredProduct, str]:
        """Return the measurements of the product that knows a query, and the query's name there."""
        raise NotImplementedError

    def intervals(
        self,
        query: str,
        *,
        geolevel: str,
        level: str | float | Fraction = "0.90",
        selected: bool = False,
    ) -> Table:
        """Return estimates and intervals at a geolevel, or in the areas of an entity category.

        Parameters
        ----------
        query : str
            A published table (``P1``, ``H1``, ``PCT12`` ...) or a query group, measured or not.
        geolevel : str
        level : str, float or Fraction
            Strictly between 0 and 1.
        selected : bool
            Only counts whose interval excludes zero, with wider intervals that hold for counts so chosen.

        Returns
        -------
        Table
            One row for each area and cell: geocode, cell, estimate, variance, lower, upper, margin, law, and
            the published count.
        """
        from opendas.intervals.laws import exact_level

        exact = exact_level(level)
        measured, name = self._measured(query)
        return Table(measured.at(name, geolevel, exact, selected=selected))

    def interval(
        self,
        query: str,
        *,
        blocks: Any,
        level: str | float | Fraction = "0.90",
        skip_unknown: bool = False,
        selected: bool = False,
    ) -> Table:
        """Return estimates and intervals for sets of leaves that someone drew.

        Parameters
        ----------
        query : str
        blocks : path, sequence of geocodes, or frame
            A file as for ``opendas interval --blocks``; or a frame (pandas, polars, Arrow) with a column
            ``geocode`` and, if wanted, ``area`` and ``weight``.
        level : str, float or Fraction
        skip_unknown : bool
            Leave out geocodes that the release does not have; see :mod:`opendas.files.area_files`.
        selected : bool
            As of :meth:`intervals`.

        Returns
        -------
        Table
            As of :meth:`intervals`; geocode holds the name of the area.
        """
        from opendas.files.area_files import areas_of
        from opendas.intervals.laws import exact_level

        exact = exact_level(level)
        measured, name = self._measured(query)
        measured.table(name)
        areas = areas_of(blocks, measured.tree.frame, skip_unknown, measured.official)
        return Table(measured.of_areas(name, areas, exact, selected=selected))


class NoisyFile(IntervalEstimates):
    """Published noisy measurements: estimates and intervals, from nothing confidential.

    Parameters
    ----------
    path : path
        An output folder, its ``release/``, a folder ``measurements/<product>``, or a noisy measurement file
        of the Bureau's layout (a folder with ``State.parquet`` and so on).
    product : str, optional
        Which product of a release, where a query alone does not decide.
    state : str, optional
        Name, postal or FIPS code: of a measurement file of the Bureau's layout, the only state that is read.
    others : sequence of path, optional
        Further files of the Bureau's layout of the same census: redistricting and DHC, persons and units.
        Estimates then come from all that say something about the question.
    totals : path, optional
        Published table with what those files leave out: people of states and housing units of blocks, as
        :func:`opendas.readers.public_totals.read_public_totals` reads it.
    progress : callable(stage, done, total), optional
        Told what is read of files of the Bureau's layout.

    Notes
    -----
    Measurements are read when the first question is asked, once for each product.
    """

    def __init__(
        self,
        path: str | Path,
        product: str | None = None,
        state: str | None = None,
        others: Sequence[str | Path] = (),
        totals: str | Path | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._progress = progress
        self._others = tuple(Path(other) for other in others)
        self._totals = None if totals is None else Path(totals)
        self._product = product
        self._state = None if state is None else find_state(state).fips
        self._open: dict[bytes, MeasuredProduct] = {}
        self._asked: dict[str, tuple[MeasuredProduct, str]] = {}

    def __repr__(self) -> str:
        return f"NoisyFile({', '.join(path.name for path in (self.path, *self._others))})"

    def _measured(self, query: str) -> tuple[MeasuredProduct, str]:
        from opendas.tables.interval_tables import open_measured, open_together

        if query in self._asked:
            return self._asked[query]
        if self._others or self._totals is not None:
            paths = (self.path, *self._others)
            self._asked[query] = open_together(paths, query, self._state, self._public, self._progress)
        else:
            measured, name = open_measured(self.path, query, self._product, self._state, self._progress)
            self._asked[query] = self._open.setdefault(measured.key, measured), name
        return self._asked[query]

    @cached_property
    def _public(self) -> PublicTotals | None:
        from opendas.readers.public_totals import read_public_totals

        return None if self._totals is None else read_public_totals(self._totals)

    def labels(self, query: str) -> dict[str, str]:
        """Return what each cell of a table or query group counts, in words, by its name."""
        measured, name = self._measured(query)
        table = measured.table(name)
        return dict(zip(table.columns, table.labels, strict=True))


class Release(IntervalEstimates):
    """An output folder with a finished run, or what was published of it.

    Parameters
    ----------
    path : path
        The output folder; or a copy of ``release/`` alone, which is all that reading and checking take.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.folder / "certificate.json").is_file():
            missing = self.folder / "certificate.json"
            raise ConfigError(f"{self.path} holds no finished release: there is no {missing}.")

    def __repr__(self) -> str:
        return f"Release({', '.join(self.products)} in {self.path.name!r})"

    def _repr_html_(self) -> str:
        from opendas.privacy.exact import format_fraction
        from opendas.report.certificate import read_runs
        from opendas.tables.frames import html_table

        header = ("product", "records", "loss", "mechanism", "estimator", "stamps")
        rows = [
            (
                run.product,
                run.records,
                format_fraction(run.loss),
                run.mechanism,
                run.estimator,
                ", ".join(run.stamps),
            )
            for run in read_runs(self.folder)
        ]
        return html_table(f"Release in {self.path.name}", header, rows)

    @property
    def folder(self) -> Path:
        """What may be published."""
        inside = self.path / "release"
        return self.path if not inside.is_dir() and (self.path / "geography").is_dir() else inside

    @property
    def scratch(self) -> Path:
        """Folder for what is being made of public things, outside of what may be published."""
        inside = self.path != self.folder
        return self.path / "state" if inside else self.path.with_name(f"{self.path.name}.state")

    @cached_property
    def certificate(self) -> Mapping[str, Any]:
        """The certificate."""
        try:
            document: Mapping[str, Any] = json.loads((self.folder / "certificate.json").read_bytes())
            if not all(isinstance(run["product"], str) for run in document["runs"]):
                raise TypeError
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise FormatError(
                "certificate.json is damaged. Restore it from a copy of the release."
            ) from error
        return document

    @property
    def products(self) -> tuple[str, ...]:
        """Names of the products released."""
        return tuple(run["product"] for run in self.certificate["runs"])

    def product_name(self, name: str | None = None) -> str:
        """Return a product's full name from a name, a layout (``persons``) or, with one product, nothing."""
        if name is None:
            if len(self.products) == 1:
                return self.products[0]
            raise ConfigError(f"name one of the products {', '.join(self.products)}.")
        for product in self.products:
            if name in (product, self.product(product).layout):
                return product
        raise ConfigError(f"no product {name!r} in this release; it has {', '.join(self.products)}.")

    @cached_property
    def _files(self) -> ReleaseFolder:
        return ReleaseFolder(self.folder)

    def product(self, name: str) -> Product:
        """Return a product's declaration."""
        return self._files[name].product

    def frame(self, name: str | None = None) -> Frame:
        """Return a product's public frame of leaves."""
        return self._files[self.product_name(name)].frame

    def estimate(self, name: str | None = None) -> Histogram:
        """Return the released counts, one row per leaf of the frame."""
        released = self._files[self.product_name(name)]
        return read_mdf(released.mdf, released.product, released.frame)  # large: not kept

    def verify(
        self,
        *,
        allow_seeded: bool = False,
        allow_domain_from_records: bool = False,
        rederive: bool = False,
        signed_by: str | Path | None = None,
        tied: Release | None = None,
        workers: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> tuple[Check, ...]:
        """Check the release from its own files.

        Parameters
        ----------
        allow_seeded : bool
            Accept noise from a seed.
        allow_domain_from_records : bool
            Accept labels, levels, leaves or units that were read from the records.
        rederive : bool
            Also estimate again from the released measurements, and compare record for record: takes about as
            long as the estimation did.
        signed_by : path, optional
            File of the public key whose signature must be there.
        tied : Release, optional
            What this one is tied to: replicates of a tied run are drawn again with it.
        workers : int, optional
            Processes that estimate again.
        progress : callable(stage, done, total), optional
            Of estimating again.
        """
        from opendas.custody.signing_key import PublicKey
        from opendas.runs.verification.checks import checks_again
        from opendas.verify.release import verify_release

        key = None if signed_by is None else PublicKey.load(Path(signed_by))
        earlier = None if tied is None else tied.folder.absolute()
        checks = verify_release(
            self.folder, allow_seeded=allow_seeded, allow_domain_from_records=allow_domain_from_records
        )
        if not checks[0].ok:
            return checks
        return (*checks, *checks_again(self.folder, key, earlier, workers, progress, rederive=rederive))

    def sign(self, key: str | Path, passphrase: str | None = None) -> Path:
        """Sign the certificate with the private key in a file; returns the file of the signature.

        A certificate that is issued again, as by ``tabulate``, has to be signed again.
        """
        from opendas.custody.passphrase import Passphrase
        from opendas.custody.signing_key import SigningKey
        from opendas.report.signature import sign_release

        given = None if passphrase is None else Passphrase(passphrase)
        return sign_release(self.folder, SigningKey.load(Path(key), given))

    def mdf(self, name: str | None = None) -> Table:
        """Return the microdata of a product."""
        product = self.product_name(name)
        folder = self._files[product].mdf
        files = sorted(folder.glob("*.parquet"))
        if not files and not folder.is_dir():
            raise ConfigError(f"the release holds no microdata of {product}.")
        if not files:
            raise ConfigError(
                f"the microdata of {product} are in the pipe layout; read the text files in {folder}."
            )
        from pyarrow.dataset import dataset

        return Table(dataset([str(file) for file in files], format="parquet"))

    def table(
        self,
        name: str | Sequence[str],
        *,
        geolevel: str | Sequence[str],
        long: bool = False,
        geometry: bool | str | Path = False,
        allow_derived: bool = False,
    ) -> Table:
        """Tabulate a published table (``P1``, ``PCT12`` ...) or a query group, without writing a file.

        Parameters
        ----------
        name, geolevel : str or sequence of str
            Several of them in long form only.
        long : bool
            One row for each area and cell: geocode, name, geolevel, variable, label, value, margin.
        geometry : bool or path
            For ``to_geopandas``: a GeoPackage, GeoJSON file, shapefile or GeoParquet file with the shapes of
            the areas; or True for the point in each area that the input's geographic header gives.
        allow_derived : bool
            Also a table of what the input lacks, as its reader derived it.
        """
        from opendas.tables.tabulate import long_table, tabulate

        names = [name] if isinstance(name, str) else list(name)
        geolevels = [geolevel] if isinstance(geolevel, str) else list(geolevel)
        if long:
            data = long_table(self.path, names, geolevels, allow_derived=allow_derived)
        elif len(names) == len(geolevels) == 1:
            data = tabulate(self.path, names[0], geolevels[0], allow_derived=allow_derived)
        else:
            raise ConfigError("several tables or geolevels make one table in long form only: long=True.")
        return Table(data, self._shape(geometry, geolevels))

    def _shape(
        self, geometry: bool | str | Path, geolevels: Sequence[str]
    ) -> Callable[[pd.DataFrame], gpd.GeoDataFrame] | None:
        """Return what puts shapes to the rows of a table."""
        from opendas.files.shapes import points_frame, shapes_frame

        if geometry is False:
            return None
        if not isinstance(geometry, bool):
            path = Path(geometry)
            return lambda frame: shapes_frame(frame, _codes(frame), path)
        official = (self._files[name].official for name in self.products)
        points = next((areas.points for areas in official if areas is not None and areas.census), None)
        if points is None:
            raise ConfigError(
                "geometry=True takes points from the geographic header of a redistricting file, and this "
                "release holds none: give a file of shapes."
            )
        known: dict[str, tuple[float, float]] = {}
        for geolevel in geolevels:
            known |= points(geolevel)
        return lambda frame: points_frame(frame, [known.get(code) for code in _codes(frame)])

    def margin(
        self,
        query: str,
        *,
        geolevel: str | None = None,
        blocks: Any = None,
        level: str | float | Fraction = "0.90",
        of: FunctionOfCounts | None = None,
        pooled: bool = False,
        tied: Release | None = None,
    ) -> Table:
        """Return published counts, or figures made of them, with margins from :func:`opendas.replicates`.

        Parameters
        ----------
        query : str
            A published table (``P1``, ``H1``, ``PCT12`` ...) or a query group, measured or not.
        geolevel : str, optional
            Geolevel or entity category.
        blocks : path, sequence of geocodes, or frame, optional
            In place of `geolevel`, as for :meth:`interval`.
        level : str, float or Fraction
            Strictly between 0 and 1.
        of : callable, str or pair of str, optional
            What to make of the counts: a function that takes them as an Arrow table (``geocode``, and a
            column for each cell) and returns a frame; SQL for DuckDB over the table ``counts``; or two cells,
            of which the first is divided by the second. Columns of text name the rows of the answer.
        pooled : bool
            Of counts of the leaves, as of blocks: take the larger of the cell's own margin and that of all
            cells that came out alike. Rare cells are covered as often as promised by it.
        tied : Release, optional
            What this one is tied to: its replicates start from counts of that release too, which `pooled`
            draws again.

        Returns
        -------
        Table
            One row for each area and cell, or row and column of the answer: geocode, cell, count, margin,
            bias, standard_error.

        Raises
        ------
        ConfigError
            If the release holds no replicates, or too few for the level; if `of` fails or returns no table.
        """
        from opendas.files.area_files import areas_of
        from opendas.intervals.laws import exact_level
        from opendas.runs.simulated.pooled_margins import check_pooled, pooled_margins
        from opendas.runs.simulated.replicates import Base, check_earlier
        from opendas.tables.cells import find_table
        from opendas.tables.replicate_margins import Replicated, margins_of

        if (geolevel is None) == (blocks is None):
            raise ConfigError("give either geolevel or blocks.")
        released, name, _ = find_table(self._files, query)
        if pooled:
            base = Base(
                self.folder.absolute(), released.name, None if tied is None else tied.folder.absolute()
            )
            check_pooled(released.frame, geolevel, of)
            if tied is not None and released.product.tied is None:
                raise ConfigError(f"--tied: {released.name} is tied to no release; leave it out.")
            check_earlier(base)
            return Table(pooled_margins(base, Replicated.of(released), name, exact_level(level)))
        where: str | AreaWeights
        if geolevel is None:
            where = areas_of(blocks, released.frame, False, released.official)
        else:
            where = geolevel
        return Table(margins_of(Replicated.of(released), name, where, exact_level(level), of))

    def shortest(
        self,
        query: str,
        *,
        geolevel: str | None = None,
        blocks: Any = None,
        level: str | float | Fraction = "0.90",
    ) -> Table:
        """Return one figure for each true count, with an interval: published count or least-squares estimate.

        For each cell it is the one whose intervals are shorter on average over the areas; see
        :func:`opendas.tables.shortest.shortest_of`. Parameters as of :meth:`margin`.

        Returns
        -------
        Table
            One row for each area and cell: geocode, cell, figure, lower, upper, source.

        Raises
        ------
        ConfigError, FormatError
            If the release holds no replicates, too few for the level, or not all of its measurements.
        """
        from opendas.tables.shortest import shortest_of

        margins = self.margin(query, geolevel=geolevel, blocks=blocks, level=level).to_arrow()
        if geolevel is None:
            found = self.interval(query, blocks=blocks, level=level)
        else:
            found = self.intervals(query, geolevel=geolevel, level=level)
        return Table(shortest_of(margins, found.to_arrow()))

    def replicate_weights(self, query: str, *, geolevel: str) -> Table:
        """Return counts with replicate weights, in the layout that software for surveys reads.

        Parameters
        ----------
        query : str
            A query group.
        geolevel : str
            Geolevel or entity category.

        Returns
        -------
        Table
            Columns geocode, each factor of the query group, weight, rep1, rep2, ...; combinations that are 0
            in the release and in all replicates are left out.
        """
        from opendas.tables.cells import find_table
        from opendas.tables.replicate_margins import Replicated
        from opendas.tables.replicate_weights import replicate_weights

        released, name, _ = find_table(self._files, query)
        return Table(replicate_weights(Replicated.of(released), name, geolevel))

    @cached_property
    def _noisy(self) -> NoisyFile:
        return NoisyFile(self.path)

    def _measured(self, query: str) -> tuple[MeasuredProduct, str]:
        return self._noisy._measured(query)

    def credible(
        self,
        query: str,
        *,
        geolevel: str | None = None,
        blocks: Any = None,
        level: str | float | Fraction = "0.90",
        skip_unknown: bool = False,
        workers: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Table:
        """Return credible intervals of a release by the estimator ``posterior``, which is drawn again.

        Takes about as long as the estimation did.

        Parameters
        ----------
        query : str
        geolevel : str, optional
            Geolevel or entity category; or else `blocks`.
        blocks : path, sequence of geocodes, or frame
            As of :meth:`interval`.
        level : str, float or Fraction
        workers : int, optional
            Processes that estimate again.
        progress : callable(stage, done, total), optional

        Returns
        -------
        Table
            As of :meth:`intervals`: mean and variance of the posterior, and an interval, null where
            an area has people in a family that kept least squares.

        Raises
        ------
        ConfigError
            If the release was made by another estimator.
        FormatError
            If it does not hold all its measurements.
        """
        from opendas.files.area_files import areas_of
        from opendas.intervals.laws import exact_level
        from opendas.runs.verification.credible import areas_at, credible_intervals

        exact = exact_level(level)
        measured, name = self._measured(query)
        measured.table(name)
        if geolevel is not None:
            areas = areas_at(measured, geolevel)
        else:
            areas = areas_of(blocks, measured.tree.frame, skip_unknown, measured.official)
        return Table(credible_intervals(measured, name, areas, exact, workers=workers, progress=progress))

    def measurements(self, geolevel: str, query: str, *, product: str | None = None) -> Table:
        """Return the noisy measurements of a query group at a geolevel of the run's spine.

        One row per geounit: geocode, values, cells (null where the answers are full), variance.
        """
        released = self._files[self.product_name(product)]
        file = released.measurement(geolevel)
        if file is None:
            raise ConfigError(f"{released.name} has no measurements at geolevel {geolevel!r}.")
        canonical = released.product.workload.canonical(query)
        if canonical not in file.queries:
            raise ConfigError(
                f"{query!r} was not measured at {geolevel!r}; it has {', '.join(file.queries)}."
            )
        answers = file.read()[canonical]
        offsets = pa.array(answers.offsets.astype(np.int64))
        columns = {
            "geocode": pa.array([bytes(code).decode() for code in file.geocodes]),
            "values": pa.LargeListArray.from_arrays(offsets, pa.array(answers.values)),
            "variance": pa.array(answers.variance),
        }
        if answers.cells is not None:
            columns["cells"] = pa.LargeListArray.from_arrays(offsets, pa.array(answers.cells))
        return Table(pa.table(columns))


def read_truth(releases: Sequence[Release], truth: Run, ledger: Path | None) -> InputData:
    """Read the truth that releases are judged by, and enter the reading into the account of each."""
    from opendas.custody.account import EVALUATE
    from opendas.engines.truth import input_tag
    from opendas.runs.context.account import note_reading, tagger_of
    from opendas.runs.context.facts import refresh_certificate

    name = truth.product.name
    for release in releases:
        if name not in release.products:
            raise ConfigError(f"the release holds {', '.join(release.products)}, not {name}.")
    data = truth.read()
    for release in releases:
        frame = release.frame(name)
        if not (len(frame) == len(data.frame) and bool((frame.geocodes == data.frame.geocodes).all())):
            raise ConfigError(
                "the release and the input have different leaves; give the run file it was made with."
            )
    tagger = tagger_of(truth, lambda key: input_tag(key, data.histogram))
    outs = [None if release.folder == release.path else release.path for release in releases]
    for out in outs or [None]:
        note_reading(EVALUATE, tagger, out=out, product=name, ledger=ledger)
    for release, out in zip(releases, outs, strict=True):
        if out is not None and refresh_certificate(out, release.folder):
            vars(release).pop("certificate", None)  # it was issued again
    return data
