"""The glossary has the field's terms that the code uses, in order."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
TITLES = [title.lower() for title in re.findall(r"^\*\*(.+?)\*\*", TEXT, re.MULTILINE)]
TERMS = (
    *("address", "attribute", "block-by-block", "bound", "bounded neighbours", "budget", "cef", "cell"),
    *("certificate", "delta", "demonstration frame", "detailed"),
    *("edit constraint", "engine", "entity", "estimate", "estimator", "failsafe", "family"),
    *("frame", "geocode", "geolevel", "geounit", "hhgq", "histogram", "housing unit"),
    *("invariant", "key", "laminar", "lazy measurement", "leaf", "ledger", "mdf", "measurement"),
    *("measurement plan", "mechanism", "neighbours", "nmf", "parent", "pass", "plb", "ppmf", "preset"),
    *("privacy wall", "product", "protected unit", "query group", "recode", "record", "release"),
    *("release wall", "rest", "rho", "root", "rounder", "row", "run file", "run key", "scale"),
    *("schema", "seeded run", "share", "sigma2", "spine", "stamp"),
    *(
        "structural zero",
        "topdown",
        "total",
        "truth",
        "unit column",
        "zcdp",
    ),
    *("aian", "bypassing", "dhc"),
    *("off-spine entity distance", "part", "recipe"),
    *(
        "domain",
        "provenance",
        "book",
    ),
    *("re-derivation", "signature"),
)


def test_every_term_is_explained() -> None:
    for term in TERMS:
        assert any(title == term or title.startswith((f"{term} (", f"{term},")) for title in TITLES), term


def test_terms_stand_once_and_in_order() -> None:
    plain = [re.sub(r"[^a-z0-9 ]", "", title) for title in TITLES]
    assert plain == sorted(set(plain))
