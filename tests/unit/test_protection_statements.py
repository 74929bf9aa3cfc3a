"""What is said of a run is true of it: the cases in which certificates promised what had been published."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.mini import mini_frame, mini_histogram, to_dense, write_mini

import opendas
from opendas.cli.main import main
from opendas.measurement.protected import EXACT, PROTECTED, SAME, WITHIN, Protection
from opendas.report.certificate import read_runs
from opendas.report.facts import RunFacts
from opendas.report.guarantee import guarantee_text
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.release import release

AGES = '[[invariants]]\nquery = "age"\ngeolevel = "town"\n'
NONE_EXACT = "No statistic of the confidential data is published exactly."


def with_product(path: Path, text: str, *, without: str) -> Path:
    """Replace the end of a product file, from where it says something."""
    product = path.parent / "product.toml"
    known = product.read_text()
    product.write_text(known[: known.index(without)] + text)
    return path


def certified(path: Path) -> RunFacts:
    out = path.parent / "out"
    release(load(path), out, RunOptions())
    (facts,) = read_runs(out / "release")
    return facts


def test_an_attribute_that_is_published_has_no_epsilon(tmp_path: Path) -> None:
    """Ages are exact at towns: a record's age, town and region are known, its kind and block are not."""
    path = with_product(write_mini(tmp_path), AGES, without="[[invariants]]")
    account = opendas.account(load(path))
    assert list(account.attributes) == ["kind"]
    found = account.protection
    assert found.facts == ("age@town",)
    assert {name: part.status for name, part in found.attributes.items()} == {"kind": PROTECTED, "age": EXACT}
    assert [part.status for part in found.geolevels.values()] == [EXACT, EXACT, WITHIN]
    assert found.geolevels["block"].words == "protected only within town"
    queries = {name: [part.status for part in levels.values()] for name, levels in found.queries.items()}
    assert queries["age"] == queries["minor"] == queries["total"] == [EXACT, EXACT, WITHIN]
    assert queries["kind"] == [WITHIN] * 3
    facts = certified(path)
    assert list(facts.attributes) == ["kind"]
    assert facts.protection is not None
    assert facts.protection.attributes == found.attributes
    text = guarantee_text(facts)
    assert "Published exactly: attribute age, geolevel region, geolevel town" in text
    assert NONE_EXACT not in text


def test_the_within_losses_above_an_exact_total_are_those_below_it(tmp_path: Path) -> None:
    """Nobody moves between regions: "within the nation" is within a region."""
    path = write_mini(tmp_path)
    account = opendas.account(load(path))
    free = opendas.account(load(write_mini(tmp_path / "free", run='drop_invariants = ["total"]')))
    assert account.within["region"] == free.within["region"] < account.plan.budget.total
    assert max(change.total() for change in _counters(account, held=True)) < max(
        change.total() for change in _counters(free, held=True)
    )


def _counters(account: opendas.PlanAccount, *, held: bool) -> list:
    return [Counter(dict(change)) for change in account.worst(hold_invariants=held).changes]


def test_bounds_without_room_are_named_as_published(tmp_path: Path) -> None:
    """One kind of cell is fixed by bounds from 1 to 1: no invariant, and yet something is exact."""
    path = write_mini(tmp_path)
    dense = to_dense(mini_histogram(mini_frame()))
    with_product(
        path,
        '[[bounds]]\nquery = "kind"\ncell = "school"\ncolumn = "pupils"\nlower = 1\nupper = 1\n',
        without="[[invariants]]",
    )
    codes = [code.decode() for code in mini_frame().geocodes]
    lines = [f"{code},{count}" for code, count in zip(codes, dense[:, 3:6].sum(axis=1).tolist(), strict=True)]
    (tmp_path / "frame.csv").write_text("\n".join(["geocode,pupils", *lines]) + "\n")
    facts = certified(path)
    assert facts.invariants == ()
    assert facts.protection is not None
    assert facts.protection.facts == ("kind=school by pupils",)
    text = guarantee_text(facts)
    assert NONE_EXACT not in text
    assert "This run holds no invariant" not in text
    assert "published exactly (kind=school by pupils)" in text
    assert 0 < facts.protection.geolevels["block"].known < 1


def test_with_nothing_exact_it_is_said(tmp_path: Path) -> None:
    facts = certified(write_mini(tmp_path, run='drop_invariants = ["total"]'))
    text = guarantee_text(facts)
    assert "This run holds no invariant, and no bound fixes a count." in text
    assert NONE_EXACT in text
    assert facts.protection is not None
    assert all(part.status == PROTECTED for part in facts.protection.attributes.values())
    assert facts.protection.queries["total"]["region"].status == PROTECTED


def test_the_attacker_is_told_how_many_alternatives_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ages are exact at blocks, and kinds up to one pair: few alternatives are left, and often none."""
    text = AGES.replace("town", "block") + (
        '[recodes.house]\nattribute = "kind"\nlevels = { house = ["home", "school"], cell = ["prison"] }\n'
        '[[invariants]]\nquery = "house"\ngeolevel = "block"\n'
    )
    path = with_product(write_mini(tmp_path), text, without="[[invariants]]")
    found = opendas.account(load(path)).protection
    assert (found.least, found.median) == (0, 1)
    assert found.attributes["kind"].words.startswith("protected only within house; known exactly at")
    assert found.attributes["age"].status == EXACT
    assert found.alone == 24 * 2  # adults and the old in prison, at every block
    with pytest.raises(SystemExit):
        main(["account", str(path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "another that the exact facts allow" in said
    assert "at 48 places they leave none: a record there is known" in said


def test_one_geounit_of_a_level_is_the_same_in_all_neighbours(tmp_path: Path) -> None:
    path = write_mini(tmp_path, frame=mini_frame(regions=1), histogram=mini_histogram(mini_frame(regions=1)))
    found = opendas.account(load(path)).protection
    assert found.geolevels["region"].status == EXACT
    path.write_text(path.read_text().replace("[input]", 'drop_invariants = ["total"]\n[input]'))
    found = opendas.account(load(path)).protection
    assert found.geolevels["region"].status == SAME
    assert found.queries["total"]["region"].status == SAME


def test_facts_that_cross_are_said_to(tmp_path: Path) -> None:
    """Ages are exact at towns and kinds at regions: more may follow from both than the map finds."""
    nested = opendas.account(load(write_mini(tmp_path / "nested"))).protection
    assert nested.nested
    assert "upper limits" not in nested.alternatives
    assert "nested" not in nested.to_dict()
    text = AGES + '[[invariants]]\nquery = "kind"\ngeolevel = "region"\n'
    path = with_product(write_mini(tmp_path), text, without="[[invariants]]")
    found = opendas.account(load(path)).protection
    assert not found.nested
    assert "These numbers are upper limits" in found.alternatives
    assert Protection.from_dict(found.to_dict()) == found
