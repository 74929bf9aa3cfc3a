"""Where the parts of a domain come from: labels, levels, frame and units.

A mechanism protects counts over a domain. Whatever of the domain itself was read from the records is
published exactly: a label that one record bears shows that the record is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Self

from opendas.errors import FormatError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Neighbours


class Provenance(StrEnum):
    """Where a part of the domain comes from."""

    CODE_BOOK = "code-book"
    """Laid down before anybody was counted: a classification, a questionnaire."""
    PUBLIC = "public"
    """Known to everybody from elsewhere: a list of hospitals, a map."""
    PRIVATE = "private"
    """Found in the records under a budget of its own, which an account holds."""
    FROM_RECORDS = "from-records"
    """Read from the records. Published exactly, and not protected."""


PROVENANCE_WORDS = ", ".join(f'"{each.value}"' for each in Provenance)
"""The choices, as an error names them."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """An act of private domain discovery, as the files that came out of it carry it."""

    act: str  # names the act, at random, so that files of the same act are charged once
    # rho, delta: it is delta-approximately rho-zCDP where one record is replaced; where one is added or
    # removed, the same delta goes with half of rho (``docs/proofs/domain-discovery.md``).
    rho: Fraction
    delta: Fraction

    def loss(self, neighbours: Neighbours) -> Fraction:
        """Return rho under a relation."""
        return self.rho if neighbours is Neighbours.BOUNDED else self.rho / 2

    def to_dict(self) -> dict[str, str]:
        """Plain values, exact."""
        return {"act": self.act, "rho": format_fraction(self.rho), "delta": format_fraction(self.delta)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(
            str(record["act"]),
            parse_fraction(record["rho"], "rho"),
            parse_fraction(record["delta"], "delta"),
        )


@dataclass(frozen=True, slots=True)
class Domain:
    """Where every part of a run's domain comes from."""

    labels: Mapping[str, Provenance]  # attribute -> Provenance: in alphabetical order, as JSON keeps it
    levels: Provenance  # the hierarchy: which levels there are, and which unit lies in which
    frame: Provenance  # the list of leaves
    units: Provenance | None = None  # unit counts of the leaves; None where the run has none
    # Acts by which private parts were found, each once.
    discoveries: tuple[Discovery, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", MappingProxyType(dict(sorted(self.labels.items()))))

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled.
        return type(self), (dict(self.labels), self.levels, self.frame, self.units, self.discoveries)

    def parts(self, provenance: Provenance) -> tuple[str, ...]:
        """Return the parts of one provenance, in words."""
        found = [f"labels of {name}" for name, of in self.labels.items() if of is provenance]
        others = (
            ("the hierarchy of the levels", self.levels),
            ("the list of leaves", self.frame),
            ("unit counts of the leaves", self.units),
        )
        return (*found, *(words for words, of in others if of is provenance))

    @property
    def from_records(self) -> tuple[str, ...]:
        """The parts that were read from the records, in words."""
        return self.parts(Provenance.FROM_RECORDS)

    def to_dict(self) -> dict[str, object]:
        """Plain values, without ``units`` where there are none."""
        return {
            "labels": {name: of.value for name, of in self.labels.items()},
            "levels": self.levels.value,
            "frame": self.frame.value,
            **({} if self.units is None else {"units": self.units.value}),
            "discoveries": [discovery.to_dict() for discovery in self.discoveries],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        try:
            units = record.get("units")
            return cls(
                {name: Provenance(of) for name, of in record["labels"].items()},
                Provenance(record["levels"]),
                Provenance(record["frame"]),
                None if units is None else Provenance(units),
                tuple(Discovery.from_dict(each) for each in record["discoveries"]),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise FormatError("the provenance of the domain is incomplete or unknown.") from error
