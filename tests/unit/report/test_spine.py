"""The spine in certificate, report and PDF: said, drawn to scale, and absent where it is not known."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re

import pytest

from opendas.geography.summary import EntitySummary, LevelSummary, SpineSummary
from opendas.report.certificate import build_certificate
from opendas.report.facts import RunFacts
from opendas.report.html import report_html
from opendas.report.pdf import certificate_pdf
from opendas.report.pictures import distances_svg, levels_svg
from opendas.report.views import entity_rows, level_rows, spine_sentence, total_margins

DIGEST = "0123456789abcdef" * 4

LEVELS = (
    LevelSummary("state", 1, 5, 0, 0, (5,) * 7),
    LevelSummary("county", 5, 141, 0, 0, (11, 11, 22, 28, 39, 39, 141)),
    LevelSummary("tract", 241, 10, 2, 0, (1, 3, 3, 4, 5, 6, 10)),
    LevelSummary("block_group", 994, 25, 17, 2, (1, 8, 17, 20, 22, 23, 25), False),
    LevelSummary("block", 17850, 0, 0, 17, ()),
)
PLACES = EntitySummary("place", 34, 5.91, 39, (1, 1, 2, 3, 5, 13, 39), 15.38, 40, (2, 3, 10, 13, 18, 27, 40))
SCHOOLS = EntitySummary("sduni", 30, 7.6, 39, (1, 3, 4, 5, 7, 17, 39), 7.6, 39, (1, 3, 4, 5, 7, 17, 39))
SPINE = SpineSummary(LEVELS, (PLACES, SCHOOLS))


def page_of(*runs: RunFacts) -> str:
    certificate = build_certificate(runs, (), version="0.1.0", commit="unknown", issued="2021-04-01")
    return report_html(certificate, runs, DIGEST).decode()


def pdf_of(*runs: RunFacts) -> list[str]:
    pypdf = pytest.importorskip("pypdf")
    certificate = build_certificate(runs, (), version="0.1.0", commit="unknown", issued="2021-04-01")
    pages = pypdf.PdfReader(io.BytesIO(certificate_pdf(certificate, runs, DIGEST))).pages
    return [" ".join(page.extract_text().split()) for page in pages]


def bars(picture: str) -> list[tuple[float, str]]:
    return [(float(w), c) for w, c in re.findall(r'width="([\d.]+)" height="22.0" class="([^"]*)"', picture)]


def test_the_certificate_keeps_the_description(persons: RunFacts) -> None:
    run = dataclasses.replace(persons, spine=SPINE)
    record = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert record["spine"]["levels"][3]["bypassed"] == 2
    assert record["spine"]["entities"][0]["standard_mean"] == 15.38
    assert RunFacts.from_dict(record) == run


def test_a_certificate_without_a_description_is_read(persons: RunFacts) -> None:
    record = json.loads(json.dumps(persons.to_dict()))
    assert record.pop("spine") is None
    found = RunFacts.from_dict(record)
    assert found == persons
    assert found.spine is None
    page = page_of(found)
    assert 'id="spine"' not in page
    assert "#spine" not in page
    assert not any("Spine of" in text for text in pdf_of(found))


def test_report_and_pdf_say_what_the_spine_is(persons: RunFacts) -> None:
    run = dataclasses.replace(persons, spine=SPINE)
    page = page_of(run)
    assert 'href="#spine"' in page
    assert 'id="spine"' in page
    pdf = " ".join(pdf_of(run))
    for text in (page, pdf):
        for part in ("block group", "994", "1 to 25 (20)", "unified school districts", "15.38", "5.91", "40"):
            assert part in text
        assert "at the level block group its geounits are not the official ones" in text
    assert page.count("<svg") == page_of(persons).count("<svg") + 2


def test_both_runs_with_their_spines_fit_six_pages(persons: RunFacts, units: RunFacts) -> None:
    runs = [dataclasses.replace(run, spine=SPINE) for run in (persons, units)]
    assert len(pdf_of(*runs)) <= 6


def test_bars_are_logarithmic_and_coloured_by_what_they_are() -> None:
    found = bars(
        str(levels_svg((LEVELS[0], *(dataclasses.replace(LEVELS[2], geounits=n) for n in (100, 10_000)))))
    )
    assert found[0][0] < 5
    assert math.isclose(2 * found[1][0], found[2][0], rel_tol=1e-3)
    colours = [colour for _, colour in bars(str(levels_svg(LEVELS)))]
    assert colours == ["tint tint1"] * 3 + ["tint tint2"] + ["tint tint1"]


def test_boxes_stand_where_the_percentiles_are() -> None:
    picture = str(distances_svg([PLACES]))
    span = math.log10(40)
    ((x, width),) = [
        (float(x), float(w))
        for x, w in re.findall(
            r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="13.0" class="after"', picture
        )
    ]
    left, right = 196.0, 600.0
    assert math.isclose(x, left + (right - left) * math.log10(2) / span, abs_tol=0.06)
    assert math.isclose(x + width, left + (right - left) * math.log10(5) / span, abs_tol=0.12)


def test_distances_that_did_not_change_are_drawn_once() -> None:
    assert 'class="before"' not in str(distances_svg([SCHOOLS]))
    assert str(distances_svg([SCHOOLS, PLACES])).count("before whisker") == 2


def test_pictures_of_one_geounit_and_one_entity() -> None:
    alone = LevelSummary("nation", 1, 1, 1, 0, (1,) * 7)
    area = EntitySummary("<b>", 1, 1.0, 1, (1,) * 7, 1.0, 1, (1,) * 7)
    for picture in (levels_svg([alone, LevelSummary("leaf", 1, 0, 0, 0, ())]), distances_svg([area])):
        numbers = [float(n) for n in re.findall(r' (?:x|y|x1|x2|y1|y2|width)="([^"]*)"', str(picture))]
        assert all(math.isfinite(n) and n >= 0 for n in numbers)
        assert "<b>" not in picture


def test_parts_of_a_state_are_not_called_exact(persons: RunFacts) -> None:
    """The invariant total is that of the state; what one part of it holds is measured."""
    divided = [dataclasses.replace(level, official=level.geolevel == "block") for level in LEVELS]
    run = dataclasses.replace(persons, spine=SpineSummary(tuple(divided), ()))
    margins = {margin.geolevel: margin for margin in total_margins(run)}
    rows = [row for row in run.rows if row.geolevel == "state"]
    assert margins["state"].margin == math.ceil(
        1.6448536269514722 / math.sqrt(sum(1 / (row.cells * row.variance) for row in rows))
    )
    assert margins["state"].label == "part of a state"
    assert "its parts hold it together" in margins["state"].sentence
    assert "not an official area" in margins["county"].sentence
    assert "not an official area" not in margins["block"].sentence
    assert "The total of a state is an invariant: it is exact" not in page_of(run)
    # Where every block is exact, so is all that is made of blocks.
    blocks = dataclasses.replace(run, invariants=("total@block",))
    assert all(margin.margin is None for margin in total_margins(blocks))
    # On the official spine nothing changes.
    official = dataclasses.replace(persons, spine=SpineSummary(LEVELS[:3], ()))
    assert total_margins(official) == total_margins(persons)


def test_rows_and_sentences() -> None:
    assert level_rows(LEVELS)[0] == ("state", "1", "yes", "5", "0", "0")
    assert level_rows(LEVELS)[4] == ("block", "17,850", "yes", "\u2013", "\u2013", "17")
    assert entity_rows([PLACES]) == [("places", "34", "5.91", "15.38", "39", "40")]
    assert spine_sentence(SpineSummary(LEVELS[:3], ())) == (
        "Measurements were taken on the official geography."
    )
    made = [dataclasses.replace(level, official=False) for level in LEVELS[1:4]]
    assert "levels county, tract and block group its" in spine_sentence(SpineSummary(tuple(made), ()))
