"""Reads public-use microdata (PUMS) as a pool of households, apart from what fills blocks with them.

Person files of the American Community Survey: official zip, CSV or Parquet. Households are those of the
sample with their weights; ages above the top code are spread out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from opendas.arrays import Bools, Ints
from opendas.demo.homes import describe, keeps_edits
from opendas.demo.households import ADULT, CODE, HouseholdPool, allowed_ages
from opendas.demo.placement import JITTER
from opendas.errors import DataError, Finding, FormatError
from opendas.files.storage.zips import opened_zip
from opendas.readers.columns.coding import text_of, whole_numbers
from opendas.readers.columns.csv_parquet import column_names, read_batches, tables_in
from opendas.readers.columns.findings import FindingLog
from opendas.readers.input.spec import ZipMember
from opendas.schema.dhc_persons import OLDEST

_NUMBERS = {"SPORDER": (0, 99), "PWGTP": (0, 1 << 31), "AGEP": (0, OLDEST), "SEX": (1, 2)}
"""Columns of numbers, with the least and the greatest."""
_RELATION = ("RELSHIPP", "RELP")
"""Columns of the relationship: since 2019, and before."""

_HEAD = CODE["householder_not_alone"]
_SPOUSE, _PARTNER, _IN_QUARTERS = range(len(CODE), len(CODE) + 3)
_SINCE_2019 = {
    20: _HEAD, 21: _SPOUSE, 22: _PARTNER, 23: _SPOUSE, 24: _PARTNER, 25: CODE["biological_child"],
    26: CODE["adopted_child"], 27: CODE["stepchild"], 28: CODE["sibling"], 29: CODE["parent"],
    30: CODE["grandchild"], 31: CODE["parent_in_law"], 32: CODE["child_in_law"], 33: CODE["other_relative"],
    34: CODE["roommate"], 35: CODE["foster_child"], 36: CODE["other_nonrelative"], 37: _IN_QUARTERS,
    38: _IN_QUARTERS,
}  # fmt: skip
_BEFORE_2019 = {
    0: _HEAD, 1: _SPOUSE, 2: CODE["biological_child"], 3: CODE["adopted_child"], 4: CODE["stepchild"],
    5: CODE["sibling"], 6: CODE["parent"], 7: CODE["grandchild"], 8: CODE["parent_in_law"],
    9: CODE["child_in_law"], 10: CODE["other_relative"], 11: CODE["other_nonrelative"], 12: CODE["roommate"],
    13: _PARTNER, 14: CODE["foster_child"], 15: CODE["other_nonrelative"], 16: _IN_QUARTERS,
    17: _IN_QUARTERS,
}  # fmt: skip
_FEMALE = 2


def read_microdata(paths: Sequence[Path]) -> HouseholdPool:
    """Read person files of public-use microdata.

    People in group quarters are left out, and so are households that break an edit of the DHC or have not
    exactly one householder and at most one spouse or partner.

    Raises `FormatError` if a file is of another kind, or lacks a column; `DataError` if a file holds no
    household that can be used; `EnvironmentFailure` if a file cannot be opened.
    """
    rng = np.random.default_rng(94)
    parts = [_household_people(path, rng) for path in paths]
    offsets = np.cumsum([0, *(len(weight) for _, weight in parts)])
    household = np.concatenate([p["household"] + k for (p, _), k in zip(parts, offsets, strict=False)])
    relgq, sex, age = (np.concatenate([p[name] for p, _ in parts]) for name in ("relgq", "sex", "age"))
    return HouseholdPool.of(household, relgq, sex, age, np.concatenate([weight for _, weight in parts]))


def _household_people(
    path: Path, rng: np.random.Generator
) -> tuple[dict[str, Ints], npt.NDArray[np.float64]]:
    """Return the people of one file's usable households, householders first, and the households' weights."""
    numbers = _read(path)
    serial, key = numbers["SERIALNO"], numbers["relation"]
    order = np.flatnonzero(key != _IN_QUARTERS)
    order = order[np.lexsort((numbers["SPORDER"][order], key[order] != _HEAD, serial[order]))]
    household = np.unique(serial[order], return_inverse=True)[1]
    key, age = key[order], _spread(numbers["AGEP"], rng)[order]
    sex = (numbers["SEX"][order] == _FEMALE).astype(np.int64)
    n = int(household.max(initial=-1)) + 1
    heads = np.bincount(household, weights=key == _HEAD, minlength=n)
    first = np.searchsorted(household, np.arange(n))
    same = sex == sex[first][household]
    relgq = np.where(
        key == _SPOUSE, np.where(same, CODE["same_sex_spouse"], CODE["opposite_sex_spouse"]), key
    )
    partner = np.where(same, CODE["same_sex_partner"], CODE["opposite_sex_partner"])
    relgq = np.where(key == _PARTNER, partner, relgq)
    couples = np.bincount(household, weights=(key == _SPOUSE) | (key == _PARTNER), minlength=n)
    broken = np.bincount(household, weights=~allowed_ages()[relgq, age], minlength=n)
    weight = numbers["PWGTP"][order][first].astype(np.float64)
    usable = (heads == 1) & (couples <= 1) & (broken == 0) & (weight > 0)
    inside = usable[household]
    usable[usable] = _keep_edits(relgq[inside], sex[inside], age[inside])
    if not bool(usable.any()):
        raise DataError(_UNUSABLE, [Finding(path.name, None, "SERIALNO", "expected at least one household")])
    keep = usable[household]
    renumbered = (np.cumsum(usable) - 1)[household[keep]]
    people = {"household": renumbered, "relgq": relgq[keep], "sex": sex[keep], "age": age[keep]}
    return people, weight[usable]


def _keep_edits(relgq: Ints, sex: Ints, age: Ints) -> Bools:
    """Return which households keep the edits of the DHC by whatever number of years all are shifted."""
    allowed, nothing = allowed_ages(), np.zeros_like(age)
    kept = np.ones(int((relgq == _HEAD).sum()), dtype=np.bool_)
    for shift in range(-JITTER, JITTER + 1):
        shifted = (age + shift).clip(0, allowed.shape[1] - 1)
        stays = ((shifted >= ADULT) != (age >= ADULT)) | ~allowed[relgq, shifted]
        kept &= keeps_edits(describe(relgq, sex, np.where(stays, age, shifted), nothing, nothing))
    return kept


_UNUSABLE = "The microdata cannot be used."


def _read(path: Path) -> dict[str, Ints]:
    """Return the columns of numbers, "SERIALNO" as the number of the household, and the "relation"."""
    log = FindingLog()
    serials: list[npt.NDArray[np.bytes_]] = [np.zeros(0, "S1")]
    parts: dict[str, list[Ints]] = {name: [np.zeros(0, np.int64)] for name in (*_NUMBERS, "relation")}
    for source in _tables(path):
        known = column_names(source)
        relation = next((name for name in _RELATION if name in known), " or ".join(_RELATION))
        codes = _SINCE_2019 if relation == "RELSHIPP" else _BEFORE_2019
        table = np.full(max(codes) + 2, -1)
        table[[*codes]] = [*codes.values()]
        for batch in read_batches(source, ["SERIALNO", *_NUMBERS, relation], log):
            serials.append(text_of(batch, "SERIALNO", log))
            for name, (least, most) in _NUMBERS.items():
                number = whole_numbers(batch, name, log)
                wrong = (number >= 0) & ((number < least) | (number > most))
                batch.report(wrong, name, f"expected {least} to {most}", log)
                parts[name].append(number)
            number = whole_numbers(batch, relation, log)
            parts["relation"].append(table[np.minimum(number, len(table) - 1)])
            wrong = (number >= 0) & (parts["relation"][-1] < 0)
            batch.report(wrong, relation, "expected a code of the ACS", log)
    log.raise_if_any(_UNUSABLE)
    _, first, serial = np.unique(np.concatenate(serials), return_index=True, return_inverse=True)
    numbers = {name: np.concatenate(some) for name, some in parts.items()}
    return numbers | {"SERIALNO": np.argsort(np.argsort(first))[serial]}


def _tables(path: Path) -> list[Path | ZipMember]:
    """Return the tables of a file: that of the nation is a zip file with two."""
    if path.suffix.lower() != ".zip":
        return [path]
    with opened_zip(path, _UNUSABLE, "expected the official zip file, whole; download it again") as archive:
        names = [name for name in tables_in(archive) if name.lower().endswith(".csv")]
    if not names:
        rule = "expected a person file, psam_p*.csv, in this zip"
        raise FormatError(_UNUSABLE, [Finding(path.name, None, None, rule)])
    return [ZipMember(path, name) for name in names]


def _spread(age: Ints, rng: np.random.Generator) -> Ints:
    """Spread ages at the top code, which is the mean of those above a limit, over the years from the limit.

    The limit is taken to lie just above the next lower age in the file.
    """
    distinct = np.unique(age)
    if len(distinct) < 2 or distinct[-1] <= distinct[-2] + 1:
        return age
    limit, top = int(distinct[-2]) + 1, int(distinct[-1])
    at_top = np.flatnonzero(age == top)
    spread = limit - 1 + rng.geometric(1.0 / (top - limit + 1), len(at_top))
    age = age.copy()
    age[at_top] = np.minimum(spread, 105).clip(ADULT)
    return age
