"""What compiled code prints does not reach standard output."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes, os
from opendas.arrays.quiet import chatter_to_stderr

puts = ctypes.CDLL(None).puts
puts(b"before")
with chatter_to_stderr():
    puts(b"chatter")
    os.write(1, b"more chatter\\n")
puts(b"after")
try:
    with chatter_to_stderr():
        puts(b"last words")
        raise ValueError
except ValueError:
    print("caught")
{more}
"""


def run(more: str = "", **streams: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", SCRIPT.format(more=more)], text=True, check=True, **streams
    )


def test_chatter_goes_to_standard_error() -> None:
    done = run(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert sorted(done.stdout.split()) == ["after", "before", "caught"]
    assert sorted(done.stderr.splitlines()) == ["chatter", "last words", "more chatter"]


def test_nothing_is_left_open() -> None:
    count = "print(len(os.listdir('/dev/fd')))"
    one = run(count, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout.split()
    many = run(
        "for _ in range(50):\n    with chatter_to_stderr():\n        pass\n" + count,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ).stdout.split()
    assert sorted(one) == sorted(many)
