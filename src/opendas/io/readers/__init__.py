"""Readers: official files and users' tables become a frame and a histogram."""

from opendas.io.readers.base import InputData, Reader, ReaderSpec, UnitsSpec
from opendas.io.readers.paths import expand_paths
from opendas.io.readers.registry import READERS, make_reader

__all__ = ["READERS", "InputData", "Reader", "ReaderSpec", "UnitsSpec", "expand_paths", "make_reader"]
