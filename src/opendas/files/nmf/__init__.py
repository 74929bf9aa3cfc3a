"""Noisy measurement files: ours and the Bureau's."""
