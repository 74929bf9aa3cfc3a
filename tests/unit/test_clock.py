"""Peak memory is that of the program, not of what started it."""

from __future__ import annotations

import subprocess
import sys

PEAK = "from opendas.runs.progress.clock import peak_rss_mb; print(peak_rss_mb())"
LARGE = f"""
import subprocess, sys
held = bytearray(b"x" * (400 << 20))
subprocess.run([sys.executable, "-c", {PEAK!r}], check=True)
"""


def test_what_a_large_program_starts_has_its_own_peak() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    assert 1 < float(done.stdout) < 200
