"""Records that can be recognised are planted, commands are run, and nothing of the records is found outside.

What is looked through: ``release/``, ``state/``, the ledger, stdout and stderr, temporary files (also those
that were removed or replaced meanwhile), command lines and environments of all processes, core files. What is
looked for: counts, texts and keys in the forms of :mod:`audit.marked.marks`. Not looked through: the input,
and ``confidential/``.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import marked_worlds as worlds

sys.path.insert(0, str(Path(__file__).parents[2]))

from audit.marked.marks import Mark, key_mark, number_mark, text_mark
from audit.marked.sandbox import Sandbox
from audit.marked.scan import scan_bytes, scan_folder
from opendas.custody.passphrase import Passphrase
from opendas.custody.run_key import RunKey

COUNT = number_mark("a count", worlds.COUNT)
RECORDS = [COUNT, number_mark("a number", worlds.NUMBER), text_mark("a text", worlds.TEXT)]
PASSPHRASE = "four words are enough"


def run_keys(folder: Path, passphrase: str | None = None) -> list[Mark]:
    """Return marks of the run key of an output folder, and of the noise key made of it."""
    marks = []
    for path in sorted((folder / "confidential" / "keys").glob("*.key")):
        key = RunKey.load(path, None if passphrase is None else Passphrase(passphrase))
        marks.append(key_mark(f"the run key in {folder.name}", key._secret))
        state = json.loads(next(folder.rglob("run.json")).read_text())
        bound = (bytes.fromhex(state[name]) for name in ("plan_digest", "input_tag"))
        marks.append(key_mark("a noise key", key.derive("noise/mini", *bound)))
        marks.append(key_mark("a tag key", key.derive("input tag, entries")))
    return marks


# The scan bites.


def compressed(codec: str, data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", data)
    return out.getvalue()


def in_parquet(column: pa.Array) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": column}), out, compression="zstd")
    return out.getvalue()


def in_npz(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, array=array)
    return out.getvalue()


NOISE = np.random.default_rng(0).bytes(5000)
TEXT = NOISE + worlds.TEXT.encode() + NOISE
NUMBERS = np.r_[np.arange(1000), worlds.COUNT, np.arange(1000)]

PLANTED: dict[str, Callable[[], bytes]] = {
    "decimal": lambda: b"total,1234567\n",
    "grouped": lambda: b"1,234,567 records",
    "JSON": lambda: json.dumps({"n": float(worlds.COUNT)}).encode(),
    "int64": lambda: NOISE + np.int64(worlds.COUNT).tobytes() + NOISE,
    "int32, big endian": lambda: NOISE + np.array([worlds.COUNT], ">i4").tobytes() + NOISE,
    "float64": lambda: NOISE + np.float64(worlds.COUNT).tobytes() + NOISE,
    "text": lambda: TEXT,
    "UTF-16": lambda: worlds.TEXT.encode("utf-16"),
    "base64 within more": lambda: base64.b64encode(b"x" + TEXT),
    "hexadecimal": lambda: TEXT.hex().encode(),
    "gzip": lambda: gzip.compress(TEXT),
    "bzip2": lambda: bz2.compress(TEXT),
    "xz": lambda: lzma.compress(TEXT),
    "zstandard": lambda: compressed("zstd", TEXT),
    "LZ4": lambda: compressed("lz4", TEXT),
    "zip": lambda: zipped(TEXT),
    "zip behind a header": lambda: b"opendas task 2\n" + bytes(64) + zipped(TEXT),
    "zip in gzip": lambda: gzip.compress(zipped(TEXT)),
    "zstandard behind a header": lambda: NOISE + compressed("zstd", TEXT),
    "npz": lambda: in_npz(NUMBERS),
    "narrow npz": lambda: in_npz(NUMBERS.astype(np.int32)),
    "Parquet": lambda: in_parquet(pa.array(NUMBERS)),
    "Parquet of int32": lambda: in_parquet(pa.array(NUMBERS.astype(np.int32))),
    "Parquet of lists": lambda: in_parquet(pa.array([[1, worlds.COUNT], None, []])),
    "Parquet of text": lambda: in_parquet(pa.array([None, "a", worlds.TEXT]).dictionary_encode()),
    "PDF": lambda: b"%PDF-1.4\nstream\r\n" + zlib.compress(TEXT) + b"\nendstream",
    "PDF in letters": lambda: b"%PDF-1.4\nstream\n" + base64.a85encode(zlib.compress(TEXT)) + b"~>endstream",
    "picture in a page": lambda: b"<img src='data:image/png;base64," + base64.b64encode(TEXT) + b"'>",
}


@pytest.mark.parametrize("what", PLANTED)
def test_the_scan_finds_what_is_planted(what: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(PLANTED[what]())
    (tmp_path / "folder" / "clean").write_bytes(gzip.compress(NOISE) + in_parquet(pa.array(np.arange(5000))))
    found, scanned = scan_folder(tmp_path, RECORDS)
    assert {one.where.split(" ")[0] for one in found} == {"folder/file"}
    assert scanned == 2


@pytest.mark.parametrize("form", range(len(key_mark("", bytes(range(32))).forms)))
def test_the_scan_finds_a_key_in_every_form(form: int) -> None:
    mark = key_mark("key", np.random.default_rng(1).bytes(32))
    name, data = mark.forms[form]
    assert len(data) > 12, name
    assert scan_bytes(gzip.compress(NOISE + data + NOISE), [mark], "file")
    assert not scan_bytes(
        gzip.compress(NOISE + data[:-3] + NOISE), [Mark("key", (mark.forms[form],))], "file"
    )


def test_base64_is_found_wherever_it_starts() -> None:
    secret = np.random.default_rng(2).bytes(32)
    for before in range(7):
        data = base64.b64encode(bytes(range(before)) + secret + b"more after it")
        assert list(key_mark("key", secret).found(data)), before


def test_the_scan_looks_at_names_and_not_into_digits_of_longer_numbers(tmp_path: Path) -> None:
    (tmp_path / f"part-{worlds.TEXT}").write_bytes(b"")
    (tmp_path / "digits").write_bytes(b"91234567 12345678 1.1234567")
    found, _ = scan_folder(tmp_path, RECORDS)
    assert [one.where for one in found] == ["digits", f"name of part-{worlds.TEXT}"]
    (tmp_path / "digits").write_bytes(b"91234567 12345678")
    assert len(scan_folder(tmp_path, RECORDS)[0]) == 1


LITTERING = f"""
import os, shutil, subprocess, tempfile
from pathlib import Path
def write(path, data):
    with open(path, "w") as file:
        file.write(data)
write("removed", "{worlds.COUNT}")
os.remove("removed")
write("first", "{worlds.COUNT}")
write("second", "nothing")
os.replace("second", "first")
with tempfile.TemporaryDirectory() as folder:
    write(os.path.join(folder, "in a folder"), "{worlds.COUNT}")
subprocess.run(["sleep", "0.5", "0.0{worlds.NUMBER}"])
subprocess.run(["sleep", "0.5"], env={{**os.environ, "SECRET": "{worlds.TEXT}"}})
"""


def test_the_sandbox_keeps_what_is_removed_or_replaced_and_sees_processes(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box")
    (sandbox.input / "litter.py").write_text(LITTERING)
    assert sandbox.run_program([sys.executable, str(sandbox.input / "litter.py")]).code == 0
    assert not list(sandbox.work.glob("*removed*"))
    found, _ = sandbox.leaks(
        [COUNT, *RECORDS[2:], Mark("argument", (("decimal", f"0{worlds.NUMBER}".encode()),))]
    )
    files = {one.where.split("/")[1].rpartition("-")[2] for one in found}
    assert {"removed", "first", "in a folder"} <= files
    seen = {one.mark for one in found if one.where.startswith("attic/processes")}
    assert seen == {"a text", "argument"}


CRASHING = f"""
import os, sys
record = "{worlds.TEXT}" * 2
if len(sys.argv) > 1:
    from opendas.custody.secret_files import forbid_core_files
    forbid_core_files()
if os.fork() == 0:
    os.abort()
os.wait()
"""


def test_a_core_file_would_hold_records_and_is_not_written(tmp_path: Path) -> None:
    found = {}
    for word in ([], ["forbid"]):
        sandbox = Sandbox(tmp_path / "-".join(["box", *word]))
        (sandbox.input / "crash.py").write_text(CRASHING)
        assert sandbox.run_program([sys.executable, str(sandbox.input / "crash.py"), *word]).code == 0
        found[len(word)] = [path.name for path in sandbox.work.iterdir() if path.name.startswith("core")]
    if not found[0]:
        pytest.skip("this machine writes no core file into the folder of the process")
    assert not found[1]


# What runs leave and say.


def clean(sandbox: Sandbox, marks: list[Mark], least: int) -> None:
    """Assert that nothing was found, in at least so many files."""
    found, scanned = sandbox.leaks(marks)
    assert found == []
    assert scanned >= least


def test_the_life_of_a_run_shows_no_record_and_no_key(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box")
    run = worlds.histogram_csv(sandbox.input)
    assert list(scan_folder(sandbox.input, RECORDS)[0]), "the marks are in the input"
    done = sandbox.run("run", run, "--out", "out", "--workers", "2", "--keep-key", "--json")
    assert done.code == 0, done.err
    out = sandbox.work / "out"
    keys = run_keys(out)
    assert len(keys) == 3
    assert scan_folder(out / "confidential" / "keys", keys)[0], "the key is where it belongs"
    codes = sandbox.run_many(
        [
            ["verify", "out", "--json"],
            ["status", "out", "--json"],
            ["tabulate", "out", "--tables", "total,kind", "--geolevel", "town"],
            ["run", run, "--out", "out", "--resume", "--json"],
            ["measure", run, "--out", "out", "--resume", "--keep-key", "--json"],
            ["interval", "out", "--query", "kind", "--geolevel", "block", "--json"],
            ["plan", run, "--json"],
            ["spine", run, "--json"],
            ["verify", "out"],
        ]
    )
    assert codes == [0] * 9
    done = sandbox.run("evaluate", "out", "--truth", run, "--json", confidential=True)
    assert done.code == 0
    assert "confidential" in done.err
    assert sandbox.run("forget-key", "out").code == 0
    clean(sandbox, [*RECORDS, *keys], 60)


@pytest.mark.slow
def test_two_phases_under_a_passphrase_show_no_record_no_key_and_no_passphrase(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box")
    run = worlds.histogram_parquet(sandbox.input, run='estimator = "informed"')
    words = ["measure", run, "--out", "out", "--key-passphrase-file", "-", "--keep-key"]
    fault = "opendas.sampling.noise:NoiseSource.__init__:1:interrupt"
    done = sandbox.run(*words, stdin=PASSPHRASE + "\n", fault=fault)
    assert (done.code, done.faulted) == (130, True)
    assert sandbox.run(*words, "--resume", stdin="four words are others\n").code == 4
    assert sandbox.run("measure", run, "--out", "out", "--resume").code == 4
    assert sandbox.run(*words, "--resume", stdin=PASSPHRASE).code == 0
    keys = run_keys(sandbox.work / "out", PASSPHRASE)
    assert sandbox.run("estimate", run, "--out", "out", "--workers", "2").code == 0
    clean(sandbox, [*RECORDS, *keys, text_mark("the passphrase", PASSPHRASE)], 40)
    # Not even where secrets belong.
    assert not scan_folder(sandbox.work, [*keys, text_mark("the passphrase", PASSPHRASE)])[0]


FAMILY = "opendas.measurement.noisy:NoisyMeasurements.family"
PRACTISED = 7
"""Families of synthetic counts that a worker process has estimated before its first task."""
FAULTS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "an error": (f"{FAMILY}:2:error", (), 70),
    "an error in a worker": (f"{FAMILY}:{PRACTISED + 1}:error", ("--workers", "2"), 70),
    "an abort": (f"{FAMILY}:2:abort", (), -6),
    "an abort in a worker": (f"{FAMILY}:{PRACTISED + 1}:abort", ("--workers", "2"), 6),
    "an abort in a worker that practises": (f"{FAMILY}:2:abort", ("--workers", "2"), 6),
    "no memory": (f"{FAMILY}:2:memory", (), 6),
    "an interrupt": (f"{FAMILY}:2:interrupt", (), 130),
    "a kill": (f"{FAMILY}:2:kill", (), -9),
    "a full disk": ("os:fsync:23:full", (), 6),
    "a full disk at the end": ("os:fsync:39:full", (), 6),
    "an error while writing": ("opendas.files.mdf.writing:PartFile.write:1:error", (), 70),
}


@pytest.mark.slow
def test_crashes_show_no_record_and_no_key(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box")
    run = worlds.histogram_csv(sandbox.input)
    marks = [*RECORDS]
    for number, (what, (fault, words, code)) in enumerate(FAULTS.items()):
        out = f"out{number}"
        done = sandbox.run("run", run, "--out", out, "--keep-key", *words, fault=fault, number=worlds.NUMBER)
        assert done.faulted, what
        assert done.code == code, (what, done.err)
        if "abort" in what:
            assert "Fatal Python error" in done.err, "the trace of the crash is there to be scanned"
        marks += run_keys(sandbox.work / out)
    assert len(marks) >= 3 * len(FAULTS), "most left a key behind"
    assert not list(sandbox.folder.rglob("core*"))
    logs = [path for path in sandbox.work.rglob("traceback.txt") if str(worlds.NUMBER) in path.read_text()]
    assert logs, "the message stands where it may: under confidential/"
    clean(sandbox, marks, 60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("opendas.phsafe.output:level_counts:3:error", 70),
        ("opendas.phsafe.output:level_counts:3:abort", -6),
        ("os:fsync:16:full", 6),
    ],
)
def test_crashes_among_households_show_no_record_and_no_key(fault: str, code: int, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box")
    words = ["phsafe", *worlds.households(sandbox.input), "out"]
    done = sandbox.run(*words, fault=fault, number=worlds.COUNT)
    assert (done.code, done.faulted) == (code, True), done.err
    keys = sandbox.work / "out" / "confidential" / "keys" / "phsafe.key"
    marks = [key_mark("run key", RunKey.load(keys)._secret)] if keys.exists() else []
    clean(sandbox, [*RECORDS, *marks], 4)
    assert sandbox.run(*words, "--resume").code == 0
    clean(sandbox, [*RECORDS, *marks], 20)


ON_DISK = "opendas.readers.counting.entries:IN_MEMORY:8"


@pytest.mark.slow
def test_counts_that_go_to_disk_are_confidential_and_do_not_stay(tmp_path: Path) -> None:
    """As of an input larger than memory; a kill leaves them for ``--resume``."""
    sandbox = Sandbox(tmp_path / "box", {"MARKED_SET": ON_DISK})
    run = worlds.histogram_csv(sandbox.input)
    done = sandbox.run("run", run, "--out", "out", fault=f"{FAMILY}:2:kill")
    assert (done.code, done.faulted) == (-9, True)
    out = sandbox.work / "out"
    cache = out / "confidential" / "cache"
    left, _ = scan_folder(cache, RECORDS)
    assert {one.mark for one in left} == {"a count"}, "exact counts are on disk, where they may be"
    assert stat.S_IMODE((out / "confidential").stat().st_mode) == 0o700
    keys = run_keys(out)
    clean(sandbox, [*RECORDS, *keys], 8)
    done = sandbox.run("run", run, "--out", "out", "--resume", "--workers", "2")
    assert done.code == 0, done.err
    assert scan_folder(out / "confidential", RECORDS)[0] == [], "nothing of them stays"
    clean(sandbox, [*RECORDS, *keys], 30)


def spoiled(text: str) -> list[Callable[[Path], list[str | Path]]]:
    """Inputs of every reader that are wrong where the mark stands, and the commands on them."""

    def counts(make: Callable[[Path], Path], old: str, new: str) -> Callable[[Path], list[str | Path]]:
        def build(folder: Path) -> list[str | Path]:
            run = make(folder)
            path = folder / "counts.csv"
            path.write_text(path.read_text().replace(old, new, 1))
            return ["run", run]

        return build

    def segment(texts: dict[str, str]) -> dict[str, str]:
        name = next(name for name in texts if "00002" in name)
        return {name: texts[name].rstrip("\n") + text + "\n"}

    def person(world: worlds.World) -> None:
        world[0].append(dict(world[0][-1], QAGE=text))

    def phsafe(folder: Path) -> list[str | Path]:
        return ["phsafe", *worlds.households(folder, person)]

    return [
        counts(worlds.histogram_csv, "home,adult", f"home,{text}"),
        counts(worlds.histogram_csv, f",{worlds.COUNT},", f",-{text},"),
        counts(worlds.histogram_csv, "\n0000", f"\n{text[:4]}"),
        counts(worlds.records_csv, "home,adult", f"{text},adult"),
        counts(worlds.records_csv, "home,adult", f"home,adult,{text}"),
        lambda folder: ["run", worlds.pl94(folder, 2010, segment)],
        lambda folder: ["run", worlds.pl94(folder, 2020, segment)],
        lambda folder: ["run", worlds.microdata(folder, "ppmf", text)],
        lambda folder: ["run", worlds.microdata(folder, "mdf", text)],
        lambda folder: ["run", worlds.cef(folder, lambda line: line[:20] + text + line[20 + len(text) :])],
        phsafe,
    ]


@pytest.mark.parametrize("text", [worlds.TEXT, str(worlds.NUMBER)])
def test_refused_inputs_of_every_reader_are_not_quoted(text: str, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box")
    commands = []
    for number, build in enumerate(spoiled(text)):
        words = build(sandbox.input / f"{number}")
        out = sandbox.work / f"out{number}"
        commands.append([*words, *(["--out"] if words[0] == "run" else []), out])
    assert sandbox.run_many(commands) == [3] * len(commands)
    said = (sandbox.folder / "said" / "1.err").read_text()
    assert said.count("opendas: ") >= len(commands)
    clean(sandbox, RECORDS, 3)


def test_readers_leave_no_trace_of_what_they_read(tmp_path: Path) -> None:
    """Successful runs of the other readers, seeded, small enough for one process."""
    sandbox = Sandbox(tmp_path / "box")
    runs = [
        worlds.records_csv(sandbox.input / "records"),
        worlds.microdata(sandbox.input / "ppmf", "ppmf"),
        worlds.microdata(sandbox.input / "mdf", "mdf"),
    ]
    commands = [["run", run, "--out", run.parent.name, "--seed", "5"] for run in runs]
    config, data = worlds.households(sandbox.input / "households")
    commands += [
        ["phsafe", config, data, "tables", "--json"],
        ["phsafe", config, data, "--mode", "validate", "--json"],
        ["phsafe-post", "tables"],
        ["verify", "tables"],
    ]
    assert sandbox.run_many(commands) == [0] * len(commands)
    clean(sandbox, RECORDS, 60)
