"""Accuracy: pure functions of truth and estimate. Every result is confidential."""
