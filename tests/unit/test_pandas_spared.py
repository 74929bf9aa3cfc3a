"""Arrow without pandas, where nobody has series."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pandas")

CODE = """
import sys
import pyarrow as pa
from opendas.engines.pandas_spared import spare_pandas
before = list(sys.meta_path)
{first}
spare_pandas()
assert sys.meta_path == before
table = pa.table({{"a": [1, 2], "b": ["x", None]}})
print("pandas" in sys.modules)
frame = table.to_pandas()
import pandas
assert list(frame["a"]) == [1, 2] and isinstance(frame, pandas.DataFrame)
assert pa.Table.from_pandas(frame).column("a").to_pylist() == [1, 2]
"""


@pytest.mark.parametrize(("first", "loaded"), [("", "False"), ("import pandas", "True")])
def test_pandas_is_not_loaded_until_it_is_asked_for(first: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(first=first)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [loaded]
