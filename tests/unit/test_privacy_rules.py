"""Rules of privacy that single modules keep. The table of all rules is ``docs/proofs/rules.md``."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import pl94_zip
from support.assembled import Assembled, assemble
from support.mini import from_dense, mini_frame, mini_histogram, mini_product
from support.noise import packed
from support.sources import imports_of, nodes_of, path_of, paths

import opendas.measurement.noisy as noisy
import opendas.measurement.plan as plan_module
import opendas.sampling.noise as noise_module
from opendas.custody.run_key import RunKey
from opendas.custody.stamps import DEMONSTRATION_FRAME
from opendas.engines.truth import input_tag
from opendas.errors import BudgetError, ConfigError, DataError
from opendas.files.geography_files import write_frame
from opendas.measurement.plan import MeasurementPlan
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.readers.input.spec import FRAME_FROM_RECORDS, ReaderSpec
from opendas.readers.registry import make_reader
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.release import release
from opendas.sampling.inverse_cdf import LAST_REFINEMENT, SamplerTable
from opendas.sampling.laws import MAX_FLOORS, DiscreteGaussian, DiscreteLaplace
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons, pl94_units
from opendas.schema.product import Product

Blocks = set[tuple[int, int]]


@pytest.fixture(name="run", scope="module")
def _run() -> Assembled:
    frame = mini_frame()
    return assemble(mini_product(), frame, mini_histogram(frame))


# 2. Addresses, as the cipher sees them.


@pytest.fixture(name="cipher")
def _cipher(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every block that is encrypted, first words and refinements alike."""
    seen: list[tuple[int, int]] = []
    encrypt, word = noise_module._Scratch.encrypt, noise_module.NoiseSource._word

    def watched(self: noise_module._Scratch, count: int) -> None:
        seen.extend((int(high), int(low)) for high, low in self.blocks[:count])
        encrypt(self, count)

    def refined(self: noise_module.NoiseSource, block: bytes, refinement: int) -> int:
        low = int.from_bytes(block[8:], "little") | refinement
        seen.append((int.from_bytes(block[:8], "little"), low))
        return word(self, block, refinement)

    monkeypatch.setattr(noise_module._Scratch, "encrypt", watched)
    monkeypatch.setattr(noise_module.NoiseSource, "_word", refined)
    return seen


def planned_addresses(run: Assembled) -> Blocks:
    """The address of every answer of a plan, written out."""
    found: Blocks = set()
    for number, level in enumerate(run.plan.levels):
        for query in level.queries:
            place = run.product.query_names.index(query.query.name)
            for unit in range(len(run.spine.levels[number])):
                for cell in range(query.query.size):
                    found.add(packed(number, unit, place, cell))
    return found


def measure_all(run: Assembled) -> None:
    measured = run.measurements()
    for number, level in enumerate(run.spine.levels):
        measured.full(number, 0, len(level))


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_plan_draws_every_address_once_and_no_other(
    mechanism: Mechanism, cipher: list[tuple[int, int]]
) -> None:
    frame = mini_frame()
    queries = {name: Fraction(1, 6) for name in mini_product().query_names}
    run = assemble(mini_product(), frame, mini_histogram(frame), queries=queries, mechanism=mechanism)
    measure_all(run)
    first = [block for block in cipher if block[1] & 0xFFFF == 0]
    assert len(set(cipher)) == len(cipher)
    assert set(first) == planned_addresses(run)
    answers = sum(q.query.size for level in run.plan.levels for q in level.queries) // 3
    assert len(first) == answers * (2 + 6 + 24)


def test_refined_draws_have_addresses_of_their_own(
    run: Assembled, cipher: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take every word for undecided: each draw then reads a second block, and its value stays the same."""
    plain = run.measurements().full(2, 0, 24)
    cipher.clear()
    lookup = SamplerTable.lookup

    def undecided(self: SamplerTable, words: np.ndarray, out: np.ndarray, ties: np.ndarray) -> int:
        lookup(self, words, out, ties)
        ties[: len(out)] = np.arange(len(out))
        return len(out)

    monkeypatch.setattr(SamplerTable, "lookup", undecided)
    refined = run.measurements().full(2, 0, 24)
    assert all(np.array_equal(one, two) for one, two in zip(plain, refined, strict=True))
    assert len(set(cipher)) == len(cipher)
    assert sum(block[1] & 0xFFFF == 1 for block in cipher) == len(cipher) // 2


def test_a_lazy_run_draws_addresses_of_the_plan_only(run: Assembled, cipher: list[tuple[int, int]]) -> None:
    from opendas.engines.drive import estimate_spine

    estimate_spine(
        run.spine, run.constraints, run.worker(), histogram=run.counts, estimator="topdown", workers=1
    )
    drawn = {block for block in cipher if block[1] & 0xFFFF == 0}
    assert drawn
    assert drawn <= planned_addresses(run)
    assert len(drawn) == len([block for block in cipher if block[1] & 0xFFFF == 0]), "none is drawn twice"


def test_geolevels_queries_and_geounits_do_not_collide_at_their_limits() -> None:
    """The largest index of each field next to the smallest of the one above it."""
    edges = [(0, 2**8 - 1), (0, 2**40 - 1), (0, 2**16 - 1), (0, 2**48 - 1), (0, 2**16 - 1)]
    assert len({packed(*address) for address in itertools.product(*edges)}) == 32


def test_one_query_group_cannot_be_measured_twice_under_one_address(run: Assembled) -> None:
    """Two spellings of one group would draw the same words for two answers."""
    from opendas.budget.allocation import Budget

    shares = {"kind * minor": Fraction(1, 2), "minor * kind": Fraction(1, 2)}
    budget = Budget(
        Mechanism.DISCRETE_GAUSSIAN,
        Neighbours.BOUNDED,
        Fraction(1),
        {name: Fraction(1, 3) for name in run.spine.names},
        dict.fromkeys(run.spine.names, shares),
    )
    with pytest.raises(BudgetError):
        MeasurementPlan(run.product, run.spine, budget)


# 2. Derived keys.


def calls_of(method: str) -> list[tuple[str, ast.Call]]:
    return [
        (path_of(name), node)
        for name in paths()
        for node in nodes_of(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]


def test_keys_are_derived_in_one_place_with_product_plan_and_tag() -> None:
    # Run keys; what seals a key file derives keys of its own.
    others = ("custody/run_key.py", "custody/passphrase.py")
    found = [(path, ast.unparse(call)) for path, call in calls_of("derive") if path not in others]
    assert found == [
        ("custody/input_tag.py", "key.derive('input tag, entries')"),
        ("phsafe/measure.py", "key.derive(KEY_PURPOSE, name.encode())"),
        ("phsafe/measure.py", "key.derive(f'noise/phsafe/{table.name}/{level.name}', *bound)"),
        # Which records of a unit are counted: no input tag in it, as in household tables.
        ("runs/prepare.py", "key.derive(TRUNCATION_PURPOSE, product, part)"),
        (
            "runs/release.py",
            "charged.key.derive('noise/' + state.product, bytes.fromhex(state.plan_digest), "
            "bytes.fromhex(state.input_tag))",
        ),
        # Seeded only: the noise of a seed is meant to be the same for every plan that is tried.
        ("runs/simulated/simulation.py", "RunKey.seeded(seed).derive(purpose, *bound)"),
        ("runs/starting/discovery.py", "key.derive('discovery', bytes.fromhex(digest), bytes.fromhex(tag))"),
    ]


def test_purposes_give_different_keys() -> None:
    real, seeded = RunKey(b"\7" * 32), RunKey(b"\7" * 32, is_seeded=True)
    plan, tag = b"p" * 32, b"t" * 32
    derived = []
    for key in (real, seeded):
        derived += [key._derive(b"tag"), key._derive(b"commitment")]
        derived += [key.derive(name) for name in ("tag", "commitment", "purpose", "")]
        derived += [
            key.derive("noise/" + product, *fields)
            for product in ("pl94-persons", "pl94-units", "mini")
            for fields in ((plan, tag), (tag, plan), (plan + tag,), (plan,), (tag,), ())
        ]
        derived += [key._secret]
    assert len(set(derived)) == len(derived) - 1, "all but the secret, which the two kinds share here"


# 1. Digests: every module that can make one, and of what.

HASHES = {
    "budget/allocation.py": "the budget",
    "engines/checkpoint.py": "finished tasks: estimates and noisy answers, under state/",
    "engines/spark/session.py": "source files of the package",
    "engines/subtree.py": "geocodes, which are public",
    "topdown/posterior.py": "geocodes and noisy answers of a family: the seed of its chains, in memory",
    "geography/spine.py": "the spine",
    "custody/folders.py": "files of a release",
    "files/storage/remote.py": "files of a release, read back",
    "files/replicate_files.py": "released counts",
    "files/release_folder.py": "certified digests of released microdata",
    "files/mdf/layout.py": "geocodes, which are public: names of files",
    "measurement/discovery.py": "the plan of a discovery",
    "measurement/plan.py": "the plan",
    "phsafe/inputs/linking.py": "rows, for the keyed tag alone: in memory, never written",
    "phsafe/config.py": "the plan",
    "phsafe/truncation.py": "rows of a household in the published order: in memory, never written",
    "custody/ledger_lines.py": "lines of the ledger",
    "custody/signing_key.py": "a public key: its fingerprint",
    "custody/run_key.py": "keyed, by HKDF and HMAC; and seeds",
    "runs/context/account.py": "files of the input, for the keyed tag alone: in memory, never written",
    "report/certificate.py": "files of a release",
    "report/pdf.py": "the date of the certificate",
    "report/views.py": "files of a release",
    "runs/context/run.py": "the plan and the settings of estimation",
    "runs/simulated/finished.py": "names, sizes and times of input files, and what is asked of them",
}


def test_the_modules_that_make_digests_are_these() -> None:
    hashing = ("hashlib", "hmac")
    found = {
        path_of(name) for name in paths() if any(of.split(".")[0] in hashing for of, _ in imports_of(name))
    }
    assert found == set(HASHES)


def test_the_table_is_serialised_for_the_keyed_tag_only() -> None:
    found = [(path, ast.unparse(call)) for path, call in calls_of("canonical_bytes")]
    outside = [text for path, text in found if path != "geography/spine.py"]
    assert outside == ["households.canonical_bytes()"]
    tagged = [(path, ast.unparse(call)) for path, call in calls_of("tag") if path != "custody/run_key.py"]
    assert sorted(tagged) == [
        ("custody/books.py", "key.tag(_FILE + digest)"),
        ("custody/books.py", "self.key.tag(b'opendas head of a book 1' + bytes.fromhex(head))"),
        ("custody/input_tag.py", "key.tag(b'opendas histogram 2' + b''.join(fields))"),
        ("phsafe/run.py", "key.tag(households.canonical_bytes())"),
        ("runs/starting/discovery.py", "key.tag(canonical_json(entries))"),
    ]


def test_the_tag_tells_all_tables_apart() -> None:
    frame = mini_frame(1, 1, 2)
    tables = [mini_histogram(frame, seed=seed) for seed in range(4)]
    one = np.zeros((2, 9), dtype=np.int64)
    for row, cell, count in ((0, 1, 1), (1, 1, 1), (0, 2, 1), (0, 1, 2)):
        other = one.copy()
        other[row, cell] = count
        tables.append(from_dense(other))
    tables.append(Histogram.from_entries(np.zeros(1, int), np.ones(1, int), np.ones(1, int), shape=(2, 10)))
    key = RunKey.seeded(1)
    assert len({input_tag(key, table) for table in tables}) == len(tables)
    assert input_tag(RunKey.seeded(2), tables[0]) != input_tag(key, tables[0])


# 3. Lazy answers: the mutant that must show.


def test_mutant_a_support_restricted_marginal_differs_from_the_full_file(
    run: Assembled, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = np.array([0, 4], dtype=np.int32)

    def lazy_equals_full() -> bool:
        measured = run.measurements()
        equal = True
        for number, level in enumerate(run.spine.levels):
            full = measured.full(number, 0, len(level))
            lazy = measured.family(number, 0, len(level), support)
            for query, values in zip(lazy.queries, full, strict=True):
                equal &= np.array_equal(query.values, values[:, query.rows])
        return equal

    assert lazy_equals_full()
    genuine: Callable[..., None] = noisy.sum_rows

    def restricted(indptr, cells, counts, first, row_of_cell, position, out):  # type: ignore[no-untyped-def]
        lazily = len(position) != out.shape[1] or not np.array_equal(position, np.arange(out.shape[1]))
        kept = np.where(np.isin(cells, support), counts, 0) if lazily else counts
        genuine(indptr, cells, kept, first, row_of_cell, position, out)

    monkeypatch.setattr(noisy, "sum_rows", restricted)
    assert not lazy_equals_full()


# 4. What the release may say about the frame.

RUN = """\
[run]
product = {product}
{run}
[input]
reader = "histogram"
path = "counts.csv"
{more}
[geography]
levels = [{{ name = "state", prefix = 2 }}, {{ name = "county", prefix = 5 }}]
frame = {frame}
{geography}
[budget]
rho = "1"
geolevels = {{ state = "1/2", county = "1/2" }}
[budget.queries]
"*" = {{ detailed = "1" }}
"""
COUNTIES = [f"01{number:03d}" for number in range(4)]
OWN = (
    '[product]\nname = "homes"\nprovenance = "code-book"\n'
    '[attributes]\noccupancy = ["vacant", "occupied"]\n[queries]\ngroups = []\n'
)


def public_part(folder: Path, counts: dict[str, int], **parts: str) -> tuple[dict[str, list[int]], dict]:
    """Run on counts of one kind of record; returns the released unit columns, and the certificate's run."""
    folder.mkdir()
    (folder / "frame.csv").write_text("geocode\n" + "\n".join(COUNTIES) + "\n")
    (folder / "own.toml").write_text(OWN)
    column = parts.pop("column", "occupancy")
    label = parts.pop("label", "occupied")
    rows = "\n".join(f"{code},{label},{count}" for code, count in counts.items())
    (folder / "counts.csv").write_text(f"geocode,{column},count\n{rows}\n")
    defaults = {"product": '"pl94-units"', "run": "", "more": "", "frame": '"frame.csv"', "geography": ""}
    (folder / "run.toml").write_text(RUN.format(**(defaults | parts)))
    release(load(folder / "run.toml"), folder / "out", RunOptions())
    (path,) = (folder / "out" / "release" / "geography").iterdir()
    table = pq.read_table(path).to_pydict()
    certificate = json.loads((folder / "out" / "release" / "certificate.json").read_text())
    units = {name: values for name, values in table.items() if name.startswith("units:")}
    return units, certificate["runs"][0]


NOTHING_EXACT = "No statistic of the confidential data is published exactly"
ONE = {"01000": 17, "01002": 5}
TWO = {"01000": 3, "01001": 4, "01002": 15}


@pytest.mark.parametrize(
    "parts",
    [
        {"run": 'drop_invariants = ["total"]'},
        {"run": 'drop_invariants = ["total"]\nneighbours = "unbounded"'},
        {"product": '"own.toml"', "geography": 'provenance = "public"'},
    ],
    ids=["dropped", "unbounded", "own product"],
)
def test_units_that_are_not_invariant_do_not_reach_the_released_frame(
    tmp_path: Path, parts: dict[str, str]
) -> None:
    """Housing units derived from the records may be published only where their number is invariant."""
    found = [public_part(tmp_path / name, counts, **parts) for name, counts in (("a", ONE), ("b", TWO))]
    assert found[0][0] == found[1][0]
    assert found[0][1]["invariants"] == []
    assert found[0][1]["stamps"] == []
    assert NOTHING_EXACT in found[0][1]["guarantee"]


def test_invariant_units_are_published_and_listed(tmp_path: Path) -> None:
    units, entry = public_part(tmp_path / "a", ONE)
    assert units["units:hu"] == [17, 0, 5, 0]
    assert entry["invariants"] == ["total@county"]


PERSON = {
    "product": '"pl94-persons"',
    "column": "votingage",
    "label": "18plus",
    "run": 'drop_invariants = ["total"]',
}


def persons(hhgq: str) -> dict[str, str]:
    constants = f'{{ hhgq = "{hhgq}", hispanic = "hispanic", cenrace = "white" }}'
    return PERSON | {"more": f"constants = {constants}"}


def test_a_declared_household_population_says_nothing_about_leaves(tmp_path: Path) -> None:
    found = [public_part(tmp_path / n, c, **persons("household")) for n, c in (("a", ONE), ("b", TWO))]
    assert found[0][0] == found[1][0]
    assert found[0][1]["stamps"] == []


def test_group_quarters_found_in_the_records_are_stamped_even_of_a_constant_type(tmp_path: Path) -> None:
    units, entry = public_part(tmp_path / "a", ONE, **persons("nursing"))
    assert units["units:gq3"] == [1, 0, 1, 0]
    assert entry["stamps"] == [DEMONSTRATION_FRAME]
    assert "The frame was derived from confidential counts" in entry["guarantee"]
    assert NOTHING_EXACT not in entry["guarantee"]


def test_a_frame_from_records_is_declared_in_the_words_of_the_certificate(tmp_path: Path) -> None:
    parts = {"product": '"own.toml"', "frame": f'"{FRAME_FROM_RECORDS}"'}
    _, entry = public_part(tmp_path / "a", ONE, **parts)
    assert "whether a leaf is populated is published" in entry["guarantee"]
    assert NOTHING_EXACT not in entry["guarantee"]


# 7. Overflow.


def test_counts_near_the_limit_are_refused_and_below_it_do_not_overflow() -> None:
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(DataError, match="too large"):
        Histogram.from_entries(one, one, np.array([2**62 + 2**10]), shape=(1, 1))
    # Counts sum to less than 2**62. A table has at most MAX_FLOORS thresholds: the last refinement of a draw
    # from the widest laws does not come near 2**61.
    for law in (DiscreteGaussian(Fraction(49 * 10**9)), DiscreteLaplace(Fraction(46_000))):
        assert MAX_FLOORS * 0.95 < law.tail_length(64) <= MAX_FLOORS
        assert law.tail_length(64 * (LAST_REFINEMENT + 1)) < 2**38


# 8. Seeds, and what a ledger path may be.


def test_the_ledger_cannot_lie_in_the_release(tmp_path: Path) -> None:
    from support.mini import write_mini

    out = tmp_path / "out"
    for part in ("release", "state", "confidential"):
        (out / part).mkdir(parents=True)
    with pytest.raises(ConfigError, match="not for publication"):
        release(load(write_mini(tmp_path)), out, RunOptions(ledger=out / "release" / "ledger.jsonl"))
    assert not list(out.rglob("ledger.jsonl"))


# 4. Published counts in geographic headers; values in messages of the official readers.


@pytest.mark.parametrize("year", [2010, 2020])
def test_published_counts_in_a_header_change_nothing(
    tmp_path: Path, year: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    genuine = pl94_zip.header
    for marker in (1, 77317):

        def marked(fields: dict[str, str], number: int, cells: dict[str, list[int]], year: int) -> str:
            counts = {"P1": [marker], "H1": [marker + 1]}  # noqa: B023
            return genuine(fields, number, counts, year)

        monkeypatch.setattr(pl94_zip, "header", marked)
        path = pl94_zip.write_zip(tmp_path / f"{marker}.zip", pl94_zip.some_blocks(), year)
        data = make_reader(ReaderSpec(f"pl94-{year}", (path,), pl94_persons())).read()
        write_frame(tmp_path / f"{marker}.parquet", data.frame, pl94_persons())
        found.append((tmp_path / f"{marker}.parquet").read_bytes())
        text = "".join(str(part) for part in pq.read_table(tmp_path / f"{marker}.parquet").to_pylist())
        assert "77317" not in text
    assert found[0] == found[1]


SPOILED = {
    "letters in a count": lambda text: text.replace(",5,", ",77Q317,", 1).replace("|5|", "|77Q317|", 1),
    "a count too large": lambda text: text.replace(",5,", f",{'77317' * 6},", 1).replace(
        "|5|", f"|{'77317' * 6}|", 1
    ),
    "a count that does not add up": lambda text: text.replace(",5,", ",77317,", 1).replace(
        "|5|", "|77317|", 1
    ),
    "a field more": lambda text: text.replace("\n", ",77317\n", 1).replace("\n", "|77317\n", 1),
}


@pytest.mark.parametrize("year", [2010, 2020])
@pytest.mark.parametrize("what", list(SPOILED))
@pytest.mark.parametrize("product", [pl94_persons, pl94_units])
def test_messages_of_the_official_readers_quote_no_value(
    tmp_path: Path, year: int, what: str, product: Callable[[], Product]
) -> None:
    blocks = pl94_zip.some_blocks()
    texts = pl94_zip.members(blocks, year)
    changed = {
        name: SPOILED[what](text) for name, text in texts.items() if "geo" not in name and "00002" in name
    }
    assert changed != {name: texts[name] for name in changed}
    path = pl94_zip.write_zip(tmp_path / "fb.zip", blocks, year, changed)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        make_reader(ReaderSpec(f"pl94-{year}", (path,), product(), strict=True)).read()
    assert "77317" not in str(caught.value)
    assert "77Q317" not in str(caught.value)


# 2. The same key, plan and input must mean the same noise for ever, or another format.

GOLDEN_ROOT = [[22], [11, -30, -6, -26, -28, -21], [15, -7, -18, 16, 15, 5, -10, -19, -2]]
GOLDEN_SUMS = [-4, -46, -143]
GOLDEN_DIGEST = "7105f6a7ca49d37a7d0d7de2758a09b1c0dd2938f7c46d242a24d04bcc5525b0"


def test_golden_noise_of_a_plan() -> None:
    """If this fails because addresses, tables or the numbering of a plan changed: raise ``FORMAT``.

    It stands in ``measurement/plan.py`` and enters the noise key. Otherwise one key would use one word for
    two different answers in two versions of the program, and the difference of the counts could be read off.
    """
    frame = mini_frame(1, 2, 2)
    empty = from_dense(np.zeros((4, 9), dtype=np.int64))
    run = assemble(mini_product(invariant=False), frame, empty, rho=Fraction(1, 50))
    noise = run.measurements()
    assert [values[0].tolist() for values in noise.full(0, 0, 1)] == GOLDEN_ROOT
    assert [int(values.sum()) for values in noise.full(2, 0, 4)] == GOLDEN_SUMS
    assert plan_module.FORMAT == "opendas measurement plan 1"
    assert run.plan.digest() == GOLDEN_DIGEST
