"""Engines: where and in what order the pure functions run. No engine changes a result."""
