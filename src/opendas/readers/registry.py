"""The readers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from opendas.errors import ConfigError
from opendas.files.storage.remote import RemoteInput
from opendas.readers.cef.reader import CefReader
from opendas.readers.frame.block_assignment import AssignedReader
from opendas.readers.input.spec import Reader, ReaderSpec
from opendas.readers.pl94.reader import Pl94Reader
from opendas.readers.row_readers import RowReader

READERS: Mapping[str, Callable[[ReaderSpec], Reader]] = MappingProxyType(
    {
        "pl94-2010": Pl94Reader,
        "pl94-2020": Pl94Reader,
        "ppmf": RowReader,
        "mdf": RowReader,
        "cef": CefReader,
        "records": RowReader,
        "histogram": RowReader,
    }
)
"""Every reader a run file may name."""


def make_reader(spec: ReaderSpec) -> Reader:
    """Return the reader that `spec` names.

    Raises
    ------
    ConfigError
        If there is none of that name, or the input stands at addresses, which readers do not open.
    """
    if spec.remote:
        raise ConfigError(
            f"the input is at {_one_of(spec.remote)}, which only a run with --engine spark reads; "
            "for anything else copy it to this machine."
        )
    if spec.reader not in READERS:
        raise ConfigError(f"no reader {spec.reader!r}; there are {', '.join(READERS)}.")
    reader = READERS[spec.reader](spec)
    return AssignedReader(spec, reader) if spec.block_assignment else reader


def _one_of(remote: RemoteInput) -> str:
    return next(address for address in (*remote.paths, remote.frame, remote.units) if address)
