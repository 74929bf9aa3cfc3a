"""Accuracy: pure functions of truth and estimate. Every result is confidential."""

from opendas.metrics.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
