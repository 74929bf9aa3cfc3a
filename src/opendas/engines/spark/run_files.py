"""The files of a run for its executors: in a folder that all see, or brought and fetched by the driver.

Where executors see the run's folders they read and write there. Where they do not, the driver does it for
them: they send what they found, encrypted, and it writes that where they would have written it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from opendas.engines.spark.channel import LARGEST, Listener, Ticket
from opendas.engines.spark.parts import write_here
from opendas.errors import EnvironmentFailure, PrivacyError

__all__ = ["FileService", "RunFiles", "SentFiles", "SharedFiles"]

_HEAD: Final = struct.Struct("<cH")
"""Of a question: what is wanted, and the length of the path that follows; then what is to be written."""
_READ: Final = b"r"
_WRITE: Final = b"w"
_DONE: Final = b"+"
_FAILED: Final = b"-"


class RunFiles(Protocol):
    """How an executor reaches files of the run; picklable."""

    def read(self, path: Path) -> bytes:
        """Return what a file of the run holds."""
        ...

    def write(self, path: Path, data: bytes) -> None:
        """Write a file of the run in one step."""
        ...


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Files in a folder that executors and driver see."""

    def read(self, path: Path) -> bytes:
        """Return what a file holds."""
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        """Write a file in one step; see :func:`opendas.engines.spark.parts.write_here`."""
        write_here(path, data)


@dataclass(frozen=True, slots=True)
class SentFiles:
    """Files that only the driver sees.

    Parameters
    ----------
    driver : Ticket
        Of a :class:`FileService`.
    """

    driver: Ticket

    def read(self, path: Path) -> bytes:
        """Return what a file holds."""
        return self._ask(_READ, path, b"")

    def write(self, path: Path, data: bytes) -> None:
        """Have the driver write a file in one step."""
        self._ask(_WRITE, path, data)

    def _ask(self, wanted: bytes, path: Path, data: bytes) -> bytes:
        name = str(path).encode()
        answer = self.driver.ask(_HEAD.pack(wanted, len(name)) + name + data)
        if answer[:1] != _DONE:
            raise EnvironmentFailure(answer[1:].decode())
        return answer[1:]


class FileService:
    """Reads and writes files of a run for executors that do not see them, as long as the block lasts.

    Use it as a context manager.

    Parameters
    ----------
    readable, writable : mapping of Path to str
        Folders, with the ending of the files in and below them that executors may ask for.
    host : str
    bind : str, optional
        See :class:`opendas.engines.spark.channel.Listener`.
    """

    def __init__(
        self, readable: Mapping[Path, str], writable: Mapping[Path, str], host: str, bind: str | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._folders = {_READ: dict(readable), _WRITE: dict(writable)}
        self._listener = Listener(b"files", self._serve, LARGEST, host, bind)

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.__exit__(kind, error, trace)

    @property
    def files(self) -> SentFiles:
        """What to send to executors."""
        return SentFiles(self._listener.ticket)

    def _serve(self, question: bytes) -> bytes:
        if len(question) < _HEAD.size:
            raise ValueError("a question to the driver has a head")
        wanted, length = _HEAD.unpack_from(question)
        path = Path(question[_HEAD.size : _HEAD.size + length].decode())
        self._refuse_other(wanted, path)
        try:
            if wanted == _READ:
                return _DONE + path.read_bytes()
            with self._lock:  # temporary files of a process have one name
                write_here(path, question[_HEAD.size + length :])
        except EnvironmentFailure as error:
            why = getattr(error.__cause__, "strerror", None) or type(error.__cause__).__name__
            text = (
                f"the driver could not write {path.name} ({why}): check the space and permissions of --out."
            )
            return _FAILED + text.encode()
        except OSError as error:
            return _FAILED + f"the driver cannot read {path.name} ({type(error).__name__})".encode()
        return _DONE

    def _refuse_other(self, wanted: bytes, path: Path) -> None:
        """Refuse a file that is none of the run's, through whatever links."""
        place = path.resolve()
        if not any(
            place.is_relative_to(folder.resolve()) and place.suffix == ending
            for folder, ending in self._folders.get(wanted, {}).items()
        ):
            raise PrivacyError("an executor asked for a file that is not for it.")
