"""Write the microdata of an estimate in one go."""

from __future__ import annotations

from pathlib import Path

from opendas.files.mdf.writing import MdfFiles
from opendas.geography.frame import Frame
from opendas.schema.histogram import Histogram
from opendas.schema.product import Product


def write_mdf(folder: Path, product: Product, frame: Frame, estimate: Histogram, fmt: str = "parquet") -> int:
    """Write every part file, and return the number of records."""
    files = MdfFiles(folder, product, frame, estimate.take, fmt)
    for file in files:
        file.write()
    return files.records
