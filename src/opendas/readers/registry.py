"""The readers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from opendas.errors import ConfigError
from opendas.readers.base import Reader, ReaderSpec
from opendas.readers.cef.reader import CefReader
from opendas.readers.frame.block_assignment import AssignedReader
from opendas.readers.long_form import HistogramReader, RecordsReader
from opendas.readers.microdata import MdfReader, PpmfReader
from opendas.readers.pl94.pl94_2010 import Pl94Reader2010
from opendas.readers.pl94.pl94_2020 import Pl94Reader2020
from opendas.readers.remote import RemoteInput

__all__ = ["READERS", "make_reader"]

READERS: Mapping[str, Callable[[ReaderSpec], Reader]] = MappingProxyType(
    {
        "pl94-2010": Pl94Reader2010,
        "pl94-2020": Pl94Reader2020,
        "ppmf": PpmfReader,
        "mdf": MdfReader,
        "cef": CefReader,
        "records": RecordsReader,
        "histogram": HistogramReader,
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
    return AssignedReader(reader, spec) if spec.block_assignment else reader


def _one_of(remote: RemoteInput) -> str:
    return next(address for address in (*remote.paths, remote.frame, remote.units) if address)
