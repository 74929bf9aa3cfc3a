"""Readers: official files and users' tables become a frame and a histogram."""

from opendas.readers.input.paths import expand_paths
from opendas.readers.input.spec import InputData, Reader, ReaderSpec, UnitsSpec
from opendas.readers.registry import READERS, make_reader

__all__ = ["READERS", "InputData", "Reader", "ReaderSpec", "UnitsSpec", "expand_paths", "make_reader"]
