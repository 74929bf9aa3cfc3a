"""The PDF of a certificate: opens, says what it must, and has the same bytes every time."""

from __future__ import annotations

import dataclasses
import io

import pytest

from opendas.custody.stamps import DEMONSTRATION_FRAME, NOT_FOR_RELEASE
from opendas.report.certificate import ReleasedFile, build_certificate
from opendas.report.facts import RunFacts
from opendas.report.pdf import certificate_pdf
from opendas.report.views import ticks

pypdf = pytest.importorskip("pypdf")

DIGEST = "0123456789abcdef" * 4


def made(runs: tuple[RunFacts, ...], files: int = 3) -> bytes:
    listed = [ReleasedFile(f"mdf/persons/{n:05d}.parquet", n, f"{n:064x}") for n in range(files)]
    certificate = build_certificate(runs, listed, version="0.1.0", commit="unknown", issued="2021-04-01")
    return certificate_pdf(certificate, runs, DIGEST)


def text(data: bytes) -> str:
    pages = pypdf.PdfReader(io.BytesIO(data)).pages
    return " ".join(" ".join(page.extract_text().split()) for page in pages)


def test_pdf_holds_stamps_exact_budgets_and_digests(persons: RunFacts, units: RunFacts) -> None:
    stamped = dataclasses.replace(persons, stamps=(DEMONSTRATION_FRAME, NOT_FOR_RELEASE))
    shown = text(made((stamped, units)))
    for part in (
        DEMONSTRATION_FRAME,
        NOT_FOR_RELEASE,
        "2021-04-01",
        DIGEST,
        "11417641/152349649",
        "689/4099",
        "3945/4097",
        "17.14",
        "2.47",
        "total of every state",
        "one person with the unit changes it induces",
        "00001.parquet",
        f"{2:064x}",
    ):
        assert part in shown
    pages = pypdf.PdfReader(io.BytesIO(made((stamped, units)))).pages
    assert all(NOT_FOR_RELEASE in page.extract_text() for page in pages)


def test_pdf_without_stamps_shows_none(units: RunFacts) -> None:
    shown = text(made((units,)))
    assert DEMONSTRATION_FRAME not in shown
    assert NOT_FOR_RELEASE not in shown


def test_pdf_of_one_run_has_three_to_six_pages(persons: RunFacts, units: RunFacts) -> None:
    for runs in ((persons,), (persons, units)):
        assert 3 <= len(pypdf.PdfReader(io.BytesIO(made(runs))).pages) <= 6


def test_same_content_same_bytes_whatever_the_environment_says_of_dates(
    persons: RunFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made((persons,))
    for date in ("1700000000", "0"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
        assert data == made((persons,))
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert data == made((persons,))
    assert data != made((persons,), files=4)
    information = pypdf.PdfReader(io.BytesIO(data)).metadata
    assert information["/CreationDate"].startswith("D:20210401"), "the day that it was issued"


def test_pure_run_has_no_curve_and_no_rho(pure: RunFacts) -> None:
    shown = text(made((pure,)))
    assert "epsilon = 0.5 (pure)" in shown
    assert "bun-steinke" not in shown.split("What the loss")[1].split("One attribute")[0]


def test_losses_within_official_areas_have_their_table(persons: RunFacts, units: RunFacts) -> None:
    shown = " ".join(text(made((persons,))).split())
    assert "A record moves within one official area" in shown
    assert "in half of the 815 block groups at most rho = 0.75" in shown
    assert "official area" not in text(made((units,)))


def test_long_lists_of_files_are_cut_with_a_count(units: RunFacts) -> None:
    shown = text(made((units,), files=500))
    assert "440 more files are listed in certificate.json" in shown


def test_markup_and_foreign_letters_in_names_are_harmless(units: RunFacts) -> None:
    run = dataclasses.replace(units, product="a <b>&\u6f22 product", declared=("x < y & z",))
    shown = text(made((run,)))
    assert "a <b>&? product" in shown
    assert "x < y & z" in shown


def test_many_geolevels_are_set_in_several_tables(units: RunFacts) -> None:
    levels = [f"level{n}" for n in range(14)]
    share = next(iter(units.geolevel_shares.values()))
    run = dataclasses.replace(
        units,
        geounits=dict.fromkeys(levels, 2),
        geolevel_shares=dict.fromkeys(levels, share),
        query_shares={level: {"detailed": share} for level in levels},
        rows=(),
        within={},
    )
    shown = text(made((run,)))
    assert all(level in shown for level in levels)


@pytest.mark.parametrize(("low", "high"), [(0.0, 22.4), (0.0, 0.03), (0.0, 1.0), (-3.0, 1e6)])
def test_ticks_are_round_and_enclose(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high * (1 - 1e-9)
    assert 3 <= len(found) <= 9


def test_pdf_says_where_the_shares_come_from(persons: RunFacts) -> None:
    assert "shares come from" not in text(made((persons,)))
    told = dataclasses.replace(persons, source="counts of 2010 <published>")
    assert "as the run file says: counts of 2010 <published>" in text(made((told,)))
