"""Check that the budget adds up exactly, that the noise follows from it, and that measurements fit the plan.

Kept apart from the other checks because one file would be too long to read.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from operator import mul
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from opendas.budget.allocation import Budget, Contribution
from opendas.custody.account import AccountFacts
from opendas.custody.protected_units import change_of, unit_id
from opendas.errors import CheckFailed, ConfigError
from opendas.files.nmf.reading import MeasurementFile, measurement_metadata
from opendas.files.release_folder import ReleasedProduct, digest_of_files
from opendas.geography.spine import Spine
from opendas.measurement.loss import attribute_losses, within_losses
from opendas.measurement.official_losses import AreaLoss, official_losses
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.privacy.exact import parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours, noise_of
from opendas.report.guarantee import account_text
from opendas.report.views import plural
from opendas.schema.declarations import ContributionBound, EarlierAct
from opendas.schema.product import Product
from opendas.schema.provenance import Domain
from opendas.verify.check import require

Run = Mapping[str, Any]

_CONFIDENCE = Fraction(9, 10)


def _loss_key(run: Run) -> str:
    return "pure_epsilon" if run["mechanism"] == Mechanism.DISCRETE_LAPLACE else "rho"


def _total(run: Run) -> Fraction:
    key = _loss_key(run)
    require(run.get(key) is not None, f"the certificate states no finite {key}.")
    return parse_fraction(run[key], key)


def check_budget(run: Run) -> str:
    """Check that geolevel shares, and the query shares of every budgeted geolevel, sum to exactly 1."""
    _total(run)
    levels = {name: parse_fraction(share, name) for name, share in run["budget"]["geolevels"].items()}
    require(all(share >= 0 for share in levels.values()), "a geolevel share is negative.")
    require(sum(levels.values()) == 1, f"the geolevel shares sum to {sum(levels.values())}, not to 1.")
    for name, share in levels.items():
        queries = run["budget"]["queries"].get(name, {})
        if share == 0 and not queries:
            continue
        parts = [parse_fraction(part, f"{name}, {query}") for query, part in queries.items()]
        require(all(part >= 0 for part in parts), f"geolevel {name}: a query share is negative.")
        require(sum(parts) == 1, f"geolevel {name}: the query shares sum to {sum(parts)}, not to 1.")
    unknown = set(run["budget"]["queries"]) - set(levels)
    require(not unknown, f"query shares at geolevels without a budget share: {', '.join(sorted(unknown))}.")
    return f"{plural('geolevel', len(levels))}; all shares sum to exactly 1"


def _expected_rows(run: Run, spine: Spine) -> Counter[tuple[str, str, Fraction]]:
    """Count the geounits that have each (geolevel, query, loss)."""
    total = _total(run)
    expected: Counter[tuple[str, str, Fraction]] = Counter()
    for number, level in enumerate(spine.levels):
        share = Fraction(run["budget"]["geolevels"].get(level.name, "0"))
        multiples, which = spine.multiples(number)
        each = np.bincount(which, minlength=len(multiples)).tolist()
        counts = dict(zip(multiples, each, strict=True))
        for query, part in run["budget"]["queries"].get(level.name, {}).items():
            for multiple, geounits in counts.items():
                loss = share * multiple * Fraction(part) * total
                if loss:
                    expected[level.name, query, loss] += geounits
    return expected


def _of_a_unit(run: Run, product: Product, geolevel: str, query: str) -> int:
    """Return the factor of units of several records on a query group's squared L2 (or L1) distance."""
    declared = run.get("contribution")
    if declared is None:
        return 1
    most, distinct = int(declared["at_most"]), declared["distinct"]
    if run["mechanism"] == Mechanism.DISCRETE_LAPLACE:
        return most
    leaf = run["geolevels"][-1]
    together = most
    if distinct == "cell" or (distinct == "record" and geolevel == leaf):
        _, counted = np.unique(product.workload.group(query).row_of_cell, return_counts=True)
        together = min(most, int(counted.max()))
    elif distinct == "leaf" and geolevel == leaf:
        together = 1
    return most * together


def check_rows(run: Run, released: ReleasedProduct) -> str:
    """Check that every noise row is a product of shares and covers the spine's geounits; paths sum to 1."""
    spine, product = released.spine, released.product
    levels = [Fraction(run["budget"]["geolevels"].get(name, "0")) for name in spine.names]
    absent = set(run["budget"]["geolevels"]) - set(spine.names)
    require(not absent, f"budget at geolevels that the spine does not have: {', '.join(sorted(absent))}.")
    spine.check_paths(levels)
    require(
        dict(run["geounits"]) == {level.name: len(level) for level in spine.levels},
        "the numbers of geounits differ from those of the spine.",
    )
    zcdp = run["mechanism"] != Mechanism.DISCRETE_LAPLACE
    bounded = run["neighbours"] == Neighbours.BOUNDED
    stated: Counter[tuple[str, str, Fraction]] = Counter()
    for row in run["rows"]:
        where = f"{row['geolevel']}, {row['query']}"
        loss = parse_fraction(row["rho"] if zcdp else row["epsilon"], where)
        stated[row["geolevel"], row["query"], loss] += int(row["geounits"])
        # Written out, not taken from the accountant: squared L2 (L1) distance of neighbours is 2 or 1, and
        # more where they differ in the records of a unit that has several.
        distance = (2 if bounded else 1) * _of_a_unit(run, product, row["geolevel"], row["query"])
        parameter = Fraction(distance) / (2 * loss) if zcdp else Fraction(distance) / loss
        noise = noise_of(Mechanism(run["mechanism"]), parameter)
        stated_parameter = row["sigma2"] if zcdp else row["scale"]
        require(
            math.isclose(float(stated_parameter), float(parameter), rel_tol=1e-12),
            f"{where}: the noise parameter does not match its loss.",
        )
        require(
            math.isclose(row["variance"], noise.variance, rel_tol=1e-9)
            and row["moe90"] == noise.margin(_CONFIDENCE),
            f"{where}: the variance or margin of error does not match the noise.",
        )
    require(
        stated == _expected_rows(run, spine), "a noise row is not the product of its shares and the total."
    )
    return f"{plural('noise row', len(run['rows']))}, each the exact product of its shares"


def certified_plan(run: Run, released: ReleasedProduct) -> MeasurementPlan:
    """Rebuild the measurement plan from the certificate, the spine and the product declaration."""
    levels = {name: parse_fraction(share, name) for name, share in run["budget"]["geolevels"].items()}
    queries = {
        level: {query: parse_fraction(share, query) for query, share in shares.items()}
        for level, shares in run["budget"]["queries"].items()
    }
    ordered = {name: levels[name] for name in released.spine.names if name in levels}
    declared = run.get("contribution")
    bound = None if declared is None else ContributionBound.from_dict(declared)
    budget = Budget(
        Mechanism(run["mechanism"]),
        Neighbours(run["neighbours"]),
        _total(run),
        ordered,
        queries,
        contribution=Contribution.of(bound, released.product, released.spine.names[-1]),
    )
    return MeasurementPlan(released.product, released.spine, budget)


def _same_shares(stated: Mapping[str, Any], certified: Mapping[str, str]) -> bool:
    left = {name: Fraction(share) for name, share in stated.items() if Fraction(share)}
    return left == {name: Fraction(share) for name, share in certified.items() if Fraction(share)}


def _same_contribution(stated: Mapping[str, Any], certified: Mapping[str, Any] | None) -> bool:
    keys = ("unit_id", "at_most", "distinct")
    return all(stated.get(key) == (certified or {}).get(key) for key in keys)


def check_plan(run: Run, released: ReleasedProduct) -> str:
    """Check the digests of plan and spine, and the released run file, against the certificate."""
    require(released.spine.digest() == run["spine_digest"], "the spine is not the certified one.")
    plan = certified_plan(run, released)
    require(plan.digest() == run["plan_digest"], "the measurement plan is not the certified one.")
    path = released.release / "run" / f"{run['product']}.toml"
    _check_run_file(path, run)
    return f"plan {run['plan_digest'][:16]}"


def _check_run_file(path: Path, run: Run) -> None:
    require(path.is_file(), f"run/{path.name} is missing.")
    try:
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CheckFailed(f"run/{path.name} is not valid TOML.") from error
    try:
        budget = stated["budget"]
        key = Mechanism(run["mechanism"]).loss_name
        agree = (
            Fraction(budget[key]) == _total(run)
            and stated["run"]["mechanism"] == run["mechanism"]
            and stated["run"]["neighbours"] == run["neighbours"]
            and budget.get("source") == run["budget"].get("source")
            and _same_contribution(stated.get("input", {}), run.get("contribution"))
            and _same_shares(budget["geolevels"], run["budget"]["geolevels"])
            and all(
                _same_shares(budget["queries"][level], shares)
                for level, shares in run["budget"]["queries"].items()
            )
        )
    except (KeyError, ConfigError) as error:
        raise CheckFailed(f"run/{path.name}: an entry of the budget is missing.") from error
    require(agree, f"run/{path.name}: its budget differs from the certificate's.")


def certified_map(run: Run, released: ReleasedProduct) -> ProtectionMap:
    """Recompute the protection map from the plan, the frame and the constraints on file."""
    return ProtectionMap.of(certified_plan(run, released), released.frame, released.constraint_table)


def check_losses(run: Run, held: ProtectionMap) -> str:
    """Recompute the losses by attribute and within geounits from plan, spine and exact facts."""
    key = _loss_key(run)
    for name, found in (
        ("attributes", attribute_losses(held.plan, held)),
        ("within", within_losses(held.plan, held)),
    ):
        stated = {part: parse_fraction(loss[key], part) for part, loss in run[name].items()}
        wrong = sorted(part for part in stated.keys() | found if stated.get(part) != found.get(part))
        what = "of attribute" if name == "attributes" else "within one"
        require(not wrong, f"the loss {what} {', '.join(wrong)} is not that of the budget.")
    shares = [Fraction(run["budget"]["geolevels"].get(level, "0")) for level in held.plan.spine.names]
    _check_units(run, held.plan.product, shares, held.plan.spine.path_kinds(), key)
    return f"{plural('attribute', len(run['attributes']))}, {plural('geolevel', len(run['within']))}"


def check_official(run: Run, held: ProtectionMap, released: ReleasedProduct) -> str:
    """Recompute the losses within official geounits and areas from spine, shares, frame and exact facts."""
    stated = {AreaLoss.from_dict(kind, row) for kind, row in run["within_official"].items()}
    key = _loss_key(run)
    within = {level: parse_fraction(loss[key], level) for level, loss in run["within"].items()}
    found = official_losses(held.plan, released.frame, held, within)
    wrong = sorted({row.kind for row in stated ^ set(found)})
    require(not wrong, f"the loss within one official {', '.join(wrong)} is not that of the spine.")
    return f"{plural('kind', len(found))} of areas"


def _check_units(
    run: Run, product: Product, shares: Sequence[Fraction], paths: Sequence[Sequence[Fraction]], key: str
) -> None:
    """Check the loss of several units together, and of one record of a unit, against the total."""
    total, zcdp = _total(run), run["mechanism"] != Mechanism.DISCRETE_LAPLACE
    for number, loss in run.get("several", {}).items():
        times = int(number) ** 2 if zcdp else int(number)
        agree = parse_fraction(loss[key], number) == times * total
        require(agree, f"the loss of {number} units together is not that of the budget.")
    declared = run.get("contribution")
    if declared is None:
        return
    most = int(declared["at_most"])
    moved = min(most, 1 if declared["distinct"] is None else 2)
    parts = []
    for level, share in zip(run["geolevels"], shares, strict=True):
        spent = Fraction(0)
        for query, part in run["budget"]["queries"].get(level, {}).items():
            unit = _of_a_unit(run, product, level, query)
            squared = moved * min(moved, unit // most) if zcdp else moved
            spent += Fraction(part) * Fraction(squared, unit)
        parts.append(share * spent)
    worst = max(sum(map(mul, path, parts), start=Fraction(0)) for path in paths)
    both = 2 if run["neighbours"] == Neighbours.UNBOUNDED else 1
    stated = parse_fraction(declared["one_record"][key], "one record")
    require(stated == both * total * worst, "the loss of one record of a unit is not that of the budget.")


def check_totals(certificate: Mapping[str, Any]) -> str:
    """Check that every total is the exact sum of the runs it covers; a seeded run makes it unbounded."""
    for total in certificate["totals"]:
        change = total["change"]
        pure = "pure_epsilon" in total
        covered = Fraction(0)
        bounded = True
        found: dict[tuple[str, str], tuple[Fraction, Fraction]] = {}
        for run in certificate["runs"]:
            times = _times(change, run["protected_unit"])
            if times == 0 or run["neighbours"] != total["neighbours"]:
                continue
            covered += _in_total(times * _total(run), run["mechanism"], pure=pure)
            if times == 1 and run.get("domain"):
                for act in Domain.from_dict(run["domain"]).discoveries:
                    loss = act.loss(Neighbours(total["neighbours"]))
                    found[unit_id(run["protected_unit"]), act.act] = (loss, act.delta)
            bounded = bounded and "NOT FOR RELEASE" not in run["stamps"]
        tied = 0
        for earlier in _tied_acts(certificate):
            times = _times(change, earlier.protected_unit)
            if times == 0 or earlier.neighbours != total["neighbours"]:
                continue
            bounded = bounded and earlier.loss is not None
            loss = earlier.loss or Fraction(0)
            if not earlier.delta:
                tied += 1
                covered += _in_total(times * loss, earlier.mechanism, pure=pure)
            elif times == 1:
                found[unit_id(earlier.protected_unit), earlier.act] = (loss, earlier.delta)
        require(total.get("tied", 0) == tied, f"total for {change}: it omits an earlier release.")
        if total["unbounded"]:
            require(
                not bounded,
                f"total for {change}: it is stated as unbounded, but every run has a finite loss.",
            )
            continue
        require(
            bounded,
            f"total for {change}: stated as finite, but a run not for release has no finite loss.",
        )
        key = "pure_epsilon" if pure else "rho"
        covered += sum((loss for loss, _ in found.values()), Fraction(0))
        delta = sum((delta for _, delta in found.values()), Fraction(0))
        require(
            parse_fraction(total.get("discovery_delta", "0"), change) == delta,
            f"total for {change}: its delta omits a discovery.",
        )
        require(
            parse_fraction(total[key], change) == covered, f"total for {change}: not the sum of the runs."
        )
    return plural("total", len(certificate["totals"]))


def _in_total(loss: Fraction, mechanism: str, *, pure: bool) -> Fraction:
    """Return what a loss adds to a total; epsilon adds ``epsilon**2 / 2`` to a total in rho."""
    return loss**2 / 2 if mechanism == Mechanism.DISCRETE_LAPLACE and not pure else loss


def _tied_acts(certificate: Mapping[str, Any]) -> list[EarlierAct]:
    """Return losses of the earlier releases that runs are tied to, each act once, without this release's."""
    folders: dict[str, dict[str, str]] = {}
    for file in certificate["files"]:
        top = str(Path(*Path(file["path"]).parts[:2]))
        folders.setdefault(top, {})[file["path"]] = file["sha256"]
    here = {digest_of_files(files) for files in folders.values()}
    acts = [EarlierAct.from_dict(act) for run in certificate["runs"] for act in run.get("tied", ())]
    return list({act.act: act for act in acts if act.act not in here}.values())


def check_account(certificate: Mapping[str, Any]) -> str:
    """Check the account section against itself and the runs; a release does not contain the ledger."""
    account = AccountFacts.from_dict(certificate["account"])
    tied = any(run.get("tied") for run in certificate["runs"])
    require(
        certificate["scope"] == account_text(account, tied=tied),
        "the text about the account does not follow from its numbers.",
    )
    products = {run["product"] for run in certificate["runs"] if not run.get("published")}
    acts = set(account.places.values())
    known = set(account.places) == products and acts <= set(range(1, account.acts + 1))
    require(known and len(acts) == len(products), "the acts do not match the products of this release.")
    counted = [account.acts, account.readings, *account.places.values()]
    require(all(type(n) is int and n >= 0 for n in counted), "a count is negative or not an integer.")
    said = f"{plural('act', account.acts)}, {plural('reading', account.readings)} of the data"
    if not account.book:
        own = AccountFacts(False, account.acts, account.places, account.readings)
        require(account == own, "an account without a book has entries that only a book has.")
        return f"the folder's own, {said}"
    change = change_of(account.unit or "")
    units = {unit_id(run["protected_unit"]) for run in certificate["runs"]}
    require(
        account.change == change.name and all(change.factors.get(unit) for unit in units),
        "the protected unit of the book differs from that of the runs.",
    )
    require(account.relation in list(Neighbours), "the neighbour relation is unknown.")
    require(
        re.fullmatch("[0-9a-f]{64}", account.head or "") is not None,
        "the head of the book is not 64 hexadecimal digits.",
    )
    spent, limit = account.spent or Fraction(0), parse_fraction(account.limit["rho"], "limit")
    require(spent <= limit, "the book has spent more than its limit.")
    for total in certificate["totals"]:
        same = total["change"] in (account.change, f"one {account.unit} record")
        same = same and not total.get("tied")  # an earlier release may have another account
        if same and total["neighbours"] == account.relation and total["rho"] is not None:
            least = parse_fraction(total["rho"], "rho")
            require(least <= spent, "the book records less than the runs of this release spent.")
    return f"a book, {said}"


def _times(change: str, unit: str) -> int:
    """Return how often a change counts the loss of one record of a unit (docs/proofs/composition.md, 5)."""
    if change in (f"one {unit} record", f"one {unit}"):
        return 1
    if change.startswith("one person with the unit changes"):
        return {"person": 1, "housing unit": 2, "housing unit or group quarters": 4}.get(unit, 0)
    if change.startswith("one housing unit or group quarters") and unit == "housing unit":
        return 1
    return int(change == "one record, whatever a run calls it")


_GEOUNITS = 1 << 12


def check_measurements(run: Mapping[str, Any], released: ReleasedProduct, stop: Event) -> str:
    """Check the measurement file of every budgeted geolevel: geounits, query groups, variances and shapes."""
    plan = certified_plan(run, released)
    stored = run["measurements"]
    require(stored in ("used", "full"), f"measurements {stored!r}: expected used or full.")
    present = {path.stem for path in released.measurements.glob("*.parquet")} - {
        "spine",
        "constraints",
        "tie",
        "prior",
    }
    budgeted = {level.geolevel for level in plan.levels if level.queries}
    require(present == budgeted, "the measurement files are not those of the geolevels with a budget.")
    values = 0
    for number, level in enumerate(plan.levels):
        if level.queries:
            file = MeasurementFile(released.measurements / f"{level.geolevel}.parquet")
            wanted = measurement_metadata(plan, number, stored=stored)
            require(
                _without_invariants(file.metadata) == _without_invariants(wanted),
                f"{level.geolevel}: the metadata differ from those of the certified plan.",
            )
            file.check_words()
            values += _check_rows(file, plan, number, stop, full=stored == "full")
    return f"{plural('file', len(budgeted))} with {plural('noisy answer', values)}, {stored}"


def _without_invariants(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Drop metadata outside the plan: another check covers the declared constraints."""
    dropped = ("invariants", "bounds")
    product = {key: value for key, value in metadata["product"].items() if key not in dropped}
    return {**metadata, "product": product}


def _check_rows(file: MeasurementFile, plan: MeasurementPlan, number: int, stop: Event, *, full: bool) -> int:
    spine = plan.spine
    level = spine.levels[number]
    multiples, which = spine.multiples(number)
    keep = np.array([multiple > 0 for multiple in multiples])[which]
    require(
        np.array_equal(file.geocodes, level.geocodes[keep]),
        f"{level.name}: the geounits differ from those of the spine.",
    )
    which = which[keep]
    values = 0
    for start in range(0, len(file), _GEOUNITS):
        end = min(start + _GEOUNITS, len(file))
        require(not stop.is_set(), "interrupted.")
        answers = file.read(start, end)
        for planned in plan.levels[number].queries:
            each = [plan.distribution(number, planned, m).variance if m else 0.0 for m in multiples]
            wanted = np.array(each)[which[start:end]]
            found = answers[planned.query.name]
            where = f"{level.name}, {planned.query.name}"
            require(
                bool(np.allclose(found.variance, wanted, rtol=1e-9, atol=0)),
                f"{where}: a variance differs from the plan's.",
            )
            if full:
                lengths = np.diff(found.offsets)
                complete = found.cells is None and bool(np.all(lengths == planned.query.size))
                require(complete, f"{where}: answers are missing.")
            elif found.cells is not None and len(found.cells):
                inside = found.cells.min() >= 0 and found.cells.max() < planned.query.size
                require(bool(inside), f"{where}: an answer belongs to no row of the query group.")
            values += len(found.values)
    return values
