"""Whatever census records and block assignments hold, they give data or an OpendasError, nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.made_cef_files import write_cef
from support.seeds import examples

from opendas.errors import DataError, Finding, OpendasError
from opendas.geography.frame import Frame, official_codes
from opendas.readers import InputData, ReaderSpec, make_reader
from opendas.readers.cef.records import UNITS, read_records
from opendas.readers.columns.findings import FindingLog
from opendas.readers.frame.block_assignment import with_assignments
from opendas.schema.pl94 import pl94_persons

QUICK = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
FILES = ("CEF20_PER_99.txt", "CEF20_UNIT_99.txt", "GRFC_99.txt")
BLOCKS = np.array([b"980010001001000", b"980010001001001"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    write_cef(folder, 50, 1)
    return {name: (folder / name).read_bytes() for name in FILES}


def spec_of(folder: Path) -> ReaderSpec:
    person, unit, block = (folder / name for name in FILES)
    return ReaderSpec("cef", (person,), pl94_persons(), unit_records=(unit,), block_files=(block,))


def outcome(folder: Path) -> tuple[InputData | None, tuple[Finding, ...]]:
    try:
        return make_reader(spec_of(folder)).read(), ()
    except DataError as error:
        return None, error.findings


@QUICK
@given(
    name=st.sampled_from(FILES),
    where=st.floats(0, 1, exclude_max=True),
    new=st.binary(max_size=4),
    removed=st.integers(0, 4),
)
def test_changed_bytes(
    tmp_path: Path, whole: dict[str, bytes], name: str, where: float, new: bytes, removed: int
) -> None:
    for other, content in whole.items():
        (tmp_path / other).write_bytes(content)
    start = int(where * len(whole[name]))
    changed = whole[name][:start] + new + whole[name][start + removed :]
    (tmp_path / name).write_bytes(changed)
    data, findings = outcome(tmp_path)
    if data is None:
        assert findings
    else:
        assert abs(data.histogram.total() * 92 - len(whole[FILES[0]])) <= 92


@QUICK
@given(name=st.sampled_from(FILES), content=st.binary(max_size=300))
def test_odd_files(tmp_path: Path, whole: dict[str, bytes], name: str, content: bytes) -> None:
    for other, known in whole.items():
        (tmp_path / other).write_bytes(known)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OpendasError):
        make_reader(spec_of(tmp_path)).read()


@QUICK
@given(text=st.text(alphabet=" 0123456789x-", min_size=22, max_size=22))
def test_numbers_are_read_as_python_reads_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "u.txt"
    path.write_bytes(("2" * 37 + text + "0" * 17 + "\n").encode())
    log = FindingLog()
    (records,) = read_records(path, UNITS, log)
    try:
        slow = int(text) if text.strip().isdigit() else -1
    except ValueError:
        slow = -1
    expected = slow if 0 <= slow < 10**18 else -1
    assert records.numbers("OIDTB", 0, 10**18 - 1, log).tolist() == [expected]
    assert len(log) == (expected < 0)


@QUICK
@given(content=st.binary(max_size=200), header=st.booleans(), table=st.booleans())
def test_odd_assignments(tmp_path: Path, content: bytes, header: bool, table: bool) -> None:
    path = tmp_path / ("t.csv" if table else "BlockAssign_ST98_FB_CD.txt")
    head = (b"GEOID,cd\n" if table else b"BLOCKID|DISTRICT\n") if header else b""
    path.write_bytes(head + content)
    frame = Frame(BLOCKS, official_codes(BLOCKS, "state"), "block")
    try:
        got, _ = with_assignments(frame, [path])
    except OpendasError:
        return
    assert set(got.entities) <= {"cd"}
