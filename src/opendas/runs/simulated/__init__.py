"""Runs on public counts with the noise of a seed: simulations, and the replicates of a release."""
