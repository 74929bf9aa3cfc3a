"""``verify`` computes the certified description of the spine again."""

from __future__ import annotations

import copy
import json

import pytest
from support.release_builder import add_product, issue_release

from opendas.files.release_folder import ReleaseFolder
from opendas.verify.check import run_check
from opendas.verify.release import check_spine, verify_release

NAME = "pl94-persons: spine"


@pytest.fixture
def release(persons, tmp_path):
    issue_release(tmp_path / "release", [add_product(tmp_path / "release", persons)])
    return tmp_path / "release"


def test_the_description_on_file_is_that_of_the_spine(release):
    checks = {check.name: check for check in verify_release(release)}
    assert all(check.ok for check in checks.values())
    assert checks[NAME].detail == "5 geolevels, distances of 1 entity category"
    spine = json.loads((release / "certificate.json").read_text())["runs"][0]["spine"]
    assert [level["geounits"] for level in spine["levels"]] == [1, 2, 3, 4, 6]
    # Place 00100 is a block group; 00200 is a block of one tract and all of another.
    (place,) = spine["entities"]
    assert (place["category"], place["count"], place["mean_distance"], place["max_distance"]) == (
        *("place", 2, 1.5, 2),
    )


CHANGES = {
    "geounits": (lambda spine: spine["levels"][2].update(geounits=4), "'tract' is not as certified"),
    "children": (lambda spine: spine["levels"][1]["fanouts"].reverse(), "'county' is not as certified"),
    "official": (lambda spine: spine["levels"][3].update(official=False), "'block_group' is not as"),
    "level": (lambda spine: spine["levels"].pop(), "levels differ from those of the spine"),
    "distance": (lambda spine: spine["entities"][0].update(mean_distance=1.0), "distances of 'place'"),
    "before": (lambda spine: spine["entities"][0].update(standard_max=99), "distances of 'place'"),
    "category": (lambda spine: spine["entities"].clear(), "categories differ from those of the frame"),
    "form": (lambda spine: spine.pop("entities"), "damaged or incomplete"),
}


def test_changed_descriptions_are_seen(release):
    released = ReleaseFolder(release)["pl94-persons"]
    run = json.loads((release / "certificate.json").read_text())["runs"][0]
    assert run_check("spine", lambda: check_spine(run, released)).ok
    for name, (change, words) in CHANGES.items():
        other = copy.deepcopy(run)
        change(other["spine"])
        check = run_check("spine", lambda other=other: check_spine(other, released))
        assert not check.ok, name
        assert words in check.detail, name


def test_a_certificate_of_an_earlier_version_passes(release):
    run = json.loads((release / "certificate.json").read_text())["runs"][0]
    del run["spine"]
    assert "earlier version" in check_spine(run, ReleaseFolder(release)["pl94-persons"])
