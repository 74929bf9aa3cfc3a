"""Marked records: plant values that can be recognised, run the commands, and look for them everywhere.

:mod:`audit.marked.marks` says in how many forms a value can stand in a file, :mod:`audit.marked.scan` looks
for them, inside Parquet, zips and compressed streams too, :mod:`audit.marked.sandbox` runs commands and keeps
what they write, delete and say. Tests: ``tests/system/test_marked_records.py``.
"""
