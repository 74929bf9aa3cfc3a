"""Whole commands as a hostile user gives them: ``python -m fuzz.hostile --tries 10000``, run in ``tests/``.

:mod:`fuzz.targets` damages bytes of files. Here everything is well-formed and meant: run files and products
with odd names and numbers, commands in odd surroundings, and releases that someone changed who has the
package, all the time and no key. A try is a kind and a number; the same number is the same try.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import functools
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.attacker import certificate_of, put, reissue, rewrite, store
from support.hostile import Shape
from support.mini import write_mini

import opendas
from fuzz.oracle import Defect, command
from opendas.cli.main import main
from opendas.custody.signing_key import SigningKey
from opendas.custody.stamps import (
    CHOSEN_WITH_TRUTH,
    DEMONSTRATION_FRAME,
    DOMAIN_FROM_RECORDS,
    NOT_FOR_RELEASE,
)
from opendas.errors import OpendasError
from opendas.runs.context.run import load
from opendas.runs.finished_release import Release
from opendas.tables.cells import product_table

__all__ = ["KINDS", "attempt"]

NAMES = (
    "a",
    "state",
    "spine",
    "constraints",
    "a/b",
    "../x",
    "/abs",
    "<b>",
    "*",
    "total",
    "detailed",
    "rest",
    "",
    " ",
    "a b",
    "GEOID",
    "geocode",
    "count",
    "é",
    "e\u0301",
    "日本",
    "a\x00b",
    "a\nb",
    "a\tb",
    "-rf",
    "--help",
    ".",
    "..",
    "x" * 300,
    "CON",
    "nul",
    "a:b",
    "a*b",
    "a,b",
    'a"b',
    "a'b",
    "=1+1",
    "@x",
    "%41",
    "%",
    "a\\b",
    "\u202e",
    "\ud7ff",
    "None",
    "0",
    "1.5",
    "true",
    "a|b",
    "a_MOE90",
    "{0}",
    "${HOME}",
    "$(id)",
    "a;b",
    "region",
    "block",
    "leaf",
    "root",
)
"""Names and labels that nobody should choose."""

NUMBERS = (
    0,
    1,
    -1,
    2,
    99_999,
    2**31 - 1,
    2**31,
    2**39,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    10**300,
)

AMOUNTS = (
    '"1"',
    '"1/3"',
    '"0"',
    '"-1"',
    '"1/0"',
    '"1e-9"',
    '"1e400"',
    '"inf"',
    '"Infinity"',
    '"nan"',
    '""',
    '"x"',
    "0.5",
    "1",
    "true",
    "[]",
    '"1000000000"',
    '"1/1000000000000"',
    '"0.1"',
    '"1_000"',
    '" 1"',
    '"1/3/4"',
    '"' + "9" * 400 + '"',
    '"1j"',
)
"""Amounts as a TOML file may hold them."""

LEAVES = [state + county + block for state in "ab" for county in "ab" for block in "abc"]


def toml(value: str) -> str:
    return json.dumps(value, ensure_ascii="\x00" in value or "\n" in value)


def released_or_refused(folder: Path, run: Path, draw: random.Random) -> str:
    """Run; what is accepted verifies and is tabulated, what is refused leaves nothing."""
    out = folder / "out"
    outcome = command(folder, "run", str(run), "--out", str(out), "--seed", "1", "--workers", "1", "--json")
    if outcome.code:
        if (out / "release" / "certificate.json").exists():
            raise Defect("a refused run left a release")
        if outcome.code in (2, 3, 4) and out.exists() and any(out.iterdir()):
            raise Defect(f"refused with {outcome.code}, and left files")
        return f"exit {outcome.code}"
    tabulated(folder, out, draw)
    again = command(folder, "verify", str(out), "--allow-seeded", "--rederive")
    stamped = "DOMAIN FROM RECORDS" in certificate_of(out / "release")["runs"][0]["stamps"]
    failures = [line for line in again.message.splitlines() if line.startswith("FAILED")]
    excused = stamped and [line.split()[1] for line in failures] == ["stamps:"]
    needs_full = all("measure" in line and "estimated again" in line for line in failures)
    if failures and not excused and not needs_full:
        raise Defect(f"an honest release fails: {failures[0][:200]}")
    return "released"


def tabulated(folder: Path, out: Path, draw: random.Random) -> None:
    """Tables of all queries at all levels in one command: one file each, with the columns of its cells."""
    release = Release(out)
    (name,) = release.products
    product, frame = release._files[name].product, release._files[name].frame
    levels = list(frame.levels)
    queries = [query for query in product.query_names if "," not in query][:3]
    asked = [word for level in levels for word in ("--geolevel", level)]
    end = draw.choice(("csv", "parquet"))
    to = folder / "tables"
    tables = ",".join(f"{name}:{query}" for query in queries)
    outcome = command(
        folder, "tabulate", str(out), "--tables", tables, *asked, "--format", end, "--to", str(to)
    )
    if outcome.code:
        raise Defect(f"tables of a release are refused: {outcome.message[:200]}")
    found = list(to.iterdir())
    if len(found) != len(queries) * len(levels):
        raise Defect(f"{len(found)} tables for {len(queries)} queries at {len(levels)} levels")
    wanted = {product_table(product, query).columns for query in queries}
    if end == "parquet":
        for path in found:
            names = tuple(pq.read_schema(path).names)
            if not any(set(columns) <= set(names) for columns in wanted):
                raise Defect(f"columns of a table are not its cells: {names[:5]}")


def run_file(folder: Path, draw: random.Random) -> str:
    """An odd run file of the miniature census."""
    path = write_mini(folder)
    text = path.read_text()
    for _ in range(draw.choice((1, 1, 2, 3))):
        kind = draw.randrange(9)
        if kind == 0:
            old = draw.choice(("region", "town", "block"))
            text = text.replace(f'"{old}"', toml(name := draw.choice(NAMES))).replace(
                f"{old} =", f"{toml(name)} ="
            )
        elif kind == 1:
            text = text.replace(f"prefix = {draw.choice('246')}", f"prefix = {draw.choice(NUMBERS)}", 1)
        elif kind == 2:
            text = text.replace(
                'rho = "2"', f"{draw.choice(('rho', 'epsilon', 'delta'))} = {draw.choice(AMOUNTS)}"
            )
        elif kind == 3:
            text = text.replace(draw.choice(('"1/4"', '"1/2"')), draw.choice(AMOUNTS), 1)
        elif kind == 4:
            lines = (
                'estimator = "informed"',
                'estimator = "block-by-block"',
                "failsafe = true",
                'mechanism = "discrete-laplace"',
                'neighbours = "unbounded"',
                'drop_invariants = ["total"]',
                'drop_invariants = ["*"]',
                "failsafe = 1",
                "x = 1",
            )
            text = text.replace("[input]", draw.choice(lines) + "\n[input]", 1)
        elif kind == 5:
            os.mkfifo(folder / f"pipe{draw.randrange(10**6)}")
            (folder / "empty").touch()
            some = (
                ".",
                "",
                "..",
                "/dev/null",
                "/dev/zero",
                next(folder.glob("pipe*")).name,
                "empty",
                "missing.csv",
                "frame.csv",
                "counts.csv/x",
                "*",
                "[",
                "~",
                "http://127.0.0.1:9/x",
                "s3://",
                "run.toml",
                "/etc/shadow",
            )
            text = text.replace(
                draw.choice(('"counts.csv"', '"frame.csv"', '"product.toml"')), toml(draw.choice(some))
            )
        elif kind == 6:
            some = (
                'spine = "aian"',
                'spine = "optimized"',
                'spine = [{ step = "bypass" }]',
                "spine = []",
                'spine = [{ step = "x" }]',
                'root = "us"',
                'entities = ["place"]',
                'spine = [{ step = "block_groups", fanout_cutoff = 0 }]',
                'spine = [{ step = "block_groups", fanout_cutoff = 9223372036854775808 }]',
            )
            text = text.replace("[budget]", draw.choice(some) + "\n[budget]", 1)
        elif kind == 7:
            some = (
                'slack = "0.01"',
                'slack = "-1"',
                "milp = true",
                'rounder = { "*" = [["detailed"]] }',
                'least_squares = { "*" = [["total"], ["total"]] }',
                f"slack = {draw.choice(AMOUNTS)}",
            )
            text += f"[passes]\n{draw.choice(some)}\n"
        else:
            text = text.replace(
                '"public"', draw.choice(('"code-book"', '"private"', '"from-records"', '"x"', "1"))
            )
    path.write_text(text, encoding="utf-8")
    return released_or_refused(folder, path, draw)


def product(folder: Path, draw: random.Random) -> str:
    """A product with odd names, labels, bounds and exact facts, anywhere on the spine."""
    size = draw.choice((1, 2, 3))
    attributes = {}
    plain = draw.random() < 0.6
    for name in draw.sample(("kind", "age") if plain else NAMES, draw.choice((1, 1, 2))):
        attributes[name] = tuple(draw.sample(("one", "two", "three") if draw.random() < 0.5 else NAMES, size))
    names = ["state", "county", "block"]
    if draw.random() < 0.3:
        names[draw.randrange(3)] = draw.choice(NAMES)
    cells = size ** len(attributes)
    counts = {(leaf, draw.randrange(cells)): draw.choice((1, 3, 9)) for leaf in range(len(LEAVES))}
    groups = [" * ".join(attributes), *attributes][: draw.choice((1, 2, 3))]
    lines = [f"[queries]\ngroups = {json.dumps(groups, ensure_ascii=True)}"] if draw.random() < 0.7 else []
    every = ["total", "detailed", *groups]
    for _ in range(draw.choice((0, 1, 1, 2))):
        level = toml(draw.choice([*names, "leaf", "root"]))
        lines.append(f"[[invariants]]\nquery = {json.dumps(draw.choice(every))}\ngeolevel = {level}")
    units = {}
    if draw.random() < 0.5:
        name = next(iter(attributes))
        units = {"homes": [draw.choice((0, 1, 1, 1, 9)) for _ in LEAVES]}
        low, high = (0, 99) if draw.random() < 0.5 else (draw.choice((0, *NUMBERS)), draw.choice(NUMBERS))
        cell = json.dumps(draw.choice(attributes[name]))
        lines.append(
            f"[[bounds]]\nquery = {json.dumps(name)}\ncell = {cell}\n"
            f'column = "homes"\nlower = {low}\nupper = {high}'
        )
    run = draw.choice(("", "", 'estimator = "informed"', "failsafe = true", 'estimator = "block-by-block"'))
    prefixes = draw.choice(((1, 2, 3), (1, 2, 3), (1, 2, 3), (0, 1, 3), (1, 3, 3), (3, 2, 1)))
    shape = Shape(
        LEAVES,
        counts,
        attributes=attributes,
        levels=[(name, prefix) for name, prefix in zip(names, prefixes, strict=True)],
        units=units,
        product="\n".join(lines),
        run=run,
        name=draw.choice(NAMES) if draw.random() < 0.1 else "hostile",
    )
    try:
        path = shape.write(folder)
    except (ValueError, UnicodeError):
        return "cannot be written"
    text = path.read_text(encoding="utf-8")
    for name in names:  # names of any kind, where the writer of shapes takes them as they are
        text = text.replace(f'"{name}", prefix', f"{toml(name)}, prefix").replace(
            f'{name} = "1/3"', f'{toml(name)} = "1/3"'
        )
    path.write_text(text, encoding="utf-8")
    return released_or_refused(folder, path, draw)


# Surroundings -------------------

EPOCHS = (
    "",
    " ",
    "x",
    "-1",
    "0",
    "1.5",
    "1e9",
    "1700000000",
    "9" * 12,
    "9" * 30,
    "0x10",
    "\u0661",
    "253402300800",
)


def environment(folder: Path, draw: random.Random) -> str:
    """A command in surroundings that are short of something; it ends with a sentence, or does its work."""
    office()
    source = _mini()
    shutil.copytree(source, folder, dirs_exist_ok=True)
    out = str(folder / "out")
    line = draw.choice(
        (
            (
                "run",
                str(folder / "run.toml"),
                "--out",
                str(folder / "new"),
                "--seed",
                "1",
                "--workers",
                draw.choice("12"),
            ),
            ("verify", out, "--allow-seeded"),
            ("verify", out, "--allow-seeded", "--rederive"),
            ("tabulate", out, "--tables", "age", "--geolevel", "town"),
            ("plan", str(folder / "run.toml"), "--json"),
            ("status", out),
            ("account", "--rho", "1"),
            ("--version",),
            ("doctor",),
            ("list",),
        )
    )
    changes = draw.sample(sorted(SURROUNDINGS), draw.choice((1, 1, 2)))
    code, said = in_child(folder, line, changes, draw.randrange(1 << 30))
    what = f"{line[0]} with {', '.join(changes)}"
    if code not in (0, 1, 2, 3, 4, 5, 6):
        raise Defect(f"{what}: ended with {code}: {said[-300:]}")
    if said.startswith(PYTHON_FAILS):
        return "no Python"
    if "Traceback" in said:
        raise Defect(f"{what}: a traceback: {said[-300:]}")
    if code and line[0] != "verify" and not said.strip() and not QUIET.intersection(changes):
        raise Defect(f"{what}: exit {code} without a sentence")
    if (
        code == 0
        and line[0] == "run"
        and command(folder, "verify", str(folder / "new"), "--allow-seeded").code
    ):
        raise Defect(f"{what}: exit 0, and the release does not verify")
    return f"exit {code}"


def _limit(kind: int, *values: int) -> Callable[[Path, random.Random], None]:
    def change(folder: Path, draw: random.Random) -> None:
        value = draw.choice(values)
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

    return change


def _variable(name: str, *values: str | None) -> Callable[[Path, random.Random], None]:
    def change(folder: Path, draw: random.Random) -> None:
        value = draw.choice(values)
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value

    return change


def _closed(folder: Path, draw: random.Random) -> None:
    for stream in draw.choice(((0,), (1,), (2,), (1, 2), (0, 1, 2))):
        with contextlib.suppress(OSError):
            os.close(stream)
        setattr(sys, ("stdin", "stdout", "stderr")[stream], None)


def _full(folder: Path, draw: random.Random) -> None:
    stream = os.open("/dev/full", os.O_WRONLY)
    os.dup2(stream, draw.choice((1, 2)))


def _read_only(folder: Path, draw: random.Random) -> None:
    path = folder / draw.choice(("out", "out/release", "out/state", "out/confidential", "."))
    path.chmod(0o500)
    version, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    ctypes.CDLL(None).capset(version, nothing)  # from here on, permissions hold for root, too


def _no_folder(folder: Path, draw: random.Random) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


def _mask(folder: Path, draw: random.Random) -> None:
    os.umask(draw.choice((0, 0o777, 0o077, 0o002)))


SURROUNDINGS: dict[str, Callable[[Path, random.Random], None]] = {
    "a date": _variable("SOURCE_DATE_EPOCH", *EPOCHS),
    "a home": _variable("HOME", None, "", "/nonexistent", "/dev/null"),
    "a cache": _variable("NUMBA_CACHE_DIR", "/nonexistent/x", "/dev/null", "/proc"),
    "a temporary folder": _variable("TMPDIR", "/nonexistent", "/dev/null", ""),
    "a language": _variable("LC_ALL", "C", "POSIX", "tr_TR.UTF-8", "xx"),
    "a width": _variable("COLUMNS", "0", "-1", "x", "1"),
    "a path": _variable("PATH", None, "", "/nonexistent"),
    "threads": _variable("OMP_NUM_THREADS", "", "0", "x", "99999"),
    "books": _variable("OPENDAS_BOOKS", "/nonexistent/x", "/dev/null", "/proc"),
    "little memory": _limit(resource.RLIMIT_DATA, 1 << 20, 1 << 26, 600 << 20),
    "few files": _limit(resource.RLIMIT_NOFILE, 4, 8, 12, 20),
    "small files": _limit(resource.RLIMIT_FSIZE, 0, 1, 1000, 10_000),
    "little address space": _limit(resource.RLIMIT_AS, 200 << 20, 600 << 20, 1 << 30),
    "no processes": _limit(resource.RLIMIT_NPROC, 0, 1),
    "closed streams": _closed,
    "a full disk behind a stream": _full,
    "folders that cannot be written": _read_only,
    "a working folder that is gone": _no_folder,
    "a mask": _mask,
}


QUIET = frozenset({"closed streams", "a full disk behind a stream", "small files"})
"""Where no sentence can be written."""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """A process that has everything loaded and has run nothing; :func:`serve` forks it for each command."""
    return subprocess.Popen(
        [sys.executable, "-c", "from fuzz.hostile import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        text=True,
    )


def in_child(folder: Path, line: Sequence[str], changes: Sequence[str], seed: int) -> tuple[int, str]:
    """Run a command in a process of its own; return its exit code and all that it said."""
    log = folder / "said"
    log.touch(0o666)
    log.chmod(0o666)
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([str(folder), list(line), list(changes), seed]) + "\n")
    server.stdin.flush()
    code = int(server.stdout.readline())
    folder.chmod(0o700)
    if code == HANGS:
        raise Defect(f"{line[0]} with {', '.join(changes)}: hangs")
    return code, log.read_text(errors="replace")


HANGS = -1000
SECONDS = 300
"""Of a command that waits; five times as long where it may have to compile its kernels, a minute's work."""


def serve() -> None:
    """Answer each line of standard input, which asks for a command, with its exit code."""
    for asked in sys.stdin:
        folder, line, changes, seed = json.loads(asked)
        process = os.fork()
        if not process:
            _child(folder, line, changes, seed)
        late = time.monotonic() + SECONDS * (1 if SLOW.isdisjoint(changes) else 5)
        while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < late:
            time.sleep(0.02)
        if not ended[0]:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(ended[1]) if ended[0] else HANGS, flush=True)  # noqa: T201


def _child(folder: str, line: list[str], changes: list[str], seed: int) -> None:
    """Change the surroundings of this process, run the command, here or from its first import, and end."""
    for stream, path in enumerate(("/dev/null", f"{folder}/said", f"{folder}/said")):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), stream)
    draw = random.Random(seed)
    again = (draw.random() < 0.1 or "little address space" in changes) and SLOW.isdisjoint(changes)
    for change in sorted(changes, key="few files".__eq__):  # other changes need some
        SURROUNDINGS[change](Path(folder), draw)
    if again:
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        os.execve(sys.executable, [sys.executable, "-m", "opendas", *line], {**os.environ, **paths})
    try:
        main(line)
    except SystemExit as left:
        code = left.code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(int(code or 0))


PYTHON_FAILS = ("Fatal Python error: init", "Error processing line 1 of ")
"""How Python says that it cannot start, before any program has a say: with four open files, for instance."""

NO_PYTHON = ("a working folder that is gone", "little memory")
SLOW = frozenset({"a home", "a cache", "folders that cannot be written", *NO_PYTHON})
"""Where a program that starts again may need to compile kernels, or where Python itself does not start."""


# Tampering -------------------

DECLARED = {("issued",), ("commit",), ("version",), ("account", "acts"), ("account", "readings")}
"""Entries of a certificate that only its signature vouches for, as `verify` says; and known stamps."""

STAMPS = {NOT_FOR_RELEASE, DEMONSTRATION_FRAME, DOMAIN_FROM_RECORDS, CHOSEN_WITH_TRUTH}


@functools.cache
def _mini() -> Path:
    """A finished run of the miniature census with a table, its folder readable for anybody."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-office-"))
    folder.chmod(0o755)
    release = opendas.release(load(write_mini(folder)), folder / "out", seed=3)
    opendas.tabulate(release, tables=["age"], geolevel="town")
    return folder


@functools.cache
def office() -> tuple[Path, Path]:
    """A signed release, and the public key."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-signed-"))
    shutil.copytree(_mini() / "out", folder / "out")
    key = SigningKey.generate()
    key.save(folder / "office.key")
    (folder / "office.key.pub").write_text(key.public.to_pem())
    Release(folder / "out").sign(folder / "office.key")
    return folder / "out" / "release", folder / "office.key.pub"


def bytes_of(release: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(release)): path.read_bytes()
        for path in sorted(release.rglob("*"))
        if path.is_file()
    }


def tampering(folder: Path, draw: random.Random) -> str:
    """A change of a release, with everything computed again or not; `verify` has to find it."""
    release, key = office()
    at = folder / "release"
    shutil.copytree(release, at)
    before = bytes_of(at)
    listed = draw.random() < 0.7
    what, declared = draw.choice(
        (_table_changed, _table_changed, _entry_changed, _bytes_changed, _files_changed)
    )(at, draw)
    if bytes_of(at) == before:
        return "no change"
    if listed and what.startswith(
        ("column", "file", "bytes of run", "bytes of mdf", "bytes of tables", "bytes of meas")
    ):
        try:
            reissue(at)
        except Exception:  # what cannot be listed again stays as it is
            what += " (not listed again)"
    if not (at / "certificate.json").exists():
        return "no certificate"
    if bytes_of(at) == before:
        return "the same when it is listed again"
    checks = {check.name: check.ok for check in Release(at).verify(signed_by=key, allow_seeded=True)}
    if all(checks.values()):
        raise Defect(f"{what}: passes with the office's signature")
    (at / "certificate.sig").unlink(missing_ok=True)
    wrong = [check.name for check in Release(at).verify(rederive=True, allow_seeded=True) if not check.ok]
    if not wrong and not declared:
        raise Defect(f"{what}: found by nothing but the signature")
    return "found by verify" if wrong else "found by the signature alone"


def _table_changed(release: Path, draw: random.Random) -> tuple[str, bool]:
    path = draw.choice(sorted(release.rglob("*.parquet")))
    table = pq.ParquetFile(path).read()
    name = draw.choice(table.column_names)
    values = table.column(name).to_pylist()
    kind = draw.randrange(5)
    where = f"column {name} of {path.relative_to(release)}"
    if not values:
        return where, False
    row = draw.randrange(len(values))
    other = draw.randrange(len(values))
    if kind == 0:
        changed = table.take([*range(row), *range(row + 1, len(values))])
    elif kind == 1:
        changed = pa.concat_tables([table, table.slice(row, 1)])
    elif kind == 2:
        exchanged = dict(zip((row, other), (values[other], values[row]), strict=True))
        changed = put(table, name, [exchanged.get(i, value) for i, value in enumerate(values)])
    elif kind == 3:
        changed = table.rename_columns([n + "_" if n == name else n for n in table.column_names])
    else:
        changed = put(table, name, [*values[:row], other_value(values[row], draw), *values[row + 1 :]])
    rewrite(path, lambda _: changed)
    # The same rows say the same; and one noisy answer may be another without any record being another.
    answer = name == "values" and path.parent.parent.name == "measurements" and kind in (2, 4)
    return f"{where}, change {kind}", answer or pq.ParquetFile(path).read().equals(table)


def other_value(value: Any, draw: random.Random) -> Any:
    if isinstance(value, list):
        if not value:
            return [1]
        at = draw.randrange(len(value))
        return [*value[:at], other_value(value[at], draw), *value[at + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.choice((-1, 1, 1000))
    if isinstance(value, float):
        return value * draw.choice((0.5, 2, 1 + 1e-9))
    if value is None:
        return None
    return draw.choice((value + "x", value[:-1], "", value[::-1]))


def _entry_changed(release: Path, draw: random.Random) -> tuple[str, bool]:
    """An entry of the certificate, at any depth; the pages say what it says."""
    certificate = certificate_of(release)
    places = [place for place in _entries(certificate) if place[0] != "files"]
    place = draw.choice(places)
    inner: Any = certificate
    for part in place[:-1]:
        inner = inner[part]
    old = inner[place[-1]]
    if isinstance(old, dict | list):
        inner[place[-1]] = type(old)() if draw.random() < 0.5 else copy.deepcopy(old)
    elif old is None or isinstance(old, bool):
        inner[place[-1]] = "x" if old is None else not old
    else:
        inner[place[-1]] = other_value(old, draw)
    what = f"entry {'/'.join(map(str, place))}"
    if inner[place[-1]] == old:
        return what, True
    try:
        reissue(release, certificate)
    except Exception:
        (release / "certificate.json").write_text(json.dumps(certificate))
    stamps = certificate["runs"][0]["stamps"]
    stamped = "stamps" in place and isinstance(stamps, list) and STAMPS.issuperset(stamps)
    return what, place in DECLARED or place[:2] == ("account", "places") or stamped


def _entries(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from _entries(inner, (*at, key))


def _bytes_changed(release: Path, draw: random.Random) -> tuple[str, bool]:
    path = draw.choice([path for path in sorted(release.rglob("*")) if path.is_file()])
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data))
    kind = draw.randrange(4)
    if kind == 0:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data += b"\n<script>alert(1)</script>"
    else:
        data[at:at] = b"0"
    before = pq.ParquetFile(path).read() if path.suffix == ".parquet" else None
    path.write_bytes(data)
    if before is not None:
        with contextlib.suppress(Exception):
            if pq.ParquetFile(path).read().equals(before):  # bits that no reader looks at
                return f"bytes of {path.relative_to(release)}", True
    return f"bytes of {path.relative_to(release)}, change {kind}", path.name == "certificate.sig"


def _files_changed(release: Path, draw: random.Random) -> tuple[str, bool]:
    files = [path for path in sorted(release.rglob("*")) if path.is_file() and path.name != "certificate.sig"]
    path = draw.choice(files)
    kind = draw.randrange(5)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.with_name("more" + path.suffix).write_bytes(path.read_bytes())
    elif kind == 2:
        other = draw.choice(files)
        path.write_bytes(other.read_bytes())
    elif kind == 3:
        (path.parent / draw.choice(("x.txt", ".hidden", "a b", "truth.csv"))).write_text("the truth")
    elif path.suffix == ".parquet":
        store(path, pq.ParquetFile(path).read(), {b"note": b"the true records"})
    fewer = kind == 0 and path.parent.name == "tables"  # a release without it is one, too
    return f"file {path.relative_to(release)}, change {kind}", fewer


KINDS: dict[str, Callable[[Path, random.Random], str]] = {
    "run files": run_file,
    "products": product,
    "environment": environment,
    "tampering": tampering,
}


def attempt(kind: str, number: int) -> str:
    """Make one try in a folder of its own; return how it ended.

    Raises
    ------
    Defect
        If a rule is broken: see ``docs/explanation/fuzzing.md``.
    """
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return KINDS[kind](folder, random.Random(f"{kind} {number}"))
    except (Defect, OpendasError) as error:
        raise Defect(str(error)) from error
    except Exception as error:
        raise Defect("".join(traceback.format_exception(error))[-1500:]) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tries(arguments: Sequence[str] | None = None) -> int:
    """Make so many tries, the kinds in turn; print a table, and each failure with what repeats it."""
    parser = argparse.ArgumentParser(prog="fuzz.hostile", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--tries", type=int, default=400)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first try of a kind")
    parser.add_argument("--kind", choices=tuple(KINDS), action="append", help="by default all")
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")
    os.environ.setdefault("OPENDAS_BOOKS", tempfile.mkdtemp(prefix="hostile-books-"))
    kinds = chosen.kind or list(KINDS)
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    failures = 0
    started = time.monotonic()
    for number in range(chosen.tries):
        kind, which = kinds[number % len(kinds)], chosen.first + number // len(kinds)
        try:
            ends[kind][attempt(kind, which)] += 1
        except Defect as defect:
            failures += 1
            ends[kind]["FAILED"] += 1
            sys.stdout.write(f"FAILED {kind} {which}: {defect}" + "\n")
            sys.stdout.flush()
    sys.stdout.write("\n| Tries | Number | Failures | Ends |\n|---|---|---|---|" + "\n")
    for kind in kinds:
        told = ", ".join(f"{count} {end}" for end, count in sorted(ends[kind].items()))
        sys.stdout.write(f"| {kind} | {ends[kind].total():,} | {ends[kind]['FAILED']} | {told} |" + "\n")
    sys.stdout.write(
        f"\n{chosen.tries:,} tries, {failures} failures, {time.monotonic() - started:.0f} s" + "\n"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(tries())
