"""Runs on measurements that others took and published."""
