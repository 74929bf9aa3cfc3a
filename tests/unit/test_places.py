"""Every module that can put bytes on a disk, and what it may put there: a new one does not appear unnoticed.

The arguments are in ``docs/proofs/places.md``, which names the same modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.each import each
from support.sources import nodes_of, path_of, paths

PAGE = Path(__file__).parents[2] / "docs" / "proofs" / "places.md"

WRITERS = {
    *("write_atomic", "atomic_file", "write_bytes", "write_text", "savez", "savez_compressed", "tofile"),
    *("HistogramWriter", "ParquetWriter", "parquet_sink", "write_here", "write_secret", "memmap", "RunLog"),
    *("TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "mkdtemp", "copytree", "copyfile", "move"),
    *("whole", "new_file", "move_folder", "write_csv", "memfd_create", "symlink_to", "open_output_stream"),
    *("to_csv", "to_parquet", "sink_parquet", "write_dataset", "OSFile", "open_append_stream", "mkstemp"),
    *("copy2", "hardlink_to", "to_pickle", "write_ipc", "to_feather", "write_feather", "write_batches"),
}
OWNED = {("np", "save"), ("shutil", "copy"), ("os", "link"), ("os", "symlink"), ("os", "write")}
OWNED |= {("sqlite3", "connect"), ("pq", "write_table")}
"""Names that say nothing without the module that they are of."""
_MODE = re.compile(r"^[rwaxb+t]{1,3}$")


def writing(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the calls of a module that can write a file, by name."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        owner = (
            function.value.id
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
            else ""
        )
        name = getattr(function, "attr", getattr(function, "id", ""))
        if name in WRITERS or (owner, name) in OWNED:
            yield name
        elif (owner, name) == ("os", "open") and not only_reads(node):
            yield "os.open"
        elif (
            name in ("open", "fdopen", "ZipFile")
            and owner != "os"
            and any(map(is_mode, node.args + [k.value for k in node.keywords]))
        ):
            yield "open"


def only_reads(call: ast.Call) -> bool:
    flags = {part.attr for part in ast.walk(call) if isinstance(part, ast.Attribute)}
    return "O_RDONLY" in flags


def is_mode(value: ast.expr) -> bool:
    text = value.value if isinstance(value, ast.Constant) else None
    return isinstance(text, str) and _MODE.match(text) is not None and set(text) & set("wax+") != set()


def test_the_page_names_every_module_that_writes() -> None:
    if not PAGE.is_file():
        pytest.skip("the docs are not beside the tests")
    found = {path_of(name) for name in paths() if any(writing(nodes_of(name)))}
    listed = set(
        re.findall(
            r"`([a-z_/0-9]+\.py)`", PAGE.read_text(encoding="utf-8").split("## Files")[1].split("\n## ")[0]
        )
    )
    assert found == listed


@each(
    ("text", "found"),
    [
        ("write_atomic(path, b'')", ["write_atomic"]),
        ("path.write_text('x')", ["write_text"]),
        ("open(path)", []),
        ("open(path, 'rb')", []),
        ("open(path, 'ab')", ["open"]),
        ("path.open(mode='w', encoding='utf-8')", ["open"]),
        ("os.open(path, os.O_RDONLY | os.O_NOFOLLOW)", []),
        ("os.open(path, flags, 0o600)", ["os.open"]),
        ("np.savez(buffer, a=1)", ["savez"]),
        ("pacsv.write_csv(table, buffer)", ["write_csv"]),
        ("zipfile.ZipFile(path, 'w')", ["open"]),
        ("zipfile.ZipFile(path)", []),
        ("os.memfd_create('x')", ["memfd_create"]),
        ("path.symlink_to(other)", ["symlink_to"]),
        ("system.open_output_stream(there)", ["open_output_stream"]),
        ("folder.whole(name)", ["whole"]),
        ("frame.to_parquet(path)", ["to_parquet"]),
        ("pq.write_table(table, path)", ["write_table"]),
        ("np.save(path, a)", ["save"]),
        ("counts.save(path)", []),
        ("shutil.copy(a, b)", ["copy"]),
        ("counts.copy()", []),
    ],
)
def test_the_search_sees_what_writes(text: str, found: list[str]) -> None:
    assert list(writing(ast.walk(ast.parse(text)))) == found
