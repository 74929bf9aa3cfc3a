"""What the paths share: a step runs, is timed and said; a path fails at the first step that does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")
OPENDAS = str(Path(sys.executable).with_name("opendas"))


def step(what: str, do: Callable[[], Answer]) -> Answer:
    """Do one thing, and say what it was and how long it took."""
    began = time.monotonic()
    answer = do()
    print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)
    return answer


def opendas(*arguments: str | Path, refused: str = "") -> str:
    """Run a command of the installed program; `refused` is what a refusal must say."""
    command = [OPENDAS, *map(str, arguments)]

    def run() -> str:
        done = subprocess.run(command, capture_output=True, text=True)
        if (done.returncode != 0) != bool(refused) or refused not in done.stderr:
            sys.exit(f"opendas {' '.join(command[1:])}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    return step(f"opendas {' '.join(map(str, arguments))}", run)
