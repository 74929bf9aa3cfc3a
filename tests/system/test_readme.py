"""The example of the README runs as it stands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert len(code.strip().splitlines()) <= 12
    names: dict[str, object] = {}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, names)
    assert said.getvalue().strip().endswith("True")
    mdf, p1 = names["mdf"], names["p1"]
    assert len(mdf) > 1000  # type: ignore[arg-type]
    assert len(p1) > 1  # type: ignore[arg-type]
