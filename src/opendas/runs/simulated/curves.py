"""Curves of an experiment: errors against the privacy loss, as means over seeds."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from opendas.errors import ConfigError
from opendas.tables.frames import missing

if TYPE_CHECKING:
    import pandas as pd

CURVE = ["plan", "estimator", "geolevel", "query", "metric"]
"""Columns that identify a curve."""

LOSSES = ("rho_exact", "epsilon_exact")


def curves(errors: pd.DataFrame) -> pd.DataFrame:
    """Return error against privacy loss: means over the seeds of an experiment.

    Parameters
    ----------
    errors : pandas.DataFrame
        The frame of :func:`opendas.experiment`, or some of its rows.

    Returns
    -------
    pandas.DataFrame
        A row for each ``plan``, ``estimator``, ``geolevel``, ``query``, ``metric`` and loss; the loss rises
        along a curve. Further columns: ``rho_exact`` (``epsilon_exact``), the loss as exact text; ``loss``,
        as a float; ``geounits``; ``seeds``, their number; ``mean`` and its ``standard_error`` in counts,
        NaN for one seed; ``confidential``.

    Raises
    ------
    ConfigError
        If a column is missing, or a curve has two rows with the same loss and seed.

    Examples
    --------
    >>> import pandas as pd
    >>> errors = pd.DataFrame({"plan": "run", "estimator": "topdown", "geolevel": "block", "query": "total",
    ...     "metric": "mean_abs_error", "rho_exact": ["2", "2", "1/2", "1/2"], "seed": [0, 1, 0, 1],
    ...     "geounits": 24, "value": [1.0, 2.0, 3.0, 5.0], "confidential": False})
    >>> curves(errors)[["rho_exact", "loss", "seeds", "mean", "standard_error"]]
      rho_exact  loss  seeds  mean  standard_error
    0       1/2   0.5      2   4.0             1.0
    1         2   2.0      2   1.5             0.5
    """
    try:
        import pandas
    except ImportError as error:
        raise missing("pandas") from error
    columns = set(errors.columns) if isinstance(errors, pandas.DataFrame) else set()
    exact = next((each for each in LOSSES if each in columns), " or ".join(LOSSES))
    keys = [*CURVE, exact]
    absent = [each for each in (*keys, "seed", "geounits", "value", "confidential") if each not in columns]
    if absent:
        raise ConfigError(
            f"errors: no {', '.join(absent)}. Give the pandas frame that od.experiment returns."
        )
    if errors.duplicated([*keys, "seed"]).any():
        raise ConfigError("errors: a curve has a loss and seed twice. Give the frame of one experiment.")
    found = (
        errors.groupby(keys, sort=False)
        .agg(
            geounits=("geounits", "first"),
            seeds=("value", "size"),
            mean=("value", "mean"),
            standard_error=("value", "sem"),
            confidential=("confidential", "any"),
        )
        .reset_index()
    )
    found.insert(len(keys), "loss", [float(Fraction(str(loss))) for loss in found[exact]])
    curve = found.groupby(CURVE, sort=False).ngroup()
    found = found.assign(_curve=curve).sort_values(["_curve", "loss"], kind="stable", ignore_index=True)
    found.attrs.update(errors.attrs)
    return found.drop(columns="_curve")
