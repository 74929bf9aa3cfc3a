"""What is fuzzed: a seed, the files of it that are damaged, and the call that reads them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.mini import mini_frame, mini_product

import opendas
from fuzz.oracle import Defect, Outcome, command
from fuzz.seeds import MARK, Files, seed
from opendas.allocation.level_counts import read_level_counts
from opendas.custody.ledger import Ledger
from opendas.files.area_files import Blocks, read_area_file
from opendas.geography.frame import Frame, LevelRule, official_codes
from opendas.phsafe.config import Mode, read_config
from opendas.phsafe.run import HouseholdOptions, validate_input
from opendas.readers import InputData, ReaderSpec, UnitsSpec, make_reader
from opendas.readers.frame.block_assignment import with_assignments
from opendas.runs.plan import make_plan
from opendas.runs.starting.guess import guess_table
from opendas.runs.starting.reading import columns_of
from opendas.runs.starting.wide import melt
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.tuning.targets import load_targets

__all__ = ["TARGETS", "Target"]

Call = Callable[[Path], object]

_MINI_LEVELS = (LevelRule("region", 2), LevelRule("town", 4), LevelRule("block", 6))
_BLOCKS = np.array([b"980010001001000", b"980010001001001"])


@dataclass(frozen=True)
class Target:
    """One way in.

    Parameters
    ----------
    name : str
    example : str
        Name of the seed.
    damage : tuple of str
        Patterns of the seed's files that are damaged.
    call : callable(folder)
        Reads them; raises an error of :mod:`opendas.errors`, or returns.
    writes : bool
        The call writes into the folder, which is made again for every input.
    marks : tuple of str
        Confidential values of the seed that no message may quote.
    share : float
        Inputs in a campaign, as a share of the others'.
    """

    name: str
    example: str
    damage: tuple[str, ...]
    call: Call
    writes: bool = False
    marks: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def files(self) -> Files:
        return seed(self.example)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The files of the seed that are damaged."""
        return tuple(name for name in self.files if any(fnmatch.fnmatch(name, one) for one in self.damage))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may quote."""
        if self.example not in ("cef", "cef-households"):
            return self.marks
        records = b"".join(data for name, data in self.files.items() if "CEF20" in name)
        return tuple(sorted({found.decode() for found in re.findall(rb"(?m)^.(\d{9})", records)}))[:50]


def _checked(data: InputData) -> None:
    """Check what a reader gave: a leaf a row, counts from 1, cells of the product."""
    histogram = data.histogram
    if histogram.rows != len(data.frame) or len(np.unique(data.frame.geocodes)) != len(data.frame):
        raise Defect("rows of the histogram are not the leaves of the frame")
    if len(histogram.counts) and (histogram.counts.min() < 1 or histogram.cells.min() < 0):
        raise Defect("an accepted histogram with a count below 1")
    if len(histogram.cells) and histogram.cells.max() >= histogram.size:
        raise Defect("an accepted histogram with a cell outside its schema")


def _plan(folder: Path) -> None:
    make_plan(opendas.load(folder / "run.toml"))


def _read(folder: Path) -> None:
    _checked(opendas.load(folder / "run.toml").read())


def _targets(folder: Path) -> None:
    load_targets(folder / "targets.toml", mini_product(), ("region", "town", "block"))


def _records(folder: Path) -> None:
    spec = ReaderSpec(
        "records", (folder / "records.csv",), mini_product(), levels=_MINI_LEVELS, frame=folder / "frame.csv"
    )
    _checked(make_reader(spec).read())


def _pl94(year: int) -> Call:
    def call(folder: Path) -> None:
        for product in (pl94_persons(), pl94_units()):
            reader = make_reader(ReaderSpec(f"pl94-{year}", (folder / "fb.zip",), product))
            reader.frame()
            _checked(reader.read())

    return call


def _cef(folder: Path) -> None:
    for product in (pl94_persons(), pl94_units()):
        spec = ReaderSpec(
            "cef",
            (folder / "CEF20_PER_99.txt",),
            product,
            unit_records=(folder / "CEF20_UNIT_99.txt",),
            block_files=(folder / "GRFC_99.txt",),
        )
        _checked(make_reader(spec).read())


def _mdf(kind: str) -> Call:
    def call(folder: Path) -> None:
        units = UnitsSpec(folder / "units.csv", "block")
        paths = (folder / "persons.txt",)
        _checked(make_reader(ReaderSpec(kind, paths, pl94_persons())).read())
        _checked(make_reader(ReaderSpec(kind, paths, pl94_persons(), units=units)).read())

    return call


def _assignment(folder: Path) -> None:
    frame = Frame(_BLOCKS, official_codes(_BLOCKS, "state"), "block")
    with_assignments(frame, sorted(path for path in folder.iterdir()))


def _areas(folder: Path) -> None:
    for path in sorted(folder.glob("areas.*")):
        found = read_area_file(path, Blocks(mini_frame()))
        if not np.isfinite(found.weight).all():
            raise Defect("an accepted weight that is not finite")


def _interval(folder: Path) -> None:
    noisy = opendas.NoisyFile(folder / "out")
    for geolevel in ("region", "block"):
        noisy.intervals("kind", geolevel=geolevel).to_arrow()


def _bureau(folder: Path) -> None:
    noisy = opendas.NoisyFile(folder / "nmf")
    noisy.intervals("H1", geolevel="county").to_arrow()


def _levels(folder: Path) -> None:
    found = read_level_counts(folder / "levels.json")
    opendas.allocate(found.levels, "discrete-gaussian", total="1")


def _household_config(folder: Path) -> None:
    for mode in Mode:
        read_config(folder / "config.json", mode)


def _households(folder: Path) -> None:
    validate_input(folder / "config.json", folder / "data", HouseholdOptions())


def _cef_households(folder: Path) -> None:
    validate_input(folder / "config.json", folder / "cef_config.ini", HouseholdOptions())


def _guess(folder: Path) -> None:
    """The counts are a long table; the frame, with a column for each kind of unit, is a wide one."""
    for path in sorted(folder.glob("counts.*")):
        guess_table(path)
    for path in sorted(folder.glob("frame.*")):
        melt(columns_of(path), "all", folder / "long.csv")


def _ledger(folder: Path) -> None:
    Ledger.read(folder / "out" / "ledger.jsonl")


def _status(folder: Path) -> Outcome:
    return command(folder, "status", str(folder / "out"))


def _no_release(out: Path) -> None:
    if (out / "release" / "certificate.json").exists():
        raise Defect("a refused run left a release")


def _run(folder: Path) -> Outcome:
    """The whole command; what it accepts must verify, what it refuses must leave nothing to publish."""
    out = folder / "out"
    run = ("run", str(folder / "run.toml"), "--out", str(out), "--seed", "1", "--workers", "1", "--json")
    outcome = command(folder, *run)
    if outcome.code:
        _no_release(out)
        if outcome.code in (2, 3, 4) and out.exists() and any(out.iterdir()):
            raise Defect(f"refused with {outcome.code}, and left {sorted(p.name for p in out.iterdir())}")
    elif command(folder, "verify", str(out), "--allow-seeded").code:
        raise Defect("an accepted run whose release does not verify")
    return outcome


def _verify(folder: Path) -> Outcome:
    return command(folder, "verify", str(folder / "out"), "--allow-seeded", "--json")


def _tabulate(folder: Path) -> Outcome:
    out = str(folder / "out")
    to = str(folder / "tables")
    outcome = command(folder, "tabulate", out, "--tables", "kind", "--geolevel", "town", "--to", to)
    again = command(folder, "evaluate", out, "--truth", str(folder / "run.toml"), "--json")
    return outcome if outcome.code else again


def _resume(folder: Path) -> Outcome:
    """A finished or unfinished run goes on, or is refused; its release is never replaced by a part of one."""
    out = folder / "out"
    run = ("run", str(folder / "run.toml"), "--out", str(out), "--seed", "1", "--workers", "1", "--json")
    return command(folder, *run, "--measurements", "full", "--resume")


def _unfinished(folder: Path) -> Outcome:
    """An interrupted run has to finish, or refuse."""
    outcome = _resume(folder)
    out = str(folder / "out")
    if outcome.code:
        _no_release(folder / "out")
    elif command(folder, "verify", out, "--allow-seeded").code:
        raise Defect("a resumed run whose release does not verify")
    return outcome


def _household_verify(folder: Path) -> Outcome:
    return command(folder, "verify", str(folder / "out"), "--allow-seeded", "--json")


_MARKED = (MARK,)

_ALL = (
    Target("run-file", "mini", ("run.toml",), _plan),
    Target("product-file", "mini", ("product.toml",), _plan),
    Target("targets-file", "mini", ("targets.toml",), _targets),
    Target("histogram-csv", "mini", ("counts.csv",), _read, marks=_MARKED),
    Target("frame-csv", "mini", ("frame.csv",), _read, marks=_MARKED),
    Target("histogram-parquet", "parquet", ("counts.parquet",), _read, marks=_MARKED),
    Target("frame-parquet", "parquet", ("frame.parquet",), _read, marks=_MARKED),
    Target("records-csv", "records", ("records.csv",), _records, marks=_MARKED),
    Target("guess", "mini", ("counts.csv", "frame.csv"), _guess),
    Target("guess-parquet", "parquet", ("*.parquet",), _guess),
    Target("pl94-2010", "pl94-2010", ("fb.zip",), _pl94(2010), marks=_MARKED),
    Target("pl94-2020", "pl94-2020", ("fb.zip",), _pl94(2020), marks=_MARKED),
    Target("cef", "cef", ("CEF*", "GRFC*"), _cef),
    Target("mdf", "mdf", ("*",), _mdf("mdf"), marks=_MARKED),
    Target("ppmf", "mdf", ("*",), _mdf("ppmf"), marks=_MARKED),
    Target("block-assignment", "assignment", ("*",), _assignment),
    Target("blocks-file", "areas", ("*",), _areas),
    Target("level-counts", "levels", ("levels.json",), _levels),
    Target("measurements", "release", ("out/release/measurements/*", "out/release/geography/*",
                                       "out/release/certificate.json", "out/release/run/*"), _interval),
    Target("measurements-bureau", "bureau", ("nmf/*",), _bureau),
    Target("household-config", "households", ("config.json",), _household_config),
    Target("households", "households", ("data/*",), _households, marks=_MARKED),
    Target("cef-households", "cef-households", ("CEF*", "GRFC*", "*config*"), _cef_households),
    Target("ledger", "release", ("out/ledger.jsonl",), _ledger),
    Target("status", "release", ("out/[sc]*", "out/ledger.jsonl"), _status, marks=_MARKED),
    Target("verify", "release", ("out/release/*",), _verify, share=0.5),
    Target("tabulate", "release", ("out/release/*",), _tabulate, True, share=0.2),
    Target("verify-households", "household-tables", ("out/*",), _household_verify, share=0.3),
    Target("run-command", "mini", ("[rpcf]*",), _run, True, _MARKED, 0.3),
    Target("resume-finished", "release", ("out/*", "run.toml", "counts.csv"), _resume, True, _MARKED, 0.3),
    Target("resume-unfinished", "interrupted", ("out/*",), _unfinished, True, _MARKED, 0.3),
)  # fmt: skip

TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
"""Every target by name."""
