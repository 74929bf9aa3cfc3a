"""Published microdata that no release of this program holds, as the Bureau publishes, and their margins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from opendas.errors import ConfigError
from opendas.files.area_files import areas_of
from opendas.intervals.laws import exact_level
from opendas.readers.paths import expand_paths
from opendas.runs.run import Run, load
from opendas.schema.histogram import Histogram
from opendas.tables.figures import FunctionOfCounts
from opendas.tables.frames import Table
from opendas.tables.replicate_margins import Replicated, margins_of
from opendas.tables.replicate_weights import replicate_weights

_READERS = ("mdf", "ppmf")


@dataclass(frozen=True, slots=True)
class MicrodataBase:
    """Microdata and a run file, as :class:`opendas.runs.simulated.replicates.Base` is a release.

    Parameters
    ----------
    path, run_file : Path
    product : str
    """

    path: Path
    run_file: Path
    product: str

    def read(self) -> tuple[Run, Histogram]:
        """Return the run on its frame and spine, and the published counts in the frame's order.

        Raises
        ------
        ConfigError
            If the run file does not read microdata, or is of several products.
        """
        run = load(self.run_file, need_input=False)
        reader = run.resolved.reader
        if reader.reader not in _READERS:
            raise ConfigError(
                f"{self.run_file}: its reader is {reader.reader!r}, and published microdata are read by "
                f"{' or '.join(map(repr, _READERS))}."
            )
        if run.companion is not None:
            raise ConfigError(f"{run.product.name} is tied to another product: its replicates are not drawn.")
        # These records are public: the frame may come from them.
        public = replace(reader, paths=expand_paths(self.path, Path(), "PATH"), plan_from_records=True)
        run = run.changed(reader=public)
        data = run.read()
        return run.on_frame(data.frame), data.histogram


class PublishedMicrodata:
    """Microdata that an office published, and a run file with an algorithm like the one they come from.

    Parameters
    ----------
    path : path
        A file or folder of the MDF or PPMF.
    run_file : path
        Run file with reader ``mdf`` or ``ppmf``: product, geography, budget. Its own path of the input is not
        looked at.
    replicates : path, optional
        Folder of the replicates; by default beside `path`, with ``.replicates`` at the end of its name.
    """

    def __init__(self, path: str | Path, run_file: str | Path, replicates: str | Path | None = None) -> None:
        self.path = Path(path)
        given = self.path.absolute()
        self.folder = (
            given.with_name(given.name + ".replicates") if replicates is None else Path(replicates).absolute()
        )
        product = load(run_file, need_input=False).product.name
        self.base = MicrodataBase(given, Path(run_file).absolute(), product)

    def __repr__(self) -> str:
        return f"PublishedMicrodata({self.base.product} in {self.path.name!r})"

    @property
    def replicates_file(self) -> Path:
        """The file of the replicates, which is there once they were drawn."""
        return self.folder / f"{self.base.product}.parquet"

    @cached_property
    def _replicated(self) -> Replicated:
        run, counts = self.base.read()
        return Replicated(run.product, run.frame, counts, self.replicates_file)

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
        base = self._replicated
        where = areas_of(blocks, base.frame, False) if geolevel is None else geolevel
        return Table(margins_of(base, query, where, exact_level(level), of))

    def replicate_weights(self, query: str, *, geolevel: str) -> Table:
        """Return counts with replicate weights, as :meth:`opendas.Release.replicate_weights`."""
        return Table(replicate_weights(self._replicated, query, geolevel))
