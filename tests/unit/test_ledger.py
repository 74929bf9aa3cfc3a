"""The ledger: what is written, when, and what stops a run."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import pickle
import stat
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from opendas.custody import ledger as ledger_module
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_entries import INFINITE, LedgerEntry, total_spent
from opendas.custody.ledger_lines import Finished, LedgerAct, head_of, read_lines
from opendas.custody.protected_units import Change
from opendas.errors import EnvironmentFailure, PrivacyError
from opendas.privacy.exact import canonical_json
from opendas.privacy.relations import Mechanism, Neighbours

GAUSSIAN, LAPLACE = Mechanism.DISCRETE_GAUSSIAN, Mechanism.DISCRETE_LAPLACE
BOUNDED, UNBOUNDED = Neighbours.BOUNDED, Neighbours.UNBOUNDED

PERSONS = LedgerEntry(
    run_id="run-1",
    product="pl94-persons",
    key_commitment="c1",
    input_tag="t1",
    plan_digest="d1",
    mechanism=GAUSSIAN,
    loss=Fraction(293764, 114921),
    relation=BOUNDED,
    protected_unit="person",
    version="0.1.0",
)
UNITS = dataclasses.replace(
    PERSONS,
    run_id="run-2",
    product="pl94-units",
    key_commitment="c2",
    loss=Fraction(11417641, 152349649),
    protected_unit="housing unit",
)
SEEDED = dataclasses.replace(PERSONS, run_id="run-3", loss=INFINITE, seeded=True)
PERSON_WITH_UNITS = Change("one person with the unit changes it induces", {"person": 1, "housing unit": 2})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def acts_of(ledger: Ledger) -> tuple[LedgerAct, ...]:
    return tuple(line.said for line in ledger.lines() if isinstance(line.said, LedgerAct))


def is_finished(ledger: Ledger, run_id: str) -> bool:
    return any(line.said == Finished(run_id) for line in ledger.lines())


def write(path: Path, *entries: LedgerEntry) -> None:
    with Ledger.open(path) as ledger:
        for entry in entries:
            ledger.intend(entry)


def test_an_intent_is_on_disk_with_every_field(path: Path) -> None:
    write(path, PERSONS)
    (line,) = path.read_text().splitlines()
    record = json.loads(line)
    assert record["kind"] == "intent"
    assert record["rho"] == "293764/114921"
    assert "epsilon" not in record
    assert record["previous"] == "0" * 64
    for name in (
        "run_id",
        "product",
        "key_commitment",
        "input_tag",
        "plan_digest",
        "protected_unit",
        "version",
    ):
        assert record[name] == getattr(PERSONS, name)
    assert (record["mechanism"], record["relation"], record["seeded"]) == (
        "discrete-gaussian",
        "bounded",
        False,
    )
    assert Ledger.read(path) == (PERSONS,)


def test_only_the_owner_can_read_it(path: Path) -> None:
    path.touch(mode=0o644)
    write(path, PERSONS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_line_is_forced_to_disk_before_intend_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append((stat.S_ISDIR(status.st_mode), status.st_size))
        real(descriptor)

    with Ledger.open(path) as ledger:
        monkeypatch.setattr(os, "fsync", fsync)
        ledger.intend(PERSONS)
        size = path.stat().st_size
        assert (False, size) in synced, "the file, whole"
        assert any(is_directory for is_directory, _ in synced), "its directory entry"


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_stops_the_run_and_leaves_the_ledger_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    write(path, UNITS)
    before = path.read_bytes()

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with Ledger.open(path) as ledger:
        monkeypatch.setattr(os, failing, refuse)
        with pytest.raises(EnvironmentFailure, match="Nothing may be drawn"):
            ledger.intend(PERSONS)
        monkeypatch.undo()
    assert path.read_bytes() == before


def test_a_short_write_is_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with Ledger.open(path) as ledger:
        monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        ledger.intend(PERSONS)
    assert Ledger.read(path) == (PERSONS,)


def test_every_torn_last_line_is_cut(path: Path) -> None:
    write(path, PERSONS, UNITS)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(len(whole)):
        lines, kept = read_lines(whole[:length], "ledger")
        assert kept == (first if length >= first else 0)
        assert [line.entry for line in lines] == ([PERSONS] if length >= first else [])
    for length in (1, first - 1, first, first + 1, len(whole) - 1):
        path.write_bytes(whole[:length])
        expected = (PERSONS,) if length >= first else ()
        assert Ledger.read(path) == expected
        assert path.read_bytes() == whole[:length], "reading changes nothing"
        with Ledger.open(path) as ledger:
            assert ledger.entries() == expected
        assert path.read_bytes() == whole[: first if length >= first else 0]


def test_work_goes_on_after_a_torn_line(path: Path) -> None:
    write(path, PERSONS, UNITS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    write(path, UNITS)
    assert path.read_bytes() == whole


def test_every_changed_byte_is_noticed(path: Path) -> None:
    write(path, PERSONS, UNITS)
    with Ledger.open(path) as ledger:
        ledger.finished("run-1")
    whole = path.read_bytes()
    for position in range(len(whole) - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(PrivacyError, match=r"^ledger, line [123]: the ledger is damaged"):
            read_lines(bytes(damaged), "ledger")


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[1:],
        lambda lines: lines[:1] + lines[2:],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0], b"\n", *lines[1:]],
        lambda lines: [*lines, b"\x00\x00\x00\n"],
        lambda lines: [*lines, b"{}\n"],
        lambda lines: [*lines, b"[]\n"],
        lambda lines: [lines[0].replace(b'"seeded":false', b'"seeded": false'), *lines[1:]],
    ],
    ids=["first", "middle", "swapped", "twice", "blank", "zeros", "empty", "list", "spaces"],
)
def test_other_damage_stops_everything(path: Path, damage: Callable[[list[bytes]], list[bytes]]) -> None:
    write(path, PERSONS, UNITS, dataclasses.replace(PERSONS, run_id="run-4", key_commitment="c4"))
    path.write_bytes(b"".join(damage(_lines(path))))
    before = path.read_bytes()
    with pytest.raises(PrivacyError, match="damaged"):
        Ledger.open(path)
    assert path.read_bytes() == before
    with pytest.raises(PrivacyError, match="damaged"):
        Ledger.read(path)


def test_damage_under_an_open_ledger_is_seen_before_the_next_act(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.intend(PERSONS)
        path.write_bytes(path.read_bytes().replace(b"293764", b"100000"))
        with pytest.raises(PrivacyError, match="its own checksum"):
            ledger.intend(UNITS)


def test_a_line_rewritten_with_a_right_checksum_breaks_the_chain(path: Path, tmp_path: Path) -> None:
    write(path, PERSONS, UNITS)
    cheaper = tmp_path / "cheaper.jsonl"
    (tmp_path / "other").mkdir()
    with Ledger.open(cheaper, folder=tmp_path / "other") as ledger:
        ledger.intend(dataclasses.replace(PERSONS, loss="1/100"))
    path.write_bytes(cheaper.read_bytes() + _lines(path)[1])
    with pytest.raises(PrivacyError, match=r"line 2: .* does not follow"):
        Ledger.read(path)


def _resealed(line: bytes, **changes: object) -> bytes:
    """Change fields of a line and give it a checksum that fits."""
    record = json.loads(line) | changes
    del record["sha256"]
    record["sha256"] = hashlib.sha256(canonical_json(record)).hexdigest()
    return canonical_json(record) + b"\n"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"index": 2}, "does not follow"),
        ({"previous": "0" * 64}, "does not follow"),
        ({"surprise": 1}, "not a ledger line"),
        ({"seeded": "no"}, "wrong type"),
        ({"mechanism": "laplace"}, "not a ledger line"),
        ({"rho": "0"}, "positive"),
        ({"rho": "1.5.1"}, "not a number"),
    ],
)
def test_a_line_that_was_never_written_by_us_is_refused(
    path: Path, changes: dict[str, object], match: str
) -> None:
    write(path, PERSONS, UNITS)
    first, last = _lines(path)
    path.write_bytes(first + _resealed(last))
    assert Ledger.read(path) == (PERSONS, UNITS), "resealing alone changes nothing"
    path.write_bytes(first + _resealed(last, **changes))
    with pytest.raises(PrivacyError, match=f"line 2: the ledger is damaged: .*{match}"):
        Ledger.read(path)


@pytest.mark.parametrize("field", ["format", "kind"])
def test_a_whole_line_of_a_newer_version_is_refused_and_not_called_damaged(path: Path, field: str) -> None:
    write(path, PERSONS, UNITS)
    first, last = _lines(path)
    path.write_bytes(first + _resealed(last, **{field: "3"}))
    with pytest.raises(PrivacyError, match=f"line 2: the line .*{field} .* newer version") as caught:
        Ledger.read(path)
    assert "damaged" not in str(caught.value)
    assert path.read_bytes() == first + _resealed(last, **{field: "3"})


def test_the_last_line_has_one_spelling(path: Path) -> None:
    write(path, PERSONS)
    path.write_bytes(path.read_bytes().replace(b'"seeded":false', b'"seeded": false'))
    with pytest.raises(PrivacyError, match="damaged"):
        Ledger.read(path)


def test_a_message_holds_no_tag_and_no_key_commitment(path: Path) -> None:
    entry = dataclasses.replace(PERSONS, key_commitment="secret-commitment", input_tag="secret-tag")
    write(path, entry)
    other = dataclasses.replace(entry, input_tag="other-tag")
    with Ledger.open(path) as ledger, pytest.raises(PrivacyError) as caught:
        ledger.intend(other)
    assert "input tag" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "other-tag" not in str(caught.value)


def test_resuming_is_no_new_act(path: Path) -> None:
    write(path, PERSONS)
    before = path.read_bytes()
    write(path, PERSONS)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["input_tag", "plan_digest", "key_commitment", "version", "product"])
def test_a_run_resumes_only_unchanged(path: Path, name: str) -> None:
    write(path, PERSONS)
    changed = dataclasses.replace(PERSONS, **{name: "changed"})
    with Ledger.open(path) as ledger, pytest.raises(PrivacyError, match=name.replace("_", " ")):
        ledger.intend(changed)


def test_a_key_serves_one_run(path: Path) -> None:
    write(path, PERSONS)
    with Ledger.open(path) as ledger, pytest.raises(PrivacyError, match="already used"):
        ledger.intend(dataclasses.replace(UNITS, key_commitment=PERSONS.key_commitment))


def test_seeded_and_real_runs_do_not_mix(tmp_path: Path) -> None:
    for number, pair in enumerate([(PERSONS, SEEDED), (SEEDED, PERSONS)]):
        with Ledger.open(tmp_path / f"{number}.jsonl") as ledger:
            ledger.intend(pair[0])
            with pytest.raises(PrivacyError, match="share"):
                ledger.intend(pair[1])


def test_a_seeded_run_is_charged_infinity(path: Path) -> None:
    with pytest.raises(PrivacyError, match="infinite"):
        dataclasses.replace(PERSONS, seeded=True)
    units = dataclasses.replace(SEEDED, run_id="run-4", product="pl94-units")
    write(path, SEEDED, units)
    assert json.loads(_lines(path)[0])["rho"] == "infinity"
    with Ledger.open(path) as ledger:
        assert [total.rho for total in total_spent(ledger.entries())] == [INFINITE]


@pytest.mark.parametrize("loss", [Fraction(0), Fraction(-1), "0", "nonsense", 0.5])
def test_an_act_costs_something_exact(loss: object) -> None:
    with pytest.raises(PrivacyError, match="Ledger entry"):
        dataclasses.replace(PERSONS, loss=loss)  # type: ignore[arg-type]


def test_empty_texts_are_refused() -> None:
    with pytest.raises(PrivacyError, match="input_tag"):
        dataclasses.replace(PERSONS, input_tag="")


def test_totals_are_exact_and_per_change(path: Path) -> None:
    write(path, PERSONS, UNITS)
    with Ledger.open(path) as ledger:
        totals = {total.change: total for total in total_spent(ledger.entries(), [PERSON_WITH_UNITS])}
    assert totals["one person"].rho == PERSONS.loss
    assert totals["one housing unit"].rho == UNITS.loss
    combined = totals["one person with the unit changes it induces"]
    assert combined.rho == Fraction(293764, 114921) + 2 * Fraction(11417641, 152349649)
    assert (combined.acts, combined.uncovered, combined.relation) == (2, 0, BOUNDED)
    assert combined.epsilon is None


def test_relations_are_never_added() -> None:
    other = dataclasses.replace(PERSONS, run_id="run-5", relation=UNBOUNDED, loss=Fraction(1))
    totals = {(total.relation, total.change): total for total in total_spent([PERSONS, other])}
    assert totals[BOUNDED, "one person"].rho == PERSONS.loss
    assert totals[UNBOUNDED, "one person"].rho == 1
    assert all(total.uncovered == 1 for total in totals.values())


def test_an_act_that_derives_both_relations_counts_in_both(path: Path) -> None:
    tables = dataclasses.replace(
        PERSONS, run_id="run-6", relation=UNBOUNDED, loss="1/2", other_relations={BOUNDED: Fraction(2)}
    )
    write(path, tables)
    (read,) = Ledger.read(path)
    assert read == tables
    totals = {
        total.relation: total.rho for total in total_spent([read, dataclasses.replace(PERSONS, loss="1")])
    }
    assert totals == {BOUNDED: Fraction(3), UNBOUNDED: Fraction(1, 2)}


def test_pure_acts_add_their_epsilons_and_enter_rho_by_half_their_square() -> None:
    pure = dataclasses.replace(PERSONS, mechanism=LAPLACE, loss="3")
    more = dataclasses.replace(pure, run_id="run-7", loss="1/2")
    (alone,) = total_spent([pure, more])
    assert alone.epsilon == Fraction(7, 2)
    assert alone.rho == Fraction(9, 2) + Fraction(1, 8)
    doubled = total_spent([more], [Change("two at once", {"person": 2})])[-1]
    assert (doubled.change, doubled.epsilon, doubled.rho) == ("two at once", 1, Fraction(1, 2))
    (mixed,) = total_spent([pure, dataclasses.replace(PERSONS, loss="1")])
    assert mixed.epsilon is None
    assert mixed.rho == Fraction(9, 2) + 1


def test_entries_travel_between_processes() -> None:
    entry = dataclasses.replace(PERSONS, other_relations={UNBOUNDED: Fraction(1, 3)})
    for value in (entry, PERSON_WITH_UNITS, *total_spent([entry])):
        assert pickle.loads(pickle.dumps(value)) == value


def test_finding_and_finishing(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.intend(PERSONS)
        assert ledger.find("run-1") == PERSONS
        assert ledger.find("run-2") is None
        assert not is_finished(ledger, "run-1")
        ledger.finished("run-1")
        ledger.finished("run-1")
        assert is_finished(ledger, "run-1")
        assert ledger.entries() == (PERSONS,)
        assert [total.rho for total in total_spent(ledger.entries())] == [PERSONS.loss]
        with pytest.raises(PrivacyError, match="never started"):
            ledger.finished("run-2")
    assert len(_lines(path)) == 2


DESTROYED = LedgerAct("destroy-key", "run-1", {"product": "pl94-persons"})


def test_acts_that_draw_nothing_are_in_the_chain(path: Path) -> None:
    write(path, PERSONS)
    with Ledger.open(path) as ledger:
        before = head_of(ledger.lines())
        ledger.enter(DESTROYED)
        ledger.enter(DESTROYED)
        assert acts_of(ledger) == (DESTROYED,), "a key is destroyed once"
        ledger.enter(LedgerAct("evaluate", "run-1"), again=True)
        ledger.enter(LedgerAct("evaluate", "run-1"), again=True)
        assert [act.act for act in acts_of(ledger)] == ["destroy-key", "evaluate", "evaluate"]
        assert ledger.entries() == (PERSONS,)
        assert not is_finished(ledger, "run-1")
        assert total_spent(ledger.entries())[0].rho == PERSONS.loss, "nothing is spent by them"
        assert head_of(ledger.lines()) != before
        assert head_of(ledger.lines()) == hashlib.sha256(_lines(path)[-1][:-1]).hexdigest()
    assert pickle.loads(pickle.dumps(DESTROYED)) == DESTROYED
    assert head_of(()) == "0" * 64
    record = json.loads(_lines(path)[1])
    assert (record["kind"], record["act"], record["details"]) == (
        "act",
        "destroy-key",
        {"product": "pl94-persons"},
    )


@pytest.mark.parametrize(
    "act", [{"act": "Key gone"}, {"act": ""}, {"act": "publish", "details": {"to": 1}}, {"act": 1}]
)
def test_an_act_has_a_name_and_texts(act: dict[str, object]) -> None:
    with pytest.raises(PrivacyError, match="Ledger act"):
        LedgerAct(**act)  # type: ignore[arg-type]


def test_one_output_folder_holds_one_run(path: Path) -> None:
    with Ledger.open(path), pytest.raises(EnvironmentFailure, match="Another run"):
        Ledger.open(path)
    with Ledger.open(path) as ledger:
        assert ledger.entries() == ()


def test_several_folders_share_a_ledger(tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Ledger.open(shared, folder=tmp_path / "a") as one, Ledger.open(shared, folder=tmp_path / "b") as two:
        one.intend(PERSONS)
        two.intend(UNITS)
        one.finished("run-1")
        assert one.entries() == two.entries() == (PERSONS, UNITS)
    assert not (tmp_path / ".opendas.lock").exists(), "the shared folder is not locked"


def test_the_ledger_file_is_locked_before_it_is_read_and_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def spy(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def called(descriptor: int, *rest: object) -> object:
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                calls.append(name)
            return function(descriptor, *rest)

        return called

    with Ledger.open(path) as ledger:
        monkeypatch.setattr(fcntl, "flock", spy("lock", fcntl.flock))
        monkeypatch.setattr(os, "read", spy("read", os.read))
        monkeypatch.setattr(os, "write", spy("write", os.write))
        ledger.intend(PERSONS)
    assert calls[0] == "lock"
    assert calls.count("lock") == 1
    assert calls.index("read") < calls.index("write")


def test_a_closed_ledger_takes_no_act(path: Path) -> None:
    ledger = Ledger.open(path)
    ledger.close()
    ledger.close()
    with pytest.raises(PrivacyError, match="closed"):
        ledger.intend(PERSONS)


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentFailure):
        Ledger.open(path)
    with Ledger.open(tmp_path / "other.jsonl"):
        pass


def test_a_missing_folder_is_the_environments_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure):
        Ledger.open(tmp_path / "absent" / "ledger.jsonl")
    with pytest.raises(EnvironmentFailure):
        Ledger.read(tmp_path / "absent.jsonl")


def _hold(folder: Path, ready: object, release: object) -> None:
    with Ledger.open(folder / "ledger.jsonl") as ledger:
        ledger.intend(PERSONS)
        ready.set()  # type: ignore[attr-defined]
        release.wait(30)  # type: ignore[attr-defined]
        os._exit(9)  # dies with the lock held and nothing closed


def test_two_processes_compete_and_a_dead_one_frees_the_folder(tmp_path: Path, path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, release))
    process.start()
    try:
        assert ready.wait(60)
        with pytest.raises(EnvironmentFailure, match="Another run"):
            Ledger.open(path)
        assert Ledger.read(path) == (PERSONS,), "reading needs no lock"
    finally:
        release.set()
        process.join(60)
    assert process.exitcode == 9
    with Ledger.open(path) as ledger:
        assert ledger.entries() == (PERSONS,), "an intent counts as spent, whatever became of the run"


def _append_many(shared: Path, folder: Path, first: int) -> None:
    with Ledger.open(shared, folder=folder) as ledger:
        for number in range(first, first + 20):
            ledger.intend(dataclasses.replace(PERSONS, run_id=f"r{number}", key_commitment=f"k{number}"))


def test_two_processes_write_one_unbroken_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    shared = tmp_path / "shared.jsonl"
    processes = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        processes.append(context.Process(target=_append_many, args=(shared, folder, 100 * number)))
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    entries = Ledger.read(shared)
    assert len({entry.run_id for entry in entries}) == 40
    (total,) = total_spent(entries)
    assert total.rho == 40 * Fraction(293764, 114921)


def _die_in_the_middle(folder: Path, kept: int) -> None:
    def write_part_and_die(descriptor: int, data: bytes) -> int:
        real(descriptor, data[:kept])
        os._exit(9)

    with Ledger.open(folder / "ledger.jsonl") as ledger:
        ledger.intend(UNITS)
        real, ledger_module.os.write = os.write, write_part_and_die
        ledger.intend(PERSONS)


def test_a_crash_in_the_middle_of_a_line_loses_only_that_line(tmp_path: Path, path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_die_in_the_middle, args=(tmp_path, 40))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert not path.read_bytes().endswith(b"\n")
    with Ledger.open(path) as ledger:
        assert ledger.entries() == (UNITS,)
        ledger.intend(PERSONS)
    assert Ledger.read(path) == (UNITS, PERSONS)


def test_an_act_with_a_delta_keeps_it_and_deltas_are_summed(path: Path) -> None:
    found = dataclasses.replace(
        PERSONS, run_id="run-9", key_commitment="c9", loss=Fraction(1, 20), delta=Fraction(1, 10**11)
    )
    with Ledger.open(path) as ledger:
        ledger.intend(PERSONS)
        ledger.intend(found)
    assert Ledger.read(path) == (PERSONS, found)
    assert b'"delta":"1/100000000000"' in path.read_bytes()
    (total,) = total_spent(Ledger.read(path))
    assert total.rho == PERSONS.loss + Fraction(1, 20)
    assert (total.acts, total.approximate, total.delta) == (2, 1, Fraction(1, 10**11))


def test_what_a_delta_becomes_when_two_records_change_is_not_covered() -> None:
    found = dataclasses.replace(UNITS, run_id="run-9", loss=Fraction(1, 20), delta=Fraction(1, 10**11))
    *_, total = total_spent((PERSONS, UNITS, found), [PERSON_WITH_UNITS])
    assert total.change == PERSON_WITH_UNITS.name
    assert (total.acts, total.uncovered, total.delta) == (2, 1, 0)
    assert total.rho == PERSONS.loss + 2 * UNITS.loss


@pytest.mark.parametrize("delta", [Fraction(-1, 2), Fraction(1), "much"])
def test_a_delta_is_a_probability(delta: Fraction | str) -> None:
    with pytest.raises(PrivacyError, match="delta"):
        dataclasses.replace(PERSONS, delta=delta)
