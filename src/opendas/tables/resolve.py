"""Finding what the name of a table, query group or geolevel stands for."""

from __future__ import annotations

import re
from difflib import get_close_matches

from opendas.errors import ConfigError
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.geography.frame import Frame
from opendas.tables.cells import PL94_TABLES

__all__ = ["find_query", "nearest_geolevel"]

_UNIT_QUERY = re.compile(r"(?P<product>[^:]+):(?P<query>.+)")


def find_query(release: ReleaseFolder, name: str) -> tuple[ReleasedProduct, str, bool]:
    """Resolve a query group written ``QUERY`` or ``PRODUCT:QUERY``.

    Returns
    -------
    (ReleasedProduct, str, bool)
        Its product, its canonical name, and whether the product was named.
    """
    named = _UNIT_QUERY.fullmatch(name)
    candidates = release.names
    explicit = named is not None and named["product"] in release
    if named is not None and explicit:
        candidates, name = (named["product"],), named["query"]
    found: list[tuple[ReleasedProduct, str]] = []
    for product in candidates:
        try:
            found.append((release[product], release[product].product.workload.canonical(name)))
        except ConfigError:
            if len(candidates) == 1:
                raise
    if not found:
        raise ConfigError(
            f"no table or query group {name!r}; tables are {', '.join(PL94_TABLES)}, query groups are "
            f"attributes and recodes of {', '.join(release.names)} joined with ' * '."
        )
    if len(found) > 1:
        products = ", ".join(f"{released.name}:{name}" for released, _ in found)
        raise ConfigError(f"query group {name!r} belongs to several products; write one of {products}.")
    return (*found[0], explicit)


def nearest_geolevel(frame: Frame, geolevel: str) -> None:
    """Check that a frame has a geolevel or entity category.

    Raises
    ------
    ConfigError
        Naming the nearest one, if it has not.
    """
    known = (*frame.geolevels, *frame.entities)
    if geolevel not in known:
        near = get_close_matches(geolevel, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"this release has {', '.join(known)}."
        raise ConfigError(f"no geolevel or entity category {geolevel!r}; {hint}")
