"""The privacy wall of ``opendas phsafe``: public bytes are functions of noisy counts and public things.

What the rules are: ``docs/proofs/rules.md``, section 9.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.households import Row, World, configuration, random_world, write_world

import opendas.phsafe.counting as counting_module
import opendas.phsafe.measure as measure_module
import opendas.phsafe.output as output_module
import opendas.phsafe.run as run_module
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.ledger import Ledger
from opendas.custody.run_key import RunKey
from opendas.errors import ConfigError, PrivacyError
from opendas.phsafe.config import Mode, read_config
from opendas.phsafe.counting import exact_cubes
from opendas.phsafe.inputs.linking import bucket_digests, canonical_bytes, link, sort_inputs
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.inputs.records import to_words
from opendas.phsafe.output import exact_declarations
from opendas.phsafe.run import HouseholdOptions, run_private
from opendas.phsafe.tables import TABLES, Derived, find_table
from opendas.privacy.relations import Neighbours
from opendas.sampling.noise import NoiseSource

Capture = pytest.CaptureFixture[str]
Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch

NOT_PUBLIC = ("confidential/", "ledger.jsonl", ".opendas.lock")


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: Patch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


class Case:
    """A folder with data and configuration, and the command on them."""

    def __init__(self, folder: Path, world: World, document: dict[str, Any] | None = None) -> None:
        self.data = write_world(folder / "data", world)
        self.config = folder / "config.json"
        self.config.write_text(json.dumps(document or configuration(tau=3)))
        self.out = folder / "out"

    def __call__(self, *words: str, mode: str = "private") -> int:
        out = [] if mode == "validate" else [str(self.out)]
        return guarded(cli, ["phsafe", str(self.config), str(self.data), *out, "--mode", mode, *words])

    def run(self, **options: Any) -> dict[str, Any]:
        return run_private(self.config, self.data, self.out, HouseholdOptions(**options))


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def public(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in files(folder).items() if not name.startswith(NOT_PUBLIC)}


# Two inputs that agree on every noisy count.


class Injected:
    """Sees the exact counts of each level, and chooses the noise so that the noisy counts are given ones."""

    def __init__(self, patch: Patch, wanted: list[np.ndarray] | None = None) -> None:
        self.exact: list[np.ndarray] = []
        self.noisy: list[np.ndarray] = []
        real_counts, real_draw = output_module.level_counts, measure_module._draw

        def counts(cube: Any, level: Any) -> Any:
            self.exact.append(real_counts(cube, level))
            return self.exact[-1]

        def draw(key: bytes, law: Any, level: Any, shape: tuple[int, ...]) -> Any:
            if wanted is None:
                noise = real_draw(key, law, level, shape)
            else:
                noise = wanted[len(self.noisy)] - self.exact[-1]
            self.noisy.append(self.exact[-1] + noise)
            return noise

        patch.setattr(output_module, "level_counts", counts)
        patch.setattr(measure_module, "_draw", draw)


def one_household_less(world: World) -> World:
    """An occupied household of many becomes vacant; its place stays."""
    persons, units, places = deepcopy(world)
    largest = max(
        (unit for unit in units if unit["HHT"] != "0"),
        key=lambda unit: sum(person["MAFID"] == unit["MAFID"] for person in persons),
    )
    blank = {
        "FINAL_POP": "0",
        "HHSPAN": "0",
        "HHRACE": "00",
        "TEN": "0",
        "HHT": "0",
        "HHT2": "00",
        "CPLT": "0",
    }
    largest.update(blank)
    return [person for person in persons if person["MAFID"] != largest["MAFID"]], units, places


def one_state_empty(world: World) -> World:
    persons, units, places = deepcopy(world)
    for place in places:
        place["TABBLKST"] = "06"
    return persons, units, places


OTHERS: dict[str, Callable[[World], World]] = {
    "one household less": one_household_less,
    "no address in a state": one_state_empty,
    "other people": lambda world: random_world(8, 31),
    "nobody": lambda world: ([], [], []),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("definition", ["zcdp", "puredp"])
def test_equal_noisy_counts_make_equal_public_bytes(
    definition: str, other: str, tmp_path: Path, capsys: Capture
) -> None:
    world = random_world(3, 60)
    document = configuration(tau=3, definition=definition)
    released, said = [], []
    injected: list[Injected] = []
    for name, of in (("a", world), ("b", OTHERS[other](world))):
        case = Case(tmp_path / name, of, document)
        with pytest.MonkeyPatch.context() as patch:
            injected.append(Injected(patch, injected[0].noisy if injected else None))
            assert case("--json") == 0
        answer = json.loads(capsys.readouterr().out)
        said.append({key: answer[key] for key in answer if key not in ("out", "seconds", "peak_rss_mb")})
        if other == "one household less":
            assert guarded(cli, ["phsafe-post", str(case.out), "--published"]) == 0
            capsys.readouterr()
        released.append(public(case.out))
    first, second = injected
    assert len(first.exact) == 46
    assert any(not np.array_equal(one, two) for one, two in zip(first.exact, second.exact, strict=True))
    estimates = [name for name in released[0] if "/estimates/" in name]
    assert len(released[0]) - len(estimates) == 12
    assert bool(estimates) is (other == "one household less")
    assert released[0] == released[1]
    assert said[0] == said[1]


def test_the_comparison_above_sees_a_leak(tmp_path: Path, monkeypatch: Patch) -> None:
    """One number that depends on the records, in the certificate, is found."""
    released = []
    real = run_module.issue_certificate
    for name, world in (("a", random_world(3, 60)), ("b", random_world(8, 31))):
        case = Case(tmp_path / name, world)
        lines = len((case.data / "persons.csv").read_text().splitlines())

        def leaking(out: Path, *rest: Any, lines: int = lines, **more: Any) -> Any:
            written = real(out, *rest, **more)
            (out / "certificate.json").write_text(json.dumps(written | {"records": lines}))
            return written

        monkeypatch.setattr(run_module, "issue_certificate", leaking)
        with pytest.MonkeyPatch.context() as patch:
            shapes = Injected(patch, [np.zeros(1, dtype=np.int64)] * 46)
            case.run()
        assert len(shapes.noisy) == 46
        released.append(public(case.out))
    different = {name for name in released[0] if released[0][name] != released[1][name]}
    assert different == {"certificate.json"}


# What is written where, and who may read it.


def test_a_run_writes_these_files_and_no_others(tmp_path: Path) -> None:
    case = Case(tmp_path, random_world(3, 60))
    before = os.umask(0)
    try:
        answer = case.run()
    finally:
        os.umask(before)
    assert set(public(case.out)) == {*answer["tables"], "certificate.json"}
    assert set(files(case.out)) - set(public(case.out)) == {
        ".opendas.lock",
        "ledger.jsonl",
        "confidential/.gitignore",
        "confidential/mode",
        "confidential/inputs/phsafe.json",
        "confidential/logs/phsafe.jsonl",
        "confidential/state/.gitignore",
        "confidential/state/phsafe/run.json",
        "confidential/timings/phsafe.json",
        "confidential/validation/warnings.json",
    }
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in case.out.iterdir()}
    assert modes["confidential"] == 0o700
    assert modes["ledger.jsonl"] == modes[".opendas.lock"] == 0o600


def test_an_infinite_budget_is_charged_stamped_and_for_its_owner_only(tmp_path: Path) -> None:
    document = configuration(tau=3)
    document["privacy_budget"]["PH3"]["usa_*"] = float("inf")  # type: ignore[index]
    case = Case(tmp_path, random_world(3, 60), document)
    before = os.umask(0)
    try:
        case.run()
    finally:
        os.umask(before)
    assert stat.S_IMODE(case.out.stat().st_mode) == 0o700
    (entry,) = Ledger.read(case.out / "ledger.jsonl")
    assert [entry.loss_under(relation) for relation in Neighbours] == ["infinity", "infinity"]
    assert not entry.seeded
    certificate = json.loads((case.out / "certificate.json").read_text())
    assert certificate["stamps"] == ["NOT FOR RELEASE"]
    assert "published exactly" not in certificate["runs"][0]["guarantee"]
    assert {row["rho"] for row in certificate["totals"]} == {None}
    assert "|0\n" in (case.out / "PH3" / "part-00000-opendas-c000.csv").read_text()
    assert guarded(cli, ["verify", str(case.out)]) == 1
    assert guarded(cli, ["verify", str(case.out), "--allow-seeded"]) == 0


def test_the_certificate_states_what_keyed_noise_costs(tmp_path: Path) -> None:
    case = Case(tmp_path, random_world(3, 60))
    case.run()
    text = json.loads((case.out / "certificate.json").read_text())["runs"][0]["guarantee"]
    assert "(1 + exp(epsilon)) times the advantage" in text
    # One draw a row of the measured tables.
    rows = sum(
        len(data.splitlines()) - 1
        for name, data in public(case.out).items()
        if name.endswith(".csv") and find_table(name.split("/")[0]) is not None
    )
    assert rows > 500
    assert f"here q = {rows:,}, " in text
    assert "No statistic of the confidential data is published exactly." in text


@pytest.mark.parametrize("place", ["exact", "PH3/exact", "../out/PH3"])
def test_exact_counts_go_nowhere_into_a_release(place: str, tmp_path: Path, capsys: Capture) -> None:
    case = Case(tmp_path, random_world(3, 60))
    case.run()
    before = files(case.out)
    words = ["phsafe", str(case.config), str(case.data), str(case.out / place), "--mode", "non-private"]
    assert guarded(cli, words) == 2
    report = ["phsafe-accuracy", str(case.config), str(case.data), "--trials", "1", "--out"]
    assert guarded(cli, [*report, str(case.out / place)]) == 2
    assert "in the release" in capsys.readouterr().err
    assert files(case.out) == before
    words[3] = str(case.out / "confidential" / "exact")
    assert guarded(cli, words) == 0
    assert guarded(cli, ["verify", str(case.out)]) == 0


def test_nor_into_a_release_of_topdown_or_one_without_our_mark(tmp_path: Path) -> None:
    case = Case(tmp_path, random_world(3, 60))
    release = tmp_path / "out" / "release"
    release.mkdir(parents=True)
    (release / "certificate.json").write_text("{}")
    for out in (release / "exact", release / "tables" / "exact"):
        words = ["phsafe", str(case.config), str(case.data), str(out), "--mode", "non-private"]
        assert guarded(cli, words) == 2
    assert set(files(release)) == {"certificate.json"}


# No digest without a key.


def guesses(case: Case) -> Iterator[bytes]:
    """Encodings of the input, whole and in parts, that someone who knows it could hash."""
    config = read_config(case.config, Mode.PRIVATE)
    inputs = sort_inputs(read_csv(case.data, config.state_filter))
    linked = link(inputs, config.state_filter)
    yield canonical_bytes(bucket_digests(inputs))
    for rows in (inputs.persons, inputs.units, inputs.places):
        yield to_words(rows).tobytes()
        yield rows.mafid.tobytes()
    declared = exact_declarations(config)
    for cube in exact_cubes(declared, linked, len(config.state_filter)).values():
        yield cube.tobytes()
    for name in ("persons.csv", "units.csv", "geo.csv"):
        data = (case.data / name).read_bytes()
        yield data
        for line in data.splitlines():
            yield line
            yield line + b"\n"
            yield line.split(b",")[1]


def test_no_unkeyed_digest_of_the_input_is_written_anywhere(tmp_path: Path) -> None:
    case = Case(tmp_path, random_world(3, 40))
    case.run(truncation="tumult-0.12", keep_key=True)
    written = b"\0".join(files(case.out).values())
    config = read_config(case.config, Mode.PRIVATE)
    inputs = read_csv(case.data, config.state_filter)
    tagged = canonical_bytes(bucket_digests(inputs))
    for bucket in bucket_digests(inputs).values():
        assert bucket not in written
        assert bucket.hex().encode() not in written
    for guess in set(guesses(case)):
        for algorithm in ("sha256", "sha1", "md5", "sha512", "blake2b"):
            digest = hashlib.new(algorithm, guess)
            assert digest.digest() not in written
            assert digest.hexdigest().encode() not in written
    # The tag is there, and it needs the key.
    key = RunKey.load(case.out / "confidential" / "keys" / "phsafe.key")
    tag = hmac.new(key._derive(b"tag"), tagged, hashlib.sha256).hexdigest().encode()
    assert tag in (case.out / "ledger.jsonl").read_bytes()
    assert tag not in b"\0".join(public(case.out).values())


# The order of events, and what keys are bound to.


def test_key_and_intent_are_on_disk_before_rows_are_selected_and_noise_is_drawn(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    case = Case(tmp_path, random_world(3, 60))
    seen = []

    def check() -> None:
        (entry,) = Ledger.read(case.out / "ledger.jsonl")
        state = json.loads((case.out / "confidential" / "state" / "phsafe" / "run.json").read_text())
        key = RunKey.load(case.out / "confidential" / "keys" / "phsafe.key")
        assert (entry.run_id, entry.key_commitment) == (state["run_id"], key.commitment())
        assert entry.loss_under(Neighbours.UNBOUNDED) == 23
        assert entry.loss_under(Neighbours.BOUNDED) == 46
        inputs = read_csv(case.data, ("06", "44"))
        assert entry.input_tag == key.tag(canonical_bytes(bucket_digests(inputs)))
        seen.append(1)

    real_keys = measure_module.truncation_keys

    class Watched(NoiseSource):
        def __init__(self, key: bytes) -> None:
            check()
            super().__init__(key)

    def watched(*arguments: Any) -> Any:
        check()
        return real_keys(*arguments)

    monkeypatch.setattr(measure_module, "NoiseSource", Watched)
    monkeypatch.setattr(measure_module, "truncation_keys", watched)
    case.run()
    assert len(seen) == 47


def test_nothing_is_counted_or_drawn_where_the_ledger_cannot_be_written(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    case = Case(tmp_path, random_world(3, 60))

    def refuse(self: Ledger, entry: object) -> None:
        raise PrivacyError("the ledger refuses")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a measurement without a ledger entry")

    monkeypatch.setattr(Ledger, "intend", refuse)
    monkeypatch.setattr(NoiseSource, "__init__", never)
    monkeypatch.setattr(run_module, "measure", never)
    with pytest.raises(PrivacyError, match="refuses"):
        case.run()
    assert public(case.out) == {}


class Stop(Exception):
    pass


def keys_of(case: Case, monkeypatch: Patch, **options: Any) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """The noise keys and the selection keys of a run under one run key."""
    noise: list[bytes] = []
    selection: list[bytes] = []
    real = measure_module.truncation_keys

    def draw(key: bytes, law: Any, level: Any, shape: tuple[int, ...]) -> Any:
        noise.append(key)
        return np.zeros(shape, dtype=np.int64)

    def watched(*arguments: Any) -> Any:
        found = real(*arguments)
        selection.extend(found.values())
        return found

    monkeypatch.setattr(measure_module, "_draw", draw)
    monkeypatch.setattr(measure_module, "truncation_keys", watched)
    case.run(**({"key_command": "echo " + "5a" * 32} | options))
    monkeypatch.undo()
    return tuple(noise), tuple(selection)


def changed(**values: Any) -> dict[str, Any]:
    document = configuration(tau=3)
    document.update(values)
    return document


def test_keys_are_bound_to_plan_and_input_and_apart_for_every_table_and_level(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    world = random_world(3, 60)
    noise, selection = keys_of(Case(tmp_path / "base", world), monkeypatch)
    assert len(set(noise)) == 46
    assert len(set(selection)) == 9
    assert not set(noise) & set(selection)
    tau = dict.fromkeys(("PH1_num", "PH2", "PH3", "PH4", "PH6", "PH7"), 3)
    budget = deepcopy(configuration(tau=3)["privacy_budget"])
    budget["PH7"]["usa_*"] = "0.25"  # type: ignore[index]
    budget = json.loads(json.dumps(budget).replace('"0.25"', "0.25"))
    others: dict[str, tuple[World, dict[str, Any], dict[str, Any]]] = {
        "one person less": ((world[0][1:], *world[1:]), changed(), {}),
        "one other tenure": (tenure_changed(world), changed(), {}),
        "tau": (world, changed(tau=tau | {"PH3": 4}), {}),
        "one budget": (world, changed(privacy_budget=budget), {}),
        "mechanism": (world, changed(privacy_defn="puredp"), {}),
        "states": (world, changed(state_filter=["06", "44", "56"]), {}),
        "bound": (world, changed(), {"sensitivity": "tight"}),
        "selection": (world, changed(), {"truncation": "tumult-0.12"}),
        "seed": (world, changed(), {"seed": 1, "key_command": None}),
    }
    seen = set(noise)
    for name, (of, document, options) in others.items():
        keys, labels = keys_of(Case(tmp_path / name, of, document), monkeypatch, **options)
        assert not seen & set(keys), name
        seen |= set(keys)
        # Who is kept may not depend on other addresses: N1.
        if name == "selection":
            assert labels == ()
        else:
            assert (labels == selection) is (name != "seed"), name
    again = keys_of(Case(tmp_path / "again", tuple(rows[::-1] for rows in world)), monkeypatch)  # type: ignore[arg-type]
    assert again == (noise, selection)


def tenure_changed(world: World) -> World:
    persons, units, places = deepcopy(world)
    unit = next(unit for unit in units if unit["TEN"] in "12")
    unit["TEN"] = "3"
    return persons, units, places


def test_a_resumed_run_draws_what_it_was_charged_for(tmp_path: Path, monkeypatch: Patch) -> None:
    """Interrupted before the first draw or after the last: noisy counts are those of the intent's key."""
    noisy = []
    for name, where in (("a", None), ("b", "measure"), ("c", "write_tables")):
        case = Case(tmp_path / name, random_world(3, 60))
        words = ("--key-command", "echo " + "5a" * 32)
        if where is not None:
            with monkeypatch.context() as patch:
                patch.setattr(run_module, where, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
                assert case(*words) == 130
            assert public(case.out) == {}
        assert case(*words, "--resume") == 0
        noisy.append({name: data for name, data in public(case.out).items() if name.endswith(".csv")})
        assert len(Ledger.read(case.out / "ledger.jsonl")) == 1
    assert noisy[0] == noisy[1] == noisy[2]


# Tables that no bound covers.


def test_a_table_that_sums_a_column_is_not_measured(tmp_path: Path) -> None:
    heavy = replace(TABLES[1], name="PEOPLE", weight="final_pop")
    document = configuration(tau=3)
    document["privacy_budget"]["PEOPLE"] = document["privacy_budget"]["PH1_denom"]  # type: ignore[index]
    case = Case(tmp_path, random_world(3, 60), document)
    with pytest.raises(ConfigError, match="FINAL_POP"):
        case.run(tables=(*TABLES, heavy))
    assert not case.out.exists()


def test_a_position_that_is_no_cell_is_refused_before_the_ledger(tmp_path: Path, capsys: Capture) -> None:
    def wrong(rows: Any) -> Any:
        return np.where(rows.person("qage") > 80, 7, 0)

    own = replace(TABLES[0], name="OWN", cell_index=wrong)
    document = configuration(tau=3)
    document["privacy_budget"]["OWN"] = document["privacy_budget"]["PH1_num"]  # type: ignore[index]
    document["tau"]["OWN"] = 3  # type: ignore[index]
    case = Case(tmp_path, random_world(3, 60), document)
    with pytest.raises(Exception, match="counted by OWN, without a cell"):
        case.run(tables=(*TABLES, own))
    assert not case.out.exists()


@pytest.mark.parametrize("name", ["confidential", "../PH3", "PH3/x", "", "estimates"])
def test_a_table_is_not_named_like_a_place_that_is_taken(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        replace(TABLES[0], name=name)


def test_a_derived_table_of_cells_that_are_not_there_is_refused_before_anything_is_spent() -> None:
    with pytest.raises(ConfigError, match="table AGES sums cells that PH4 does not have"):
        HouseholdOptions(derived=(Derived("AGES", "PH4", {1: (2, 3, 4)}),))
    with pytest.raises(ConfigError, match="PH7 is both measured and derived"):
        HouseholdOptions(derived=(Derived("PH7", "PH4", {2: (2,)}),))


def test_two_tables_of_one_name_would_share_their_noise(tmp_path: Path) -> None:
    case = Case(tmp_path, random_world(3, 20))
    with pytest.raises(ConfigError, match="one name"):
        case.run(tables=(*TABLES, TABLES[0]))


# Planted markers.

MARK = "QZX77317"
NUMBER = "877317731"
"""A key in its range."""


def person(**values: str) -> Row:
    return {
        "RTYPE": "3",
        "MAFID": NUMBER,
        "QAGE": "40",
        "CENHISP": "1",
        "CENRACE": "01",
        "RELSHIP": "20",
    } | values


def marked(world: World) -> World:
    """A household under the marked key, of which truncation drops some."""
    persons, units, places = deepcopy(world)
    unit = next(unit for unit in units if unit["HHT"] != "0")
    place = next(place for place in places if place["MAFID"] == unit["MAFID"])
    units.append(unit | {"MAFID": NUMBER, "HHT2": "05", "CPLT": "5", "TEN": "1", "FINAL_POP": "97731"})
    places.append(place | {"MAFID": NUMBER})
    persons += [person(RELSHIP="20" if n == 0 else "36", QAGE=str(30 + n)) for n in range(12)]
    return persons, units, places


class Written:
    """Everything that is written whole under a temporary name, and what is left in the temporary folder."""

    def __init__(self, patch: Patch, folder: Path) -> None:
        folder.mkdir()
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        self.folder = folder
        self.texts: list[bytes] = []
        real = os.replace

        def watched(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            folder = Path(os.readlink(f"/proc/self/fd/{src_dir_fd}"))
            if "confidential" not in folder.parts:
                self.texts.append((folder / source).read_bytes())
            real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        patch.setattr(os, "replace", watched)


def said_and_written(case: Case, written: Written, capsys: Capture, caplog: Log) -> bytes:
    said = capsys.readouterr()
    outside = files(case.out) if case.out.exists() else {}
    kept = [data for name, data in outside.items() if not name.startswith("confidential/")]
    left = files(written.folder)
    names = [name.encode() for name in (*outside, *left)]
    text = (said.out + said.err + caplog.text).encode()
    return b"\0".join([text, *kept, *names, *left.values(), *written.texts])


@pytest.mark.parametrize("mode", ["private", "validate"])
def test_marked_records_leave_no_trace(
    mode: str, tmp_path: Path, capsys: Capture, caplog: Log, monkeypatch: Patch
) -> None:
    written = Written(monkeypatch, tmp_path / "tmp")
    caplog.set_level(logging.DEBUG)
    case = Case(tmp_path, marked(random_world(3, 60)))
    assert case(mode=mode) == 0
    text = said_and_written(case, written, capsys, caplog)
    assert bool(written.texts) is (mode == "private")
    assert NUMBER.encode() not in text
    assert b"97731" not in text
    assert not any(NUMBER.encode() in data for data in files(case.out).values())  # confidential/ included


def test_an_interrupted_run_leaves_no_counts_outside_confidential(
    tmp_path: Path, capsys: Capture, caplog: Log, monkeypatch: Patch
) -> None:
    written = Written(monkeypatch, tmp_path / "tmp")
    case = Case(tmp_path, marked(random_world(3, 60)))
    monkeypatch.setattr(run_module, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert case() == 130
    assert NUMBER.encode() not in said_and_written(case, written, capsys, caplog)
    assert set(public(case.out)) == set()


SPOILED: dict[str, Callable[[World], object]] = {
    "an age": lambda w: w[0].append(person(QAGE=MARK)),
    "an age too large": lambda w: w[0].append(person(QAGE=NUMBER)),
    "a key that is not a number": lambda w: w[0].append(person(MAFID=MARK)),
    "a place of no number": lambda w: w[2].append(dict(w[2][0], MAFID=MARK)),
    "a type of place": lambda w: w[2].append(dict(w[2][0], MAFID=NUMBER, RTYPE=MARK)),
    "a code": lambda w: w[0].append(person(RELSHIP=MARK)),
    "too many fields": lambda w: w[0].append(person(RELSHIP=f"20,{MARK}")),
    "a quote that is not closed": lambda w: w[0].append(person(RELSHIP=f'"{MARK}')),
    "a unit twice": lambda w: w[1].append(dict(next(u for u in w[1] if u["MAFID"] == NUMBER))),
    "a place without a unit": lambda w: w[2].append(dict(w[2][0], MAFID="866173311")),
    "no tenure": lambda w: next(u for u in w[1] if u["MAFID"] == NUMBER).update(TEN="0"),
    "population": lambda w: next(u for u in w[1] if u["MAFID"] == NUMBER).update(FINAL_POP=NUMBER),
    "a letter of another encoding": lambda w: w[0].append(person(RELSHIP=f"{MARK}\udcff")),
}


@pytest.mark.parametrize("mode", ["private", "validate", "non-private"])
@pytest.mark.parametrize("what", SPOILED)
def test_no_message_quotes_the_input(
    what: str, mode: str, tmp_path: Path, capsys: Capture, caplog: Log, monkeypatch: Patch
) -> None:
    written = Written(monkeypatch, tmp_path / "tmp")
    monkeypatch.setenv("OPENDAS_DEBUG", "1")
    caplog.set_level(logging.DEBUG)
    world = marked(random_world(3, 40))
    SPOILED[what](world)
    monkeypatch.setattr(
        Path, "write_text", lambda path, text, **_: path.write_bytes(text.encode(errors="surrogateescape"))
    )
    case = Case(tmp_path, world)
    code = case("--json", mode=mode)
    # A person whose key is in no place is outside of the states of the run.
    assert code == 3 or (code == 0 and (mode == "non-private" or what == "a key that is not a number")), what
    text = said_and_written(case, written, capsys, caplog)
    for word in (MARK, NUMBER, "866173311"):
        assert word.encode() not in text, what
    if code:
        assert not case.out.exists()


@pytest.mark.parametrize("name", ["persons.csv", "units.csv", "geo.csv"])
def test_no_message_quotes_a_header(name: str, tmp_path: Path, capsys: Capture) -> None:
    case = Case(tmp_path, random_world(3, 20))
    path = case.data / name
    path.write_text(f"{MARK}," + path.read_text())
    assert case() == 3
    assert MARK not in capsys.readouterr().err


def test_an_internal_error_shows_no_count(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def broken(*_: Any) -> None:
        count = int(NUMBER)
        try:
            raise KeyError(count)
        except KeyError as error:
            raise ValueError(f"unexpected {count}") from error

    monkeypatch.setattr(counting_module, "count_cube", broken)
    monkeypatch.setenv("OPENDAS_DEBUG", "1")
    case = Case(tmp_path, random_world(3, 40))
    assert case() == 70
    said = capsys.readouterr()
    assert NUMBER not in said.err + said.out
    outside = {n: d for n, d in files(case.out).items() if not n.startswith("confidential/")}
    assert NUMBER.encode() not in b"\0".join(outside.values())
    assert case("--resume") == 70, "the act is on the ledger and may be finished"
    assert len(Ledger.read(case.out / "ledger.jsonl")) == 1


def test_progress_and_messages_of_a_private_run_count_no_records(tmp_path: Path, capsys: Capture) -> None:
    """On stderr only stages are counted; what validation finds odd says where, never what."""
    said = []
    for name, world in (("a", random_world(3, 60)), ("b", random_world(8, 31))):
        assert Case(tmp_path / name, world)() == 0
        text = capsys.readouterr().err
        assert "as confidential as the input" in text
        lines = text.split("warning: ")[0].splitlines()
        said.append([re.sub(r"[0-9.]+ s\b", "- s", line) for line in lines])
    assert said[0]
    assert said[0] == said[1]


def test_losses_in_answer_certificate_and_ledger_are_the_same(tmp_path: Path) -> None:
    case = Case(tmp_path, random_world(3, 40))
    answer = case.run(sensitivity="tight")
    (entry,) = Ledger.read(case.out / "ledger.jsonl")
    certificate = json.loads((case.out / "certificate.json").read_text())
    charged = {row["neighbours"]: row["rho"] for row in certificate["totals"] if row["charged"]}
    assert charged == answer["rho"]
    for relation in Neighbours:
        assert entry.loss_under(relation) == Fraction(charged[relation.value])
