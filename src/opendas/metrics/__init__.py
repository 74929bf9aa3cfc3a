"""Accuracy: pure functions of truth and estimate. Every result is confidential."""

from opendas.metrics.errors import BinnedRow, ErrorRow, errors_by_population, errors_by_query
from opendas.metrics.evaluate import Evaluation, evaluate
from opendas.metrics.statistics import QUANTILES, ErrorSummary

__all__ = [
    "QUANTILES",
    "BinnedRow",
    "ErrorRow",
    "ErrorSummary",
    "Evaluation",
    "errors_by_population",
    "errors_by_query",
    "evaluate",
]
