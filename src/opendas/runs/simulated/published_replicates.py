"""Published microdata that no release of this program holds, as the Bureau publishes, and their margins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from opendas.arrays import Codes
from opendas.custody.folders import make_folder
from opendas.errors import ConfigError
from opendas.files.area_files import areas_of
from opendas.files.replicate_files import (
    About,
    ReplicateFile,
    counts_digest,
    difference,
    replicate_sink,
    write_replicate,
)
from opendas.files.storage.addresses import RemotePath, copied, located
from opendas.geography.frame import Frame, official_codes
from opendas.intervals.laws import exact_level
from opendas.readers.columns.csv_parquet import column_names
from opendas.readers.input.paths import expand_paths, is_data
from opendas.readers.microdata import products_of, public_microdata
from opendas.readers.registry import make_reader
from opendas.runs.context.run import Run, load
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product
from opendas.tables.cells import product_table
from opendas.tables.figures import FunctionOfCounts
from opendas.tables.frames import Table
from opendas.tables.replicate_margins import Replicated, margins_of
from opendas.tables.replicate_weights import replicate_weights

_READERS = ("mdf", "ppmf")


@dataclass(frozen=True, slots=True)
class MicrodataBase:
    """Microdata and a run file, as :class:`opendas.runs.simulated.replicates.Base` is a release."""

    path: Path
    run_file: Path
    product: str

    def read(self) -> tuple[Run, Histogram]:
        """Return the run on its frame and spine, and the published counts in the frame's order."""
        run = load(self.run_file, need_input=False)
        reader = run.resolved.reader
        if reader.reader not in _READERS:
            raise ConfigError(
                f"{self.run_file}: its reader is {reader.reader!r}, and published microdata are read by "
                f"{' or '.join(map(repr, _READERS))}."
            )
        if run.companion is not None:
            raise ConfigError(
                f"{self.run_file}: {run.product.name} has a second histogram, {run.companion.product.name}, "
                "and replicates of published microdata are drawn only for products with one."
            )
        # These records are public: the frame may come from them.
        public = replace(reader, paths=expand_paths(self.path, Path(), "PATH"), plan_from_records=True)
        run = run.changed(reader=public)
        data = run.read()
        return run.on_frame(data.frame), data.histogram


@dataclass(frozen=True, slots=True)
class CensusMicrodata:
    """Microdata of a census product, as :class:`MicrodataBase`; no run file says how they were made."""

    path: Path  # a file, zip or folder
    product: str

    def read(self) -> tuple[Product, Frame, Histogram]:
        """Return the product, the blocks that have records, and the counts."""
        files = expand_paths(self.path, Path(), "PATH")
        product = {one.name: one for one in products_of(column_names(files[0]))}.get(self.product)
        if product is None:
            raise ConfigError(f"{self.path}: no microdata of {self.product}.")
        data = make_reader(public_microdata(files, product)).read()
        return product, data.frame, data.histogram

    def with_leaves(self, geocodes: Codes) -> tuple[Product, Frame, Histogram]:
        """Return the same on these blocks too, which have no records."""
        product, frame, counts = self.read()
        codes = np.union1d(frame.geocodes, geocodes)
        return product, _frame(codes), _on_leaves(counts, frame.geocodes, codes)


def _frame(codes: Codes) -> Frame:
    root = "us" if len(np.unique(codes.astype("S2"))) > 1 else "state"
    return Frame(codes, official_codes(codes, root), "block", {})


def _on_leaves(counts: Histogram, own: Codes, codes: Codes) -> Histogram:
    """Return counts over more leaves than their own, which are among them; both ascending."""
    lengths = np.zeros(len(codes), dtype=np.int64)
    lengths[np.searchsorted(codes, own)] = np.diff(counts.indptr)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Histogram(indptr, counts.cells, counts.counts, counts.size)


def published_replicates(folder: Path, product: str, base: Path) -> tuple[Path, ...]:
    """Return the files or folders of published replicates of a product, in the order of their numbers.

    The last number in a name is that of the replicate; `base`, and what ends in 0, is what they are of.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.absolute() == base:
            continue
        number = re.search(r"(\d+)\D*$", path.name.partition(".")[0])
        files = expand_paths(path, Path(), "PATH") if path.is_dir() or is_data(Path(path.name)) else ()
        known = products_of(column_names(files[0])) if number and files else ()
        if number is None or int(number[1]) == 0 or product not in (one.name for one in known):
            continue
        other = found.setdefault(int(number[1]), path)
        if other is not path:
            raise ConfigError(f"{folder}: {other.name} and {path.name} are both replicate {number[1]}.")
    missing = sorted(set(range(1, max(found, default=0) + 1)) - set(found))
    if missing:
        raise ConfigError(
            f"{folder}: replicate {missing[0]} of {product} is missing, and {max(found)} is there."
        )
    if len(found) < 2:
        raise ConfigError(
            f"{folder}: {len(found)} of two or more replicates of {product} found; expected files or folders "
            "whose names end in 1, 2, ..., in the layout of the microdata."
        )
    return tuple(found[number] for number in sorted(found))


def take_replicates(
    base: CensusMicrodata,
    folder: Path,
    path: Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> ReplicateFile:
    """Write published replicates of microdata into a file like that of our own.

    `folder`: of the replicates; see :func:`published_replicates`.
    """
    product, own, counts = base.read()
    sources = published_replicates(folder, base.product, base.path)
    make_folder(path.parent)
    with TemporaryDirectory(prefix="replicates-", dir=path.parent) as scratch:
        parts = [Path(scratch, f"{number:06d}.parquet") for number in range(1, len(sources) + 1)]
        about = About(base.product, len(sources), 0, "", "published")
        for number, (source, part) in enumerate(zip(sources, parts, strict=True), start=1):
            _, frame, published = CensusMicrodata(source, base.product).with_leaves(own.geocodes)
            here = _on_leaves(counts, own.geocodes, frame.geocodes)
            with replicate_sink(part, replace(about, runs=number)) as sink:
                write_replicate(sink, number, frame, difference(published, here))
            if progress is not None:
                progress("replicates", number, len(sources))
        changed = np.union1d(own.geocodes, np.concatenate([ReplicateFile(part).leaves() for part in parts]))
        frame, counts = _frame(changed), _on_leaves(counts, own.geocodes, changed)
        with replicate_sink(path, replace(about, counts=counts_digest(counts))) as sink:
            for number, part in enumerate(parts, start=1):
                found = ReplicateFile(part).differences(number, frame, product.schema.size)
                write_replicate(sink, number, frame, found)
    return ReplicateFile(path)


class PublishedMicrodata:
    """Microdata that an office published, with its replicates; or with a run file to draw them.

    Parameters
    ----------
    path : path
        A file or folder of the MDF or PPMF. It may stand at an address: then every method that reads it
        copies it to this machine for as long as it reads.
    run_file : path, optional
        Run file with reader ``mdf`` or ``ppmf``: product, geography, budget of an algorithm like the one that
        they come from. Its own path of the input is not looked at.
    replicates : path, optional
        Folder of the replicates; by default beside `path`, with ``.replicates`` at the end of its name.

    Raises
    ------
    ConfigError
        If `path` is an address and no folder is given: replicates stand on this machine.
    """

    def __init__(
        self, path: str | Path, run_file: str | Path | None = None, replicates: str | Path | None = None
    ) -> None:
        self.path = located(path)
        given = self.path.absolute()
        if replicates is None and isinstance(given, RemotePath):
            raise ConfigError(f"{given}: give the folder of its replicates on this machine, with --to.")
        self.folder = (
            given.with_name(given.name + ".replicates") if replicates is None else Path(replicates).absolute()
        )
        self._run_file = None if run_file is None else Path(run_file).absolute()

    def __repr__(self) -> str:
        return f"PublishedMicrodata({self.path.name!r})"

    @contextmanager
    def at_hand(self) -> Iterator[PublishedMicrodata]:
        """Yield the same microdata as files of this machine, and remove what was copied afterwards."""
        if not isinstance(self.path, RemotePath):
            yield self
            return
        with copied(self.path) as here:
            yield PublishedMicrodata(here, self._run_file, self.folder)

    @cached_property
    def base(self) -> MicrodataBase:
        """What replicates are drawn from.

        Raises
        ------
        ConfigError
            If there is no run file to draw them with.
        """
        if self._run_file is None:
            raise ConfigError(f"{self.path}: give a run file to draw replicates with, or published ones.")
        product = load(self._run_file, need_input=False).product.name
        return MicrodataBase(self.path.absolute(), self._run_file, product)

    @property
    def replicates_file(self) -> Path:
        """The file of the replicates that are drawn, which is there once they were."""
        return self.folder / f"{self.base.product}.parquet"

    def take_replicates(
        self,
        folder: str | Path,
        product: str | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> dict[str, Path]:
        """Read the replicates that the office published, so that :meth:`margin` has margins.

        Parameters
        ----------
        folder : path
            A file or folder for each, in the layout of the microdata, whose name ends in its number. It may
            stand at an address, and is copied while it is read.
        product : str, optional
            By default all that the microdata count.

        Returns
        -------
        dict of product name to path
        """
        place = located(folder)
        with (
            self.at_hand() as own,
            copied(place) if isinstance(place, RemotePath) else nullcontext(place) as drawn,
        ):
            here = own.path.absolute()
            known = [one.name for one in products_of(column_names(expand_paths(here, Path(), "PATH")[0]))]
            if not known or (product is not None and product not in known):
                asked = "" if product is None else f", not of {product}"
                raise ConfigError(
                    f"{self.path} holds microdata of {', '.join(known) or 'no product of the census'}{asked}."
                )
            return {
                name: take_replicates(
                    CensusMicrodata(here, name), drawn, self.folder / f"{name}.parquet", progress
                ).path
                for name in (known if product is None else [product])
            }

    def _replicated(self, query: str) -> Replicated:
        """Return the product that knows a query, and its replicates; read once each."""
        if self._run_file is not None:
            run, counts = self.base.read()
            return Replicated(run.product, run.frame, counts, self.replicates_file)
        files = sorted(self.folder.glob("*.parquet"))
        if not files:
            raise ConfigError(
                f"{self.path}: there are no replicates in {self.folder}: opendas replicates PATH --published "
                "DIR reads published ones, and --run RUN.toml draws them."
            )
        reasons = []
        for path in files:
            base = CensusMicrodata(self.path.absolute(), path.stem)
            product, frame, counts = base.with_leaves(ReplicateFile(path).leaves())
            try:
                product_table(product, query)
            except ConfigError as error:
                reasons.append(str(error))
                continue
            return Replicated(product, frame, counts, path)
        raise ConfigError(" ".join(reasons))

    def margin(
        self,
        query: str,
        *,
        geolevel: str | None = None,
        blocks: Any = None,
        level: str | float | Fraction = "0.90",
        of: FunctionOfCounts | None = None,
    ) -> Table:
        """Return published counts with their margins, as :meth:`opendas.Release.margin`."""
        if (geolevel is None) == (blocks is None):
            raise ConfigError("give either geolevel or blocks.")
        with self.at_hand() as own:
            base = own._replicated(query)
        where = areas_of(blocks, base.frame, False) if geolevel is None else geolevel
        return Table(margins_of(base, query, where, exact_level(level), of))

    def replicate_weights(self, query: str, *, geolevel: str) -> Table:
        """Return counts with replicate weights, as :meth:`opendas.Release.replicate_weights`."""
        with self.at_hand() as own:
            return Table(replicate_weights(own._replicated(query), query, geolevel))
