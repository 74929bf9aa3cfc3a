"""One input after the other: writes the damaged files, calls the target, judges."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType

from fuzz.damage import damaged
from fuzz.oracle import Defect, Outcome, judged
from fuzz.seeds import Files
from fuzz.targets import Target

__all__ = ["Harness"]


class Harness:
    """A folder in which a target reads one damaged example after the other.

    Parameters
    ----------
    target : Target
    seconds : float, optional
        Most processor time for an input. Campaigns set it; tests do not depend on how busy a machine is.
    """

    def __init__(self, target: Target, seconds: float | None = None) -> None:
        self.target = target
        self.seconds = seconds
        self.wanted = target.wanted
        self.secrets = target.secrets
        self._folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{target.name}-"))
        self._there: dict[str, bytes] = {}

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, files: Files) -> None:
        if self.target.writes or not self._there:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._there = {}
        for name, data in files.items():
            if self._there.get(name) != data:
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                self._there[name] = data
        for key in self._folder.glob("**/keys/*.key"):
            key.chmod(0o600)

    def files(self, data: bytes) -> dict[str, bytes]:
        """Return the example with the damage that `data` stands for."""
        return damaged(self.target.files, data, self.wanted)

    def run(self, data: bytes) -> Outcome:
        """Judge one input.

        Raises
        ------
        Defect
            If a rule of the oracle is broken.
        """
        return self.run_files(self.files(data))

    def run_files(self, files: Files) -> Outcome:
        """Judge an example as it stands; see :meth:`run`."""
        self._write(files)
        started = time.process_time()
        outcome = judged(self.target.call, self._folder, self.wanted, self.secrets)
        if self.seconds is not None and time.process_time() - started > self.seconds:
            raise Defect(f"took more than {self.seconds} s")
        return outcome
