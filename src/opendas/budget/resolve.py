"""Complete and validate the budget of a run file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

from opendas.budget.allocation import (
    DEFAULT_DELTA,
    EVERY_OTHER,
    Budget,
    exact_shares,
)
from opendas.budget.presets import Preset, preset, preset_names
from opendas.errors import BudgetError
from opendas.privacy.exact import format_fraction, parse_fraction
from opendas.privacy.relations import Mechanism, Neighbours

Number = Fraction | int | str
Shares = Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """The budget as a run or product file states it; every part may be missing.

    - `rho`, `epsilon`: rho for the discrete Gaussian, epsilon for the discrete Laplace.
    - `geolevels`: geolevel -> share.
    - `queries`: geolevel, or ``"*"`` for every other -> query group -> share.
    - `normalise`: drop geolevels that the run does not have and rescale the others exactly.
    - `delta`: default 1e-10.
    - `source`: source of the shares, in words for plan and certificate. Does not change the noise.
    """

    preset: str | None = None
    rho: Number | None = None
    epsilon: Number | None = None
    geolevels: Shares | None = None
    queries: Mapping[str, Shares] | None = None
    normalise: bool = False
    delta: Number | None = None
    mechanism: Mechanism = Mechanism.DISCRETE_GAUSSIAN
    neighbours: Neighbours = Neighbours.BOUNDED
    source: str | None = None

    def stating(
        self, total: Fraction, geolevels: Shares, queries: Mapping[str, Mapping[str, Fraction]]
    ) -> BudgetSpec:
        """Return the budget with all its numbers written out, instead of a preset."""
        gaussian = self.mechanism.is_zcdp
        return replace(
            self,
            preset=None,
            rho=total if gaussian else None,
            epsilon=None if gaussian else total,
            geolevels=geolevels,
            queries=queries,
            normalise=False,
        )


def resolve_budget(
    spec: BudgetSpec,
    geolevels: Sequence[str],
    canonical: Callable[[str], str] | None = None,
    stand_ins: Mapping[str, str] = MappingProxyType({}),
) -> Budget:
    """Return the complete, validated budget of a run.

    - `spec`: parts given besides a preset replace its parts.
    - `geolevels`: geolevels of the run's spine, top first.
    - `canonical`: returns a query name in schema order, as
      :meth:`opendas.schema.query_groups.Workload.canonical` does; by default, names are unchanged.
    - `stand_ins`: for a geolevel without query groups, the geolevel whose preset query groups it uses.
    - Returns: geolevels in the order of the run.

    Raises `BudgetError` if a part is missing, a sum is not exactly one, or the geolevels are not the run's;
    suggests a preset that fits; `ConfigError` if a number is a float or the preset is unknown.
    """
    base = None if spec.preset is None else preset(spec.preset)
    shares = _geolevel_shares(spec, base, geolevels)
    return Budget(
        mechanism=spec.mechanism,
        neighbours=spec.neighbours,
        total=_total(spec, base),
        geolevels={level: shares.get(level, Fraction(0)) for level in geolevels},
        queries=_query_shares(spec, base, geolevels, canonical, stand_ins),
        delta=DEFAULT_DELTA if spec.delta is None else parse_fraction(spec.delta, "delta"),
    )


def _total(spec: BudgetSpec, base: Preset | None) -> Fraction:
    given, name = (spec.rho, "rho") if spec.mechanism.is_zcdp else (spec.epsilon, "epsilon")
    other = spec.epsilon if name == "rho" else spec.rho
    if other is not None:
        wrong = "epsilon" if name == "rho" else "rho"
        raise BudgetError(
            f"[budget] sets {wrong}, but the mechanism {spec.mechanism} spends {name}. Give {name}, or "
            "change the mechanism in [run]."
        )
    if given is not None:
        return parse_fraction(given, name)
    if base is not None and name == "rho":
        return base.rho
    because = f", and the preset {base.name} gives a rho, not an {name}" if base is not None else ""
    raise BudgetError(f'[budget] has no {name}{because}. Give {name}, for instance {name} = "1".')


def _geolevel_shares(
    spec: BudgetSpec, base: Preset | None, geolevels: Sequence[str]
) -> Mapping[str, Fraction]:
    if spec.geolevels is not None:
        if EVERY_OTHER in spec.geolevels:
            raise BudgetError(
                '[budget] geolevels: "*" is not allowed here; name each geolevel with its share.'
            )
        shares = exact_shares(spec.geolevels, "[budget] geolevels")
    elif base is not None:
        shares = dict(base.geolevels)
    elif len(geolevels) == 1:
        return {geolevels[0]: Fraction(1)}
    else:
        raise BudgetError(
            f"[budget] has neither a preset nor geolevels. Give geolevels shares for {', '.join(geolevels)}, "
            "or a preset."
        )
    missing = [level for level in geolevels if level not in shares and not _declared(spec, level)]
    surplus = [level for level in shares if level not in geolevels]
    if missing or (surplus and not spec.normalise):
        raise BudgetError(_mismatch(spec, base, geolevels, missing, surplus))
    kept = {level: share for level, share in shares.items() if level in geolevels}
    total = sum(kept.values(), Fraction(0))
    if total == 0:
        raise BudgetError("[budget] geolevels: no geolevel of this run has a share to rescale.")
    return {level: share / total for level, share in kept.items()}


def _declared(spec: BudgetSpec, level: str) -> bool:
    """Whether a geolevel without budget has an explicit share of zero."""
    return spec.geolevels is not None and level in spec.geolevels


def _mismatch(
    spec: BudgetSpec, base: Preset | None, geolevels: Sequence[str], missing: list[str], surplus: list[str]
) -> str:
    origin = f"Preset {base.name}" if base is not None and spec.geolevels is None else "[budget] geolevels"
    parts = []
    if surplus:
        parts.append(f"has shares for {', '.join(surplus)}, which this run does not have")
    if missing:
        parts.append(f"has no share for {', '.join(missing)}")
    fitting = [
        name
        for name in preset_names()
        if list(preset(name).geolevels) == list(geolevels)
        and (base is None or preset(name).product == base.product)
    ]
    tries = [f"the preset {' or '.join(fitting)} fits"] if fitting else []
    if surplus and not missing:
        tries.append("normalise = true drops what the run does not have and rescales the rest exactly")
    tries.append("give geolevels shares that name each geolevel of the run")
    return f"{origin} {' and '.join(parts)}. The run has {', '.join(geolevels)}: {'; or '.join(tries)}."


def _query_shares(
    spec: BudgetSpec,
    base: Preset | None,
    geolevels: Sequence[str],
    canonical: Callable[[str], str] | None,
    stand_ins: Mapping[str, str],
) -> dict[str, dict[str, Fraction]]:
    if spec.queries is not None:
        given: Mapping[str, Shares] = spec.queries
    elif base is not None:
        borrowed = {level: base.queries[other] for level, other in stand_ins.items() if other in base.queries}
        given = {**borrowed, **base.queries}
    else:
        raise BudgetError(
            "[budget] has neither a preset nor queries. Give [budget.queries], for instance "
            '"*" = { total = "1/4", detailed = "3/4" }.'
        )
    unused = [level for level in given if level not in geolevels and level != EVERY_OTHER]
    if unused and spec.queries is not None and not spec.normalise:
        raise BudgetError(
            f"[budget.queries] names {', '.join(unused)}, which this run does not have; it has "
            f"{', '.join(geolevels)}."
        )
    return {
        level: _named(shares, level, canonical)
        for level, shares in given.items()
        if level in geolevels or level == EVERY_OTHER
    }


def _named(shares: Shares, level: str, canonical: Callable[[str], str] | None) -> dict[str, Fraction]:
    named: dict[str, Fraction] = {}
    for query, share in shares.items():
        name = query if canonical is None else canonical(query)
        exact = parse_fraction(share, f"[budget.queries] {level}, {query}")
        if name in named:
            raise BudgetError(
                f"[budget.queries] {level}: the query {name!r} appears twice, with "
                f"{format_fraction(named[name])} and {format_fraction(exact)}. Keep one."
            )
        named[name] = exact
    return named
