"""OpenDAS."""
