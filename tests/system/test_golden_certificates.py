"""What certificates say of a hospital, a school and an election: every sentence, and no word of a census.

The sentences stand in ``golden/``, for a person to read; ``OPENDAS_GOLDEN=write`` writes them anew.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import opendas as od

GOLDEN = Path(__file__).parent / "golden"

CENSUS = re.compile(
    r"\b(housing unit|group quarters|resident|household|census|patient_id|block|tract|county|state|"
    r"redistrict\w*|draw districts|persons?|people|a all|official|enumeration)\b",
    re.IGNORECASE,
)
"""What only a census would say."""
ALLOWED = {"hospital": (), "clinic": (), "school": (), "election": ("county", "counties")}


def hospital() -> od.Run:
    wards = [(f"H{h}W{w}", f"region {h % 2}", f"H{h}", 4 + w) for h in range(4) for w in range(3)]
    frame = pl.DataFrame(wards, schema=["ward", "region", "hospital", "beds"], orient="row")
    rows = [(wards[n % 12][0], ("child", "adult")[n % 5 > 1], ("low", "high")[n % 3 > 1]) for n in range(300)]
    run = """
        [run]
        product = "stays"
        [input]
        reader = "records"
        geocode = "ward"
        [geography]
        levels = [
            { name = "region", column = "region" }, { name = "hospital", column = "hospital" },
            { name = "ward" },
        ]
        provenance = "public"
        [budget]
        rho = "1/2"
        geolevels = { region = "1/5", hospital = "2/5", ward = "2/5" }
        [budget.queries]
        "*" = { total = "1/4", "age * severity" = "3/4" }
    """
    product = {
        "product": {"name": "stays", "protected_unit": "patient", "provenance": "code-book"},
        "attributes": {"age": ["child", "adult"], "severity": ["low", "high"]},
        "queries": {"groups": ["age"]},
        "invariants": [{"query": "total", "geolevel": "hospital"}],
        "bounds": [
            {"query": "age", "cell": age, "column": "beds", "upper": 40} for age in ("child", "adult")
        ],
    }
    records = pl.DataFrame(rows, schema=["ward", "age", "severity"], orient="row")
    return od.define(run, product=product, input=records, frame=frame)


def school() -> od.Run:
    frame = pl.DataFrame({"class": [f"{s}{c}" for s in "abc" for c in range(4)]})
    rows = [(frame["class"][n % 12], str(n % 4 + 1), ("yes", "no")[n % 3 > 0]) for n in range(240)]
    run = """
        [run]
        product = "pupils"
        mechanism = "discrete-laplace"
        neighbours = "unbounded"
        [input]
        reader = "records"
        geocode = "class"
        [geography]
        levels = [{ name = "all", prefix = 0 }, { name = "school", prefix = 1 }, { name = "class" }]
        provenance = "public"
        [budget]
        epsilon = "2"
        geolevels = { all = "1/4", school = "1/4", class = "1/2" }
        [budget.queries]
        "*" = { total = "1/4", detailed = "3/4" }
    """
    product = {
        "product": {"name": "pupils", "protected_unit": "pupil", "provenance": "public"},
        "attributes": {"grade": ["1", "2", "3", "4"], "meals": ["yes", "no"]},
        "queries": {"groups": ["grade", "meals"]},
    }
    records = pl.DataFrame(rows, schema=["class", "grade", "meals"], orient="row")
    return od.define(run, product=product, input=records, frame=frame)


def clinic() -> od.Run:
    """Visits, of which a patient has several."""
    rows = [(f"P{n // 3:03d}", f"{n % 2}{n % 8}", ("new", "known")[n % 3 > 0]) for n in range(300)]
    run = """
        [run]
        product = "visits"
        [input]
        reader = "records"
        geocode = "practice"
        unit_id = "patient_id"
        at_most = 2
        [geography]
        levels = [{ name = "all", prefix = 0 }, { name = "town", prefix = 1 }, { name = "practice" }]
        provenance = "public"
        [budget]
        rho = "1"
        geolevels = { all = "1/3", town = "1/3", practice = "1/3" }
        [budget.queries]
        "*" = { detailed = "1" }
    """
    product = {
        "product": {"name": "visits", "protected_unit": "patient", "provenance": "code-book"},
        "attributes": {"kind": ["new", "known"]},
    }
    frame = pl.DataFrame({"practice": [f"{n % 2}{n}" for n in range(8)]})
    records = pl.DataFrame(rows, schema=["patient_id", "practice", "kind"], orient="row")
    return od.define(run, product=product, input=records, frame=frame)


def election() -> od.Run:
    rows = [(f"{n % 3}{n % 9:02d}", n % 3, ("mail", "booth")[n % 4 > 0], f"list {n % 5}") for n in range(400)]
    run = """
        [run]
        product = "ballots"
        [input]
        reader = "records"
        geocode = "precinct"
        [geography]
        levels = [{ name = "all", prefix = 0 }, { name = "county", column = "county" }, { name = "precinct" }]
        frame = "from-records"
        [budget]
        rho = "1"
        geolevels = { all = "1/3", county = "1/3", precinct = "1/3" }
        [budget.queries]
        "*" = { total = "1/4", detailed = "3/4" }
    """
    product = {
        "product": {"name": "ballots", "protected_unit": "ballot", "provenance": "code-book"},
        "attributes": {"way": ["mail", "booth"], "list": [f"list {n}" for n in range(5)]},
        "queries": {"groups": ["way", "list"]},
        "invariants": [{"query": "total", "geolevel": "all"}],
    }
    records = pl.DataFrame(rows, schema=["precinct", "county", "way", "list"], orient="row")
    return od.define(run, product=product, input=records)


def visible(page: str) -> list[str]:
    """Return what a report shows in paragraphs, items and captions, without what changes with every run."""
    body = page.split("<main")[1].split('<section id="verify">')[0]
    found = re.findall(r"<(p|li|figcaption|h2|h3|dt)\b[^>]*>(.*?)</\1>", body, re.DOTALL)
    texts = [html.unescape(re.sub(r"\s+", " ", re.sub("<[^>]+>", "", text))).strip() for _, text in found]
    return [re.sub(r"\b[0-9a-f]{16,}\b", "DIGEST", text) for text in texts]


@pytest.mark.parametrize("made", [hospital, clinic, school, election])
def test_a_certificate_speaks_of_its_own_product(tmp_path: Path, made: Callable[[], od.Run]) -> None:
    od.release(made(), out=tmp_path / "out", workers=1)
    release = tmp_path / "out" / "release"
    certificate = json.loads((release / "certificate.json").read_text())
    texts = visible((release / "report.html").read_text())
    said = [text for run in certificate["runs"] for text in run["guarantee"].split("\n\n")]
    lines = ["# certificate.json", *said, "", "# report.html", *texts, ""]
    words = {match.lower() for text in (*said, *texts) for match in CENSUS.findall(text)}
    assert words - set(ALLOWED[made.__name__]) == set()
    golden = GOLDEN / f"{made.__name__}.txt"
    if os.environ.get("OPENDAS_GOLDEN") == "write":
        golden.write_text("\n".join(lines), encoding="utf-8")
    assert golden.read_text(encoding="utf-8").split("\n") == lines
