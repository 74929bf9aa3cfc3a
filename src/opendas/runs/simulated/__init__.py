"""Runs on public counts with the noise of a seed: simulations, forecasts, and the replicates of a release."""
