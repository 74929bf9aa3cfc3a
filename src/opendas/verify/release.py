"""``opendas verify``: check that a release is complete, fits its certificate and obeys its constraints.

Every check computes its facts again from the files under ``release/``; none opens the input or a key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from opendas.custody.stamps import DEMONSTRATION_FRAME, DOMAIN_FROM_RECORDS, NOT_FOR_RELEASE
from opendas.errors import CheckFailed, ConfigError
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder, release_path
from opendas.files.replicate_files import REPLICATES, ReplicateFile, counts_digest
from opendas.geography.summary import SpineSummary, summarise
from opendas.report.views import plural
from opendas.schema.provenance import Domain, Provenance
from opendas.verify.budget import (
    certified_map,
    check_account,
    check_budget,
    check_losses,
    check_measurements,
    check_official,
    check_plan,
    check_rows,
    check_totals,
)
from opendas.verify.check import BackgroundCheck, Check, first_few, require, run_check
from opendas.verify.files import (
    check_columns,
    check_digests,
    check_issued,
    check_listing,
    check_machine,
    check_published,
    machine_names,
    read_certificate,
)
from opendas.verify.microdata import (
    Microdata,
    check_bounds,
    check_constraints,
    check_frame,
    check_quarters,
    check_records,
    check_tie,
)

__all__ = ["Check", "check_domain", "check_spine", "estimated", "verify_release"]


def verify_release(
    path: Path, *, allow_seeded: bool = False, allow_domain_from_records: bool = False
) -> tuple[Check, ...]:
    """Verify a release and return the outcome of every check.

    - `path`: the output folder, or ``release/`` in it.
    - `allow_seeded`: accept a run that is stamped NOT FOR RELEASE.
    - `allow_domain_from_records`: accept a run that is stamped DOMAIN FROM RECORDS.
    - Returns: in a fixed order; the release passes if all are ok.

    Raises `ConfigError` if there is no release at `path`.
    """
    release = release_path(path)
    first = run_check("certificate", lambda: _certificate(release))
    if not first.ok:
        return (first,)
    certificate = read_certificate(release)
    allowed = {NOT_FOR_RELEASE: allow_seeded, DOMAIN_FROM_RECORDS: allow_domain_from_records}
    listed = certificate["files"]
    checks = [
        first,
        run_check("files", lambda: check_listing(release, listed)),
        run_check("digests", lambda: check_digests(release, listed)),
        run_check("documents", lambda: check_issued(release)),
        run_check("machine", lambda: check_machine(release, machine_names())),
        run_check("stamps", lambda: _stamps(certificate, allowed)),
        run_check("totals", lambda: check_totals(certificate)),
        run_check("account", lambda: check_account(certificate)),
    ]
    try:
        folder = ReleaseFolder(release)
    except ConfigError as error:
        return (*checks, Check("products", False, str(error)))
    checks.append(run_check("products", lambda: _products(certificate, folder)))
    checks.append(run_check("columns", lambda: check_columns(certificate, folder)))
    for run in certificate["runs"]:
        if run["product"] in folder:
            checks += _run_checks(run, folder[run["product"]])
    checks.append(run_check("tables", lambda: _tables(folder)))
    checks.append(run_check("replicates", lambda: _replicates(folder)))
    return tuple(checks)


def _tables(release: ReleaseFolder) -> str:
    folder = release.path / "tables"
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    wrong = []
    if files:
        # Imported here: tables import all of least squares, and a new release has no tables.
        from opendas.verify.tables import same_table

        wrong = [path.relative_to(folder).as_posix() for path in files if not same_table(release, path)]
    require(not wrong, f"tables that do not follow from microdata and replicates: {first_few(wrong)}.")
    return f"{plural('table', len(files))}, equal to counts of the microdata"


def _replicates(release: ReleaseFolder) -> str:
    """Check that replicates belong to the current released counts."""
    files = [ReplicateFile(path) for path in sorted((release.path / REPLICATES).glob("*"))]
    for file in files:
        about = file.about
        require(file.path.stem == about.product, f"{file.path.name} holds replicates of {about.product}.")
        require(
            about.product in release and about.counts == counts_digest(release[about.product].estimate),
            f"{file.path.name}: its replicates start from other counts than the released ones.",
        )
    return ", ".join(f"{file.about.runs} of {file.about.product}" for file in files) or "none"


def _certificate(release: Path) -> str:
    certificate = read_certificate(release)
    for run in certificate["runs"]:
        known = "estimator" in run and isinstance(run.get("declared"), list)
        require(
            known, f"the certificate does not say how {run['product']} was estimated or what was declared."
        )
    return f"version {certificate['version']}, {first_few(run['product'] for run in certificate['runs'])}"


_BARRED = {
    NOT_FOR_RELEASE: (
        "its noise can be recomputed, or there is none. Pass --allow-seeded to check a test release"
    ),
    DOMAIN_FROM_RECORDS: (
        "it publishes what was read from the records. Give their public list, or find them privately with "
        "opendas init table --rho; --allow-domain-from-records accepts the release as it is"
    ),
}
"""Stamps that fail the check unless the caller accepts them, and the advice for each."""


def _stamps(certificate: Mapping[str, Any], allowed: Mapping[str, bool]) -> str:
    stamps = [(run["product"], stamp) for run in certificate["runs"] for stamp in run["stamps"]]
    said = []
    for barred, advice in _BARRED.items():
        products = [product for product, stamp in stamps if stamp == barred]
        if products and not allowed[barred]:
            be = "is" if len(products) == 1 else "are"
            said.append(f"{first_few(products)} {be} stamped {barred}: {advice}.")
    if said:
        raise CheckFailed(" ".join(said))
    return first_few(dict.fromkeys(stamp for _, stamp in stamps)) or "none"


def _products(certificate: Mapping[str, Any], folder: ReleaseFolder) -> str:
    certified = {run["product"] for run in certificate["runs"]}
    require(certified == set(folder.names), "the products on file differ from the certificate's.")
    return first_few(folder.names)


def _run_checks(run: Mapping[str, Any], released: ReleasedProduct) -> Iterator[Check]:
    data = Microdata(released)
    if run.get("published"):
        yield run_check(f"{run['product']}: published files", partial(check_published, run, released))
    held = cache(partial(certified_map, run, released))
    steps: dict[str, Callable[[], str]] = {
        "budget": partial(check_budget, run),
        "geography": partial(check_frame, released),
        "spine": partial(check_spine, run, released),
        "noise": lambda: check_rows(run, released),
        "plan": partial(check_plan, run, released),
        "partial losses": lambda: check_losses(run, held()),
        "losses within official areas": lambda: check_official(run, held(), released),
        "domain": partial(check_domain, run, released),
    }
    later: dict[str, Callable[[], str]] = {"declared constraints": partial(check_bounds, run, released)}
    if estimated(run):
        later |= {"microdata": partial(check_records, run, data)}
        later |= {"constraints": partial(check_constraints, run, data)}
        later |= {"units and people": partial(check_quarters, data)}
        if any(str(line).startswith("tie:") for line in run["declared"]):
            later |= {"tie": partial(check_tie, data)}
    else:
        later |= {"microdata": partial(_no_microdata, released)}
    product = run["product"]
    yield from (run_check(f"{product}: {name}", step) for name, step in steps.items())
    # Measurements take as long as all checks below, and are independent of them.
    with BackgroundCheck(
        f"{product}: measurements", partial(check_measurements, run, released)
    ) as measurements:
        rest = [run_check(f"{product}: {name}", step) for name, step in later.items()]
        yield measurements.outcome()
    yield from rest


def estimated(run: Mapping[str, Any]) -> bool:
    """Whether a certified run estimated microdata."""
    return not str(run["estimator"]).startswith("none")


def _no_microdata(released: ReleasedProduct) -> str:
    require(not released.mdf.exists(), "the product was only measured, but it has microdata.")
    return "none: measurements only"


def check_domain(run: Mapping[str, Any], released: ReleasedProduct) -> str:
    """Check that every part of the domain has the run file's provenance and the stamp it needs."""
    require(run.get("domain") is not None, "the certificate does not say where the domain comes from.")
    domain = Domain.from_dict(run["domain"])
    require(
        set(domain.labels) == set(released.product.schema.names),
        "the certificate does not say of every attribute where its labels come from.",
    )
    path = released.release / "run" / f"{run['product']}.toml"
    require(path.is_file(), f"run/{path.name} is missing.")
    stated = tomllib.loads(path.read_text(encoding="utf-8"))
    require(
        Domain.from_dict(stated.get("domain", {})) == domain,
        f"run/{path.name}: its provenance is not the certified one.",
    )
    private = domain.parts(Provenance.PRIVATE)
    require(bool(private) == bool(domain.discoveries), "private parts do not match the acts that found them.")
    stamped = {DEMONSTRATION_FRAME, DOMAIN_FROM_RECORDS} & set(run["stamps"])
    # A census publishes the unit counts of its own records, and its certificate says so without a stamp.
    public = Provenance.PUBLIC if stated["input"]["reader"] == "cef" else domain.units
    unlisted = replace(domain, units=public).from_records
    require(
        not unlisted or bool(stamped),
        f"{first_few(unlisted)}: read from the records, but without the stamp {DOMAIN_FROM_RECORDS}.",
    )
    return "; ".join(
        f"{each.value}: {first_few(parts)}" for each in Provenance if (parts := domain.parts(each))
    )


def check_spine(run: Mapping[str, Any], released: ReleasedProduct) -> str:
    """Check geounits, children and distances of entity categories against the certificate."""
    stated = run.get("spine")
    if stated is None:
        return "not described: certified by an earlier version"
    certified = SpineSummary.from_dict(stated)
    found = summarise(released.spine, released.frame)
    require(
        [level.geolevel for level in certified.levels] == list(released.spine.names),
        "the certified levels differ from those of the spine.",
    )
    for level, certified_level in zip(found.levels, certified.levels, strict=True):
        require(level == certified_level, f"level {level.geolevel!r} is not as certified.")
    categories = [entity.category for entity in found.entities]
    require(
        [entity.category for entity in certified.entities] == categories,
        "the certified entity categories differ from those of the frame.",
    )
    for entity, certified_entity in zip(found.entities, certified.entities, strict=True):
        require(entity == certified_entity, f"the distances of {entity.category!r} are not as certified.")
    return (
        f"{plural('geolevel', len(found.levels))}, distances of {plural('entity category', len(categories))}"
    )
