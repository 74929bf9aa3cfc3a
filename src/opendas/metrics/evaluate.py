"""Everything that ``opendas evaluate`` says, from truth and estimate."""

from __future__ import annotations

from dataclasses import dataclass

from opendas.geography.frame import Frame
from opendas.metrics.diversity import BlauRow, blau_rows, has_groups
from opendas.metrics.errors import BinnedRow, ErrorRow, level_errors, levels_of, population_rows, query_rows
from opendas.metrics.figures import FigureRow, figure_rows
from opendas.metrics.redistricting import Criterion, criterion
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product

__all__ = ["FORMAT", "Evaluation", "evaluate"]

FORMAT = "opendas evaluation 1"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Errors of an estimate. Confidential: each figure is a function of the truth.

    Parameters
    ----------
    product : str
    errors : tuple of ErrorRow
        Every declared query group at every geolevel asked for.
    by_population : tuple of BinnedRow
    by_blau_quintile : tuple of BlauRow
    redistricting : tuple of Criterion
    figures : tuple of FigureRow
        The last three are empty for products without race and ethnicity groups, or geolevels they need.
    """

    product: str
    errors: tuple[ErrorRow, ...]
    by_population: tuple[BinnedRow, ...]
    by_blau_quintile: tuple[BlauRow, ...]
    redistricting: tuple[Criterion, ...]
    figures: tuple[FigureRow, ...]

    @property
    def rows(self) -> list[dict[str, object]]:
        """The rows of ``evaluate --json``."""
        return [row.to_dict() for row in self.errors]

    def to_dict(self) -> dict[str, object]:
        """Strict JSON: no infinity, no NaN; a mean over no geounit is null."""
        return {
            "format": FORMAT,
            "confidential": True,
            "product": self.product,
            "rows": self.rows,
            "by_population": [row.to_dict() for row in self.by_population],
            "by_blau_quintile": [row.to_dict() for row in self.by_blau_quintile],
            "redistricting": [row.to_dict() for row in self.redistricting],
            "figures": [row.to_dict() for row in self.figures],
        }


def evaluate(
    truth: Histogram, estimate: Histogram, frame: Frame, product: Product, *, entities: bool = False
) -> Evaluation:
    """Measure the errors of an estimate.

    Parameters
    ----------
    truth, estimate : Histogram
        Rows are the leaves of `frame`, in its order.
    frame : Frame
        Official geolevels and entity codes: always the official geography, whatever spine the run used.
    product : Product
    entities : bool
        Give :attr:`Evaluation.errors` and :attr:`Evaluation.by_population` at entity categories too. The
        redistricting criterion and the figures always use them.

    Returns
    -------
    Evaluation

    Raises
    ------
    DataError
        If the histograms do not belong to the frame or to each other.
    """
    every = level_errors(truth, estimate, frame, levels_of(frame, entities=True))
    official = every[: len(frame.geolevels)]
    reported = every if entities else official
    groups = has_groups(product)
    return Evaluation(
        product=product.name,
        errors=query_rows(reported, product),
        by_population=population_rows(reported, product),
        by_blau_quintile=blau_rows(official, product) if groups else (),
        redistricting=criterion(every, product) if groups else (),
        figures=figure_rows({level.units.geolevel: level for level in every}, frame, product, groups=groups),
    )
