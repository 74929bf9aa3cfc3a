"""Parts from other packages: what is found by its entry point, and what is said of where it comes from.

A package that declares an entry point of one of :data:`GROUPS` offers a part. It is loaded when a run names
it, and never else: that a package is installed changes no run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points
from typing import Any, Self

from opendas.errors import ConfigError, nearest

__all__ = [
    "ESTIMATORS",
    "GROUPS",
    "MECHANISMS",
    "WORKLOADS",
    "Origin",
    "names_of_parts",
    "origin_of",
    "outside_part",
]

ESTIMATORS = "opendas.estimators"
MECHANISMS = "opendas.mechanisms"
WORKLOADS = "opendas.workloads"
GROUPS = (ESTIMATORS, MECHANISMS, WORKLOADS)
"""Groups of entry points; our own parts are declared in them, too."""

OURS = "opendas"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a part of another package comes from, as the certificate says it.

    Parameters
    ----------
    kind : str
        Its group.
    name : str
    package, version : str
        The distribution that holds it, as it is installed; both empty for an object of a program.
    proof : str
        Where the argument stands that it keeps the guarantee, in words of the package; empty where it says
        nothing.
    """

    kind: str
    name: str
    package: str = ""
    version: str = ""
    proof: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(**{each.name: str(record[each.name]) for each in fields(cls)})

    def __str__(self) -> str:
        """Return the part in words."""
        argument = f"its argument: {self.proof}" if self.proof else "without an argument for the guarantee"
        return f"{self.name} of the package {self.package} {self.version}, {argument}"


def _offered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of other packages in a group, by name."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda each: (each.name, each.value)):
        package = _package(point)
        if package == OURS:
            continue
        other = found.setdefault(point.name, point)
        if other.value != point.value or _package(other) != package:
            raise ConfigError(
                f"two packages offer {point.name!r} in {group}: {_package(other)} and {package}. Uninstall "
                "one of them."
            )
    return found


def _package(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name


def names_of_parts(group: str, own: Collection[str]) -> tuple[str, ...]:
    """Return the names of what other packages offer in a group beside our own; none of them is loaded."""
    return tuple(name for name in _offered(group) if name not in own)


def outside_part(group: str, name: str, own: Collection[str]) -> tuple[Any, Origin]:
    """Load a part of another package.

    Parameters
    ----------
    group : str
        One of :data:`GROUPS`.
    name : str
    own : collection of str
        Names of our own parts.

    Returns
    -------
    part, Origin
        What the entry point names; a class is called without arguments.

    Raises
    ------
    ConfigError
        If no installed package offers it, or it cannot be loaded.
    """
    offered = _offered(group)
    if name not in offered:
        raise ConfigError(
            f"there is no {group.removeprefix('opendas.').removesuffix('s')} {name!r}; "
            f"{nearest(name, (*own, *names_of_parts(group, own)))} Other packages add their own by entry "
            f"points in {group}."
        )
    point = offered[name]
    try:
        part = point.load()
        part = part() if isinstance(part, type) else part
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{group}: {name!r} of the package {_package(point)} cannot be loaded: {type(error).__name__}: "
            f"{error}."
        ) from error
    return part, origin_of(group, name, part, point)


def origin_of(group: str, name: str, part: Any, point: EntryPoint | None = None) -> Origin:
    """Say where a part comes from; one without an entry point is an object of a program."""
    proof = getattr(part, "proof", "") or ""
    if not isinstance(proof, str) or any(not each.isprintable() for each in proof):
        raise ConfigError(
            f"{group}: {name!r}: proof must be one line of text, such as an address or a citation."
        )
    package = "" if point is None else _package(point)
    try:
        version = "" if point is None or point.dist is None else point.dist.version
    except PackageNotFoundError:
        version = ""
    return Origin(group, name, package, version, proof.strip())
