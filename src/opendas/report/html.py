"""``report.html``: the release explained to a person, in one file without any request to elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from opendas.privacy.attacker import zcdp_power_bound
from opendas.report import views
from opendas.report.facts import RunFacts
from opendas.report.guarantee import STAMP_MEANING, guarantee_paragraphs, limits
from opendas.report.pictures import (
    POWER_LEVELS,
    curve_svg,
    distances_svg,
    levels_svg,
    margin_bars,
    power_svg,
    share_bar,
)
from opendas.report.spine_views import ENTITY_HEAD, LEVEL_HEAD, entity_rows, level_rows, spine_sentence

__all__ = ["environment", "report_html", "templates"]

_FALSE_ALARMS = (0.001, 0.01, 0.05)
_TABLE_EXPONENTS = (5, 6, 8, 10, 12, 15)


def templates(package: str, *, keep_trailing_newline: bool = False) -> Environment:
    """Return the templates of a package, everything escaped, with the words and numbers of all pages."""
    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=keep_trailing_newline,
        undefined=StrictUndefined,
    )
    environment.filters.update(
        words=views.words, query_words=views.query_words, percent=views.percent, decimal=views.decimal
    )
    return environment


def environment() -> Environment:
    """Return the templates of the report's pages."""
    environment = templates("opendas.report", keep_trailing_newline=True)
    environment.filters.update(
        invariant_words=views.invariant_words,
        loss_words=views.loss_words,
        margin_words=views.margin_words,
        plural=views.plural,
    )
    return environment


def _exact(loss: Mapping[str, Any]) -> str:
    return loss["rho"] or loss.get("pure_epsilon") or "unbounded"


def _shown_exact(loss: Mapping[str, Any]) -> str:
    exact = _exact(loss)
    return exact if len(exact) <= 34 else f"about {views.decimal(Fraction(exact), 8)}"


def _power_rows(run: RunFacts) -> list[tuple[str, str]]:
    """Bound, for false-alarm rates, how often the best test recognises a true claim."""
    if run.pure or run.loss is None or not run.guaranteed:
        return []
    bounds = [(alpha, zcdp_power_bound(run.loss, alpha)) for alpha in _FALSE_ALARMS]
    return [(f"{alpha * 100:g} %", f"{min(power, 1.0) * 100:.1f} %") for alpha, power in bounds]


def _power_picture(run: RunFacts) -> str:
    """Draw the bound of :func:`_power_rows` at every rate."""
    if run.pure or run.loss is None or not run.guaranteed:
        return ""
    bounds = [min(zcdp_power_bound(run.loss, level), 1.0) for level in POWER_LEVELS]
    return power_svg(POWER_LEVELS, {"at most": bounds})


def _new_paragraphs(run: RunFacts, said: set[str]) -> list[str]:
    """Return the guarantee without what stamps and earlier runs already said."""
    stamped = tuple(f"{stamp}. " for stamp in STAMP_MEANING)
    texts = [text for text in guarantee_paragraphs(run) if text not in said and not text.startswith(stamped)]
    said.update(texts)
    return texts


def _spine_view(run: RunFacts) -> dict[str, Any] | None:
    """Return what the report shows of the spine; None where the certificate does not describe it."""
    spine = run.spine
    if spine is None:
        return None
    return {
        "sentence": spine_sentence(spine),
        "levels": level_rows(spine.levels),
        "levels_picture": levels_svg(spine.levels),
        "regrouped": any(not level.official for level in spine.levels),
        "entities": entity_rows(spine.entities),
        "distances_picture": distances_svg(spine.entities) if spine.entities else "",
    }


def _run_view(run: RunFacts, said: set[str]) -> dict[str, Any]:
    margins = views.total_margins(run)
    points = views.curve(run)
    table = [point for point in points if point.delta in {Fraction(1, 10**e) for e in _TABLE_EXPONENTS}]
    record: dict[str, Any] = run.to_dict()
    partial = [
        (title, first, [(name, _shown_exact(loss), loss["epsilon"]) for name, loss in record[key].items()])
        for title, first, key in (
            ("One attribute of a record changes, all else equal", "Attribute", "attributes"),
            ("A record moves within one geounit of the spine, all else equal", "Within one", "within"),
        )
    ]
    return {
        "facts": run,
        "record": record,
        "levels": list(run.geolevel_shares),
        "matrix": views.share_matrix(run),
        "margins": margins,
        "margin_bars": margin_bars(margins) if any(entry.margin for entry in margins) else "",
        "share_bar": share_bar(run.geolevel_shares),
        "curve": curve_svg(points, float(run.delta)) if points else "",
        "points": table,
        "partial": partial,
        "power": _power_rows(run),
        "power_picture": _power_picture(run),
        "guarantee": _new_paragraphs(run, said),
        "spine": _spine_view(run),
    }


def report_html(certificate: Mapping[str, Any], runs: Sequence[RunFacts], digest: str) -> bytes:
    """Write the report.

    Parameters
    ----------
    certificate : mapping
        Content of ``certificate.json``.
    runs : sequence of RunFacts
        Its runs.
    digest : str
        SHA-256 of ``certificate.json``.

    Returns
    -------
    bytes
        UTF-8; the same for the same content.
    """
    said: set[str] = set()
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            certificate=certificate,
            runs=[_run_view(run, said) for run in runs],
            totals=[(total, _exact(total)) for total in certificate["totals"]],
            stamps=[(stamp, STAMP_MEANING.get(stamp, "")) for stamp in certificate["stamps"]],
            limits=limits(),
            groups=views.file_groups(certificate["files"]),
            interval_tables=[
                file["path"]
                for file in certificate["files"]
                if file["path"].startswith("tables/") and "_intervals." in file["path"]
            ],
            digest=digest,
            level_head=LEVEL_HEAD,
            entity_head=ENTITY_HEAD,
        )
    )
    return page.encode()
