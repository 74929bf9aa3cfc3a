"""Reads public-use microdata (PUMS) as a pool of households, apart from what fills blocks with them.

Person files of the American Community Survey: official zip, CSV or Parquet. Households are those of the
sample with their weights; ages above the top code are spread out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from opendas.arrays import Bools, Ints
from opendas.demo.homes import describe, keeps_edits
from opendas.demo.households import ADULT, CODE, HouseholdPool, allowed_ages
from opendas.demo.placement import JITTER
from opendas.errors import DataError, EnvironmentFailure, Finding, FormatError
from opendas.files.storage.parquet import reading
from opendas.readers.columns.csv_parquet import is_parquet, opened_zip, unpacked

_COLUMNS = ("SERIALNO", "SPORDER", "PWGTP", "AGEP", "SEX")
_RELATION = ("RELSHIPP", "RELP")
"""Columns of the relationship: since 2019, and before."""

_HEAD, _SPOUSE, _PARTNER = CODE["householder_not_alone"], -2, -3
_SINCE_2019 = {
    20: _HEAD, 21: _SPOUSE, 22: _PARTNER, 23: _SPOUSE, 24: _PARTNER, 25: CODE["biological_child"],
    26: CODE["adopted_child"], 27: CODE["stepchild"], 28: CODE["sibling"], 29: CODE["parent"],
    30: CODE["grandchild"], 31: CODE["parent_in_law"], 32: CODE["child_in_law"], 33: CODE["other_relative"],
    34: CODE["roommate"], 35: CODE["foster_child"], 36: CODE["other_nonrelative"],
}  # fmt: skip
_BEFORE_2019 = {
    0: _HEAD, 1: _SPOUSE, 2: CODE["biological_child"], 3: CODE["adopted_child"], 4: CODE["stepchild"],
    5: CODE["sibling"], 6: CODE["parent"], 7: CODE["grandchild"], 8: CODE["parent_in_law"],
    9: CODE["child_in_law"], 10: CODE["other_relative"], 11: CODE["other_nonrelative"], 12: CODE["roommate"],
    13: _PARTNER, 14: CODE["foster_child"], 15: CODE["other_nonrelative"],
}  # fmt: skip
_IN_QUARTERS = {"RELSHIPP": (37, 38), "RELP": (16, 17)}
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
    table, relation = _read(path)
    numbers = {name: _numbers(table, name, path) for name in (*_COLUMNS[1:], relation)}
    inside = ~np.isin(numbers[relation], _IN_QUARTERS[relation])
    codes = _SINCE_2019 if relation == "RELSHIPP" else _BEFORE_2019
    known = np.isin(numbers[relation], [*codes])
    if not bool(known[inside].all()):
        row = int(np.flatnonzero(inside & ~known)[0]) + 1
        raise FormatError(_UNUSABLE, [Finding(path.name, row, relation, "expected a code of the ACS")])
    serial = pc.dictionary_encode(table["SERIALNO"].combine_chunks()).indices.to_numpy().astype(np.int64)
    key = np.array([codes.get(k, 0) for k in range(40)])[numbers[relation].clip(0, 39)]
    order = np.flatnonzero(inside)
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


def _read(path: Path) -> tuple[Any, str]:
    """Return the columns that are needed, and the name of the one with the relationship."""
    try:
        table = _table(path)
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or 'cannot be read'}.") from None
    except pa.ArrowInvalid:
        rule = "expected a person file of the ACS: the official zip, CSV or Parquet"
        raise FormatError(_UNUSABLE, [Finding(path.name, None, None, rule)]) from None
    relation = next((name for name in _RELATION if name in table.column_names), None)
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if relation is None:
        missing.append(" or ".join(_RELATION))
    if missing or relation is None:
        findings = [Finding(path.name, None, name, "expected this column") for name in missing]
        raise FormatError(f"{path.name} lacks columns of a person file of the ACS.", findings)
    return table.select([*_COLUMNS, relation]), relation


def _table(path: Path) -> Any:
    if is_parquet(path):
        with reading(path):
            return pq.read_table(path)
    if path.suffix.lower() != ".zip":
        return csv.read_csv(path, convert_options=_text())
    with opened_zip(path, _UNUSABLE, "expected the official zip file, whole; download it again") as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(".csv")]
        if not names:
            rule = "expected a person file, psam_p*.csv, in this zip"
            raise FormatError(_UNUSABLE, [Finding(path.name, None, None, rule)])
        tables = [
            csv.read_csv(pa.BufferReader(unpacked(archive, name)), convert_options=_text()) for name in names
        ]
    return pa.concat_tables(tables)


def _text() -> csv.ConvertOptions:
    return csv.ConvertOptions(column_types={"SERIALNO": pa.string()})


def _numbers(table: Any, name: str, path: Path) -> Ints:
    try:
        column = table[name].cast(pa.int64()).combine_chunks()
    except pa.ArrowInvalid:
        column = None
    if column is None or column.null_count:
        raise FormatError(_UNUSABLE, [Finding(path.name, None, name, "expected a whole number in every row")])
    return np.asarray(column.to_numpy(), dtype=np.int64)


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
