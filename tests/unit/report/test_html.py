"""The report: one file that asks for nothing, says what it must, and is well formed."""

from __future__ import annotations

import dataclasses
import math
import re
from fractions import Fraction
from html.parser import HTMLParser
from statistics import NormalDist

import pytest

from opendas.custody.stamps import DEMONSTRATION_FRAME, NOT_FOR_RELEASE
from opendas.privacy.attacker import zcdp_power_bound
from opendas.report.certificate import ReleasedFile, build_certificate
from opendas.report.facts import RunFacts
from opendas.report.html import guess_bound, guess_picture, opening, report_html
from opendas.report.views import (
    TotalMargin,
    decimal,
    file_groups,
    invariant_words,
    plural,
    runs_words,
    total_margins,
)
from opendas.schema.declarations import ContributionBound, PublishedFile

DIGEST = "0123456789abcdef" * 4
VOID = {"meta", "br", "line", "rect", "polyline", "circle"}


def made(*runs: RunFacts) -> str:
    files = [ReleasedFile("mdf/persons/44001.parquet", 1234, "ab" * 32)]
    certificate = build_certificate(runs, files, version="0.1.0", commit="unknown", issued="2021-04-01")
    return report_html(certificate, runs, DIGEST).decode()


class Checker(HTMLParser):
    """Collect attributes that could make a request, and check that elements nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.identifiers: set[str] = set()
        self.headers: list[dict[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        for name in ("src", "srcset", "href", "xlink:href", "data", "action", "poster", "background"):
            if values.get(name) is not None:
                self.links.append(str(values[name]))
        if "id" in values:
            self.identifiers.add(str(values["id"]))
        if tag == "th":
            self.headers.append(values)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def test_report_can_make_no_request(persons: RunFacts, units: RunFacts, pure: RunFacts) -> None:
    page = made(persons, units, pure)
    found = checked(page)
    assert all(link.startswith("#") for link in found.links)
    assert {link[1:] for link in found.links} <= found.identifiers
    assert not found.tags & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
        "image",
        "use",
    }
    assert "://" not in page
    assert "//" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_report_says_what_was_released_and_how_far_off(persons: RunFacts, units: RunFacts) -> None:
    page = made(persons, units)
    words = " ".join(" ".join(checked(page).words).split())
    for part in (
        DEMONSTRATION_FRAME,
        "1,052,567",
        "463,388",
        "A county's total is off by at most 3 in about 9 cases out of 10",
        "The total of a state is an invariant",
        "±147",
        "3945/4097",
        "17.14",
        "total of every state",
        "opendas verify OUT",
        DIGEST,
        "What is not guaranteed",
        "one person with the unit changes it induces",
        "ab" * 32,
    ):
        assert part in words


def test_the_noise_of_single_measurements_is_not_offered_as_the_error_of_the_counts(
    persons: RunFacts,
) -> None:
    page = made(persons)
    shown, folded = page.split("<details><summary>The noise of single measurements", 1)
    for of_noise in ("±147", "from its own measurements alone", "Margin of one measured answer"):
        assert of_noise not in shown
        assert of_noise in folded.split("</details>")[0]
    assert "opendas replicates OUT" in shown
    assert "opendas margin OUT" not in shown
    files = [ReleasedFile("replicates/pl94-persons.parquet", 1234, "ab" * 32)]
    certificate = build_certificate([persons], files, version="1", commit="-", issued="2021-04-01")
    assert "opendas margin OUT" in report_html(certificate, [persons], DIGEST).decode().split("<details>")[0]
    alone = dataclasses.replace(persons, families=0, records=0, estimator="none (measurements only)")
    assert "<details open><summary>The noise of single" in made(alone)


def test_stamps_are_shown_only_where_they_apply(persons: RunFacts, units: RunFacts) -> None:
    assert 'class="stamp"' not in made(units)
    stamped = made(dataclasses.replace(persons, stamps=(NOT_FOR_RELEASE,)))
    assert f"<strong>{NOT_FOR_RELEASE}</strong>" in stamped
    assert "Power at most" not in stamped
    assert "Power at most" in made(persons)


def test_tables_name_their_headers(persons: RunFacts, units: RunFacts) -> None:
    found = checked(made(persons, units))
    assert found.headers
    assert all(header.get("scope") in ("col", "row") for header in found.headers)


def test_report_holds_nothing_of_the_machine(persons: RunFacts) -> None:
    page = made(persons).lower()
    for forbidden in (
        "seconds",
        "workers",
        "engine",
        "hostname",
        "memory",
        "/tmp",
        "/home",
        "key_commitment",
    ):
        assert forbidden not in page


def test_same_content_same_bytes(persons: RunFacts) -> None:
    assert made(persons) == made(persons)


def test_markup_in_names_is_escaped(units: RunFacts) -> None:
    page = made(dataclasses.replace(units, product="<script>alert(1)</script>", declared=("a < b",)))
    assert "<script" not in page
    assert "a &lt; b" in page
    checked(page)


def test_pure_run_is_reported(pure: RunFacts) -> None:
    page = made(pure)
    assert "epsilon = 0.5 (pure)" in page
    assert "<polyline" not in page


def test_losses_within_official_areas_are_told(persons: RunFacts, pure: RunFacts) -> None:
    shown = " ".join(checked(made(persons)).words)
    assert "A record that moves within an official block group loses at most rho = 2.5" in shown
    assert "in half of the 815 block groups at most rho = 0.75" in shown
    assert "In 700 of the 815 it loses more than within one block group of the spine" in shown
    assert "within a place loses at most rho = 0.75" in shown
    alone = made(pure)
    assert "within an official county loses at most epsilon = 0.6667; in half of the 5 counties" in alone
    assert "of the spine, because" not in alone
    nothing = (dataclasses.replace(pure.within_official[0], largest=Fraction(0), median=Fraction(0)),)
    assert "No record can move within an official county" in made(
        dataclasses.replace(pure, within_official=nothing)
    )
    older = made(dataclasses.replace(persons, within_official=()))
    assert "official area" not in older


def test_an_unbounded_total_is_reported(units: RunFacts) -> None:
    assert "unbounded" in made(dataclasses.replace(units, stamps=(NOT_FOR_RELEASE,)))
    assert "unbounded" not in made(units)


def test_measurements_alone_are_not_called_records(persons: RunFacts) -> None:
    run = dataclasses.replace(persons, families=0, records=0, estimator="none (measurements only)")
    page = made(run)
    checked(page)
    assert "noisy answers measured" in page
    assert "records released" not in page
    assert "may be negative" in page
    assert "whole, non-negative records" in made(persons)
    assert "opendas replicates" in made(persons)
    for sentence in ("opendas replicates", "not the\nreleased count", "released counts"):
        assert sentence not in page


def test_sentences_are_true_of_odd_runs(persons: RunFacts, pure: RunFacts) -> None:
    """One record, units of several records, one whole, totals that are exact at the top only, ..."""
    several = ContributionBound("who", 2, None)
    state = tuple(row for row in persons.rows if row.geolevel == "state")
    whole = dataclasses.replace(pure.within_official[0], kind="all")
    published = PublishedFile("the 2010 demonstration data", "ab" * 32, 1)
    told = {
        "record released, each an inmate": {"protected_unit": "inmate", "records": 1, "families": 1},
        "replacing one record by another": {"protected_unit": "record"},
        "in 1 family": {"families": 1},
        "2 records of people": {"records": 2, "contribution": several},
        "within the whole loses at most": {"within_official": (whole,)},
        "The total of a state is an invariant: it is exact.": {"rows": state},
        "The frame was derived from confidential counts": {"invariants": (), "protection": None},
        "Others added noise": {"published": published},
    }
    odd = {sentence: made(dataclasses.replace(persons, **changes)) for sentence, changes in told.items()}
    for sentence, page in odd.items():
        assert sentence in page, sentence
    assert "at every level: totals are" not in odd["The total of a state is an invariant: it is exact."]
    assert "record record" not in odd["replacing one record by another"]
    assert "each a record" not in odd["replacing one record by another"]
    exact = odd["The frame was derived from confidential counts"]
    assert "No count." not in exact
    assert "No statistic is published exactly" not in exact
    assert "made from confidential records" not in odd["Others added noise"]


def test_margin_of_a_total_weights_independent_measurements(persons: RunFacts) -> None:
    margins = {margin.geolevel: margin for margin in total_margins(persons)}
    assert margins["state"].margin is None
    rows = [row for row in persons.rows if row.geolevel == "tract"]
    precision = sum(1 / (row.cells * row.variance) for row in rows)
    assert margins["tract"].margin == -int(-1.6448536269514722 / precision**0.5 // 1)
    assert all(isinstance(margin, TotalMargin) for margin in margins.values())


def test_every_total_is_exact_where_the_leaves_are_invariant(units: RunFacts) -> None:
    assert [margin.margin for margin in total_margins(units)] == [None] * 5
    assert "totals are exact" in made(units)


def test_words() -> None:
    assert plural("county", 5) == "5 counties"
    assert plural("block_group", 1) == "1 block group"
    assert plural("class", 3) == "3 classes"
    assert invariant_words("total@state") == "total of every state"
    assert runs_words({"runs": 1, "uncovered": 0, "discoveries": 2}) == "1 and 2 discoveries"
    assert decimal(0.074943671) == "0.07494"
    assert decimal(7962.6) == "7,963"
    assert decimal(0) == "0"


@pytest.mark.parametrize("value", [1e-12, 123456789.0, 1.5e12])
def test_decimals_keep_their_size(value: float) -> None:
    assert abs(float(decimal(value).replace(",", "")) / value - 1) < 1e-3


def test_files_are_grouped_by_folder() -> None:
    files = [{"path": p, "bytes": 2, "sha256": "00"} for p in ("a/b/1", "a/b/2", "c/3", "4")]
    assert [(group.folder, len(group.files), group.bytes) for group in file_groups(files)] == [
        ("a/b", 2, 4),
        ("c", 1, 2),
        (".", 1, 2),
    ]


def test_report_says_where_the_shares_come_from(persons: RunFacts) -> None:
    assert "shares come from" not in made(persons)
    told = dataclasses.replace(persons, source="counts of 2010 <published>")
    assert "as the run file says: counts of 2010 &lt;published&gt;</p>" in made(told)


def test_intervals_are_offered_where_all_answers_are_there(persons: RunFacts) -> None:
    used = made(dataclasses.replace(persons, measurements="used"))
    assert "opendas interval OUT" not in used
    assert "intervals\nneed all of them" in used
    assert "opendas interval OUT --query pl94-persons:total" in made(
        dataclasses.replace(persons, measurements="full")
    )


def test_tables_with_intervals_are_named(persons: RunFacts) -> None:
    files = [ReleasedFile("tables/P1_tract_intervals.parquet", 9, "ab" * 32)]
    certificate = build_certificate((persons,), files, version="0.1.0", commit="unknown", issued="2021-04-01")
    page = report_html(certificate, (persons,), DIGEST).decode()
    assert "<code>tables/P1_tract_intervals.parquet</code>" in page
    assert "P1_tract_intervals.parquet</code></li>" not in made(persons)


def test_the_report_opens_with_six_lines_and_a_picture(persons: RunFacts, units: RunFacts) -> None:
    files = [ReleasedFile("mdf/persons/44001.parquet", 1234, "ab" * 32)]
    certificate = build_certificate([persons, units], files, version="1", commit="-", issued="2021-04-01")
    lines = dict(opening(certificate, [persons, units], DIGEST))
    assert len(lines) == 6
    assert lines["Released"].startswith("1,052,567 people and 463,388 housing units, as whole records in ")
    assert lines["Exact"].startswith("Total of every state (pl94-persons)")
    assert "opendas replicates" in lines["Not exact"]
    assert f"person {math.ceil(100 * (guess_bound(persons) or 0))} times in 100" in lines["Protected"]
    assert DIGEST[:16] in lines["To check"]
    words = " ".join(" ".join(checked(made(persons, units)).words).split())
    for title, sentence in lines.items():
        assert title in words
        if title != "To check" and title != "Privacy loss":
            assert sentence in words
    certificate["files"][0]["path"] = "replicates/pl94-persons.parquet"
    assert "holds replicates" in dict(opening(certificate, [persons, units], DIGEST))["Not exact"]


def test_no_guess_beats_the_bound_of_the_opening(persons: RunFacts, pure: RunFacts) -> None:
    bound = guess_bound(persons)
    assert bound is not None
    # Gaussian noise of the same rho, and the bound itself at levels that the opening does not look at.
    gaussian = NormalDist().cdf(math.sqrt(2 * float(persons.loss)) / 2)
    levels = [number / 997 for number in range(1, 997)]
    finest = max((1 + zcdp_power_bound(persons.loss, level) - level) / 2 for level in levels)
    assert gaussian < finest <= bound < finest + 0.02
    exact = math.exp(float(pure.loss)) / (1 + math.exp(float(pure.loss)))
    assert exact <= (guess_bound(pure) or 0) < exact + 0.1
    assert guess_bound(dataclasses.replace(persons, stamps=(NOT_FOR_RELEASE,))) is None
    assert guess_picture([dataclasses.replace(persons, stamps=(NOT_FOR_RELEASE,))]) == ""
