"""Truncation: both orders against literal twins, the real library's choices, and what the proof assumes."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from opendas.errors import ConfigError, PrivacyError
from opendas.phsafe.truncation import Truncation, select
from opendas.sampling.ordering import keyed_labels

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
NAMES = ("rtype", "qage", "cenhisp", "cenrace", "relship")
GOLDEN = Path(__file__).parents[1] / "reference" / "tumult_truncation.csv"

Row = tuple[int, int, int, int, int, int]  # rtype, mafid, qage, cenhisp, cenrace, relship


def choose(rows: list[Row], tau: int, **options: object) -> list[bool]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    small = {"rtype": np.int8, "qage": np.int16, "cenhisp": np.int8, "cenrace": np.int8, "relship": np.int8}
    at = {"rtype": 0, "qage": 2, "cenhisp": 3, "cenrace": 4, "relship": 5}
    columns = {name: table[:, at[name]].astype(small[name]) for name in NAMES}
    return select(table[:, 1], columns, tau, **({"key": KEY} | options)).tolist()


def made(seed: int, households: int = 12) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for house in range(households):
        for _ in range(int(rng.integers(0, 12))):
            person = (rng.integers(0, 3), rng.choice([1, 2]), rng.choice([1, 63]), rng.choice([20, 25]))
            rows.append((3, 100_000_001 + 7 * house, *(int(value) for value in person)))
    rng.shuffle(rows)  # type: ignore[arg-type]
    return [tuple(row) for row in rows]  # type: ignore[misc]


# Literal twins: one row at a time, from the definition.


def twin_keyed_label(row: Row, index: int) -> int:
    rtype, mafid, age, origin, race, relation = row
    message = b"".join(
        value.to_bytes(8, "little") for value in (mafid, rtype, age, origin, race, relation, index, 0)
    )
    state = bytes(16)
    for start in range(0, len(message), 16):
        block = bytes(a ^ b for a, b in zip(state, message[start : start + 16], strict=True))
        encryptor = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
        state = encryptor.update(block) + encryptor.finalize()
    return int.from_bytes(state[:8], "little")


def twin_tumult_label(row: Row, index: int) -> str:
    rtype, mafid, age, origin, race, relation = row
    texts = [
        str(rtype),
        f"{mafid:b}",
        f"{age:b}",
        f"{origin:b}",
        f"{race:02d}",
        f"{relation:02d}",
        f"{index:b}",
    ]
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    once = hashlib.sha256(",".join(digests).encode()).hexdigest()
    return hashlib.sha256(once.encode()).hexdigest()


TWINS = {Truncation.KEYED: twin_keyed_label, Truncation.TUMULT: twin_tumult_label}


def twin_choice(rows: list[Row], tau: int, mode: Truncation) -> list[bool]:
    seen: Counter[Row] = Counter()
    labelled = []
    for position, row in enumerate(rows):
        seen[row] += 1
        labelled.append((TWINS[mode](row, seen[row]), position))
    kept = [False] * len(rows)
    for mafid in {row[1] for row in rows}:
        household = sorted((label, position) for label, position in labelled if rows[position][1] == mafid)
        for _, position in household[:tau]:
            kept[position] = True
    return kept


@pytest.mark.parametrize("mode", list(Truncation))
@pytest.mark.parametrize("tau", [1, 2, 5, 10])
def test_the_choice_equals_the_literal_twin(mode: Truncation, tau: int) -> None:
    for seed in range(5):
        rows = made(seed)
        assert choose(rows, tau, mode=mode) == twin_choice(rows, tau, mode)


def test_the_tumult_order_keeps_what_the_real_library_kept() -> None:
    rows: list[Row] = []
    expected: dict[int, Counter[Row]] = {}
    with GOLDEN.open(newline="") as file:
        for line in csv.DictReader(file):
            names = ("RTYPE", "MAFID", "QAGE", "CENHISP", "CENRACE", "RELSHIP")
            row: Row = tuple(int(line[name]) for name in names)  # type: ignore[assignment]
            rows += [row] * int(line["ROWS"])
            for name, value in line.items():
                if name.startswith("KEPT_"):
                    expected.setdefault(int(name[5:]), Counter())[row] = int(value)
    assert set(expected) == {1, 2, 3, 5, 6, 10}
    order = np.random.default_rng(1).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    for tau, wanted in expected.items():
        chosen = choose(shuffled, tau, mode=Truncation.TUMULT, key=None)
        kept = Counter(row for row, keep in zip(shuffled, chosen, strict=True) if keep)
        assert kept == +wanted


@pytest.mark.parametrize("mode", list(Truncation))
def test_at_most_tau_rows_are_kept_and_all_where_there_are_no_more(mode: Truncation) -> None:
    rows = made(3)
    kept = choose(rows, 4, mode=mode)
    sizes = Counter(row[1] for row in rows)
    left = Counter(row[1] for row, keep in zip(rows, kept, strict=True) if keep)
    assert left == {mafid: min(size, 4) for mafid, size in sizes.items()}


@pytest.mark.parametrize("mode", list(Truncation))
def test_the_multiset_kept_does_not_depend_on_the_order_of_the_input(mode: Truncation) -> None:
    rows = made(5)
    chosen = []
    for seed in range(6):
        shuffled = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
        kept = choose(shuffled, 3, mode=mode)
        chosen.append(Counter(row for row, keep in zip(shuffled, kept, strict=True) if keep))
    assert all(kept == chosen[0] for kept in chosen)


@pytest.mark.parametrize("mode", list(Truncation))
def test_who_is_kept_depends_on_the_rows_of_that_household_alone(mode: Truncation) -> None:
    """Assumption N1: another household may do what it likes."""
    rows = made(7)
    mafid = max(Counter(row[1] for row in rows).items(), key=lambda item: item[1])[0]
    alone = [row for row in rows if row[1] == mafid]
    assert len(alone) > 3
    kept = [keep for row, keep in zip(rows, choose(rows, 3, mode=mode), strict=True) if row[1] == mafid]
    assert kept == choose(alone, 3, mode=mode)


@pytest.mark.parametrize("mode", list(Truncation))
def test_truncation_is_2_stable(mode: Truncation) -> None:
    """One row more: one row more kept, or one kept in place of another."""
    for seed in range(40):
        rows = [(3, 100_000_001, *row[2:]) for row in made(seed, households=1)]
        if not rows:
            continue
        before, after = (
            Counter(row for row, keep in zip(part, choose(part, 3, mode=mode), strict=True) if keep)
            for part in (rows[1:], rows)
        )
        assert sum((before - after).values()) + sum((after - before).values()) <= 2


def test_another_key_keeps_others_and_the_public_order_does_not_change() -> None:
    rows = made(9)
    assert choose(rows, 2) != choose(rows, 2, key=OTHER_KEY)
    assert choose(rows, 2, mode=Truncation.TUMULT) == choose(rows, 2, mode=Truncation.TUMULT, key=OTHER_KEY)


def test_under_many_keys_every_row_is_kept_equally_often() -> None:
    rows = [(3, 100_000_001, age, 1, 1, 25) for age in range(10)]
    trials = 2000
    kept = np.zeros(10)
    for number in range(trials):
        kept += choose(rows, 3, key=number.to_bytes(32, "little"))
    assert kept.sum() == 3 * trials
    spread = np.sqrt(trials * 0.3 * 0.7)
    assert np.abs(kept - 0.3 * trials).max() < 5 * spread


def test_households_without_excess_are_not_hashed() -> None:
    rows = [(3, 100_000_001 + i // 3, i % 3, 1, 1, 25) for i in range(30)]
    assert all(choose(rows, 3, key=None))
    assert choose([], 3, key=None) == []


def test_other_columns_can_be_ordered_with_a_key_only() -> None:
    mafid = np.full(5, 8, dtype=np.int64)
    columns = {"income": np.array([10**15, -4, 7, 7, 0])}
    assert select(mafid, columns, 2, key=KEY).sum() == 2
    with pytest.raises(ConfigError, match="rtype is missing"):
        select(mafid, columns, 2, mode=Truncation.TUMULT)


def test_rows_too_wide_for_one_word_are_chosen_alike() -> None:
    """A constant column of 64-bit size takes the other way to tell rows apart, and changes no identity."""
    rng = np.random.default_rng(4)
    mafid = rng.integers(1, 6, 60)
    age = rng.integers(0, 3, 60)
    wide = np.where(age == 1, 2**62, -(2**62))
    found = select(mafid, {"age": age, "wide": wide}, 4, key=KEY)
    order = rng.permutation(60)
    shuffled = select(mafid[order], {"age": age[order], "wide": wide[order]}, 4, key=KEY)
    kept = Counter(zip(mafid[found].tolist(), age[found].tolist(), strict=True))
    assert kept == Counter(zip(mafid[order][shuffled].tolist(), age[order][shuffled].tolist(), strict=True))
    assert all(count <= 4 for count in Counter(mafid[found].tolist()).values())
    seen: Counter[tuple[int, int]] = Counter()
    index = []
    for pair in zip(mafid.tolist(), age.tolist(), strict=True):
        seen[pair] += 1
        index.append(seen[pair])
    labels = keyed_labels(KEY, np.column_stack([mafid, age, wide, np.array(index)]))
    for house in range(1, 6):
        rows = np.flatnonzero(mafid == house)
        assert set(rows[np.argsort(labels[rows])][:4]) == set(rows[found[rows]])


@pytest.mark.parametrize("tau", [0, -1, True, 2.0, "3", None])
def test_tau_is_a_positive_integer(tau: object) -> None:
    with pytest.raises(ConfigError, match="positive integer"):
        choose(made(1), tau)  # type: ignore[arg-type]


def test_keyed_truncation_without_a_key_is_refused() -> None:
    with pytest.raises(PrivacyError, match="needs a key"):
        choose(made(1), 1, key=None)


@pytest.mark.parametrize("key", [b"short", bytearray(32), "x" * 32])
def test_labels_need_a_whole_key(key: object) -> None:
    with pytest.raises(PrivacyError, match="32 bytes"):
        keyed_labels(key, np.zeros((1, 2), dtype=np.int64))  # type: ignore[arg-type]


def test_labels_need_rows_of_integers() -> None:
    for words in (np.zeros((2, 0), dtype=np.int64), np.zeros(3, dtype=np.int64), np.zeros((2, 2))):
        with pytest.raises(PrivacyError, match="64-bit integers"):
            keyed_labels(KEY, words)
    assert keyed_labels(KEY, np.zeros((0, 3), dtype=np.int64)).shape == (0,)


def test_golden_labels() -> None:
    """The same key and rows are kept in every version, or truncation has another key purpose."""
    words = np.array([[100_000_001, 3, 17, 1, 1, 25, 1], [-1, 0, 0, 0, 0, 0, 2]])
    assert [f"{label:016x}" for label in keyed_labels(KEY, words)] == GOLDEN_LABELS


GOLDEN_LABELS = ["e23867ae3d769cd9", "c6523be7c0669af8"]
