"""Which geounits a bypass rule takes, and what the worst served of them pay.

The spines paper (section 3.1) tried the usual aim of matrix mechanisms, the least expected sum of squared
errors, and rejected it: it bypasses many more geounits and leaves some with far larger errors. This script
shows that on a synthetic spine, from variances alone: no data, no noise.

    python experiments/bypass_rules.py [--to FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from bypassing import SharedSpine, least_sum_of_squares

LEVELS = ("state", "county", "tract", "block_group", "block")
SEED = 1


@dataclass(frozen=True)
class Outcome:
    """One rule on one spine. Errors are standard errors, after over before."""

    mechanism: str
    shares: str
    rule: str
    bypassed: dict[str, int]
    root_mean_square: float
    worst: float
    worst_level: str
    grown: int
    geounits: int

    def row(self) -> str:
        """Return one line of the table."""
        taken = " / ".join(str(self.bypassed[level]) for level in LEVELS[:-1])
        change = f"{self.root_mean_square - 1:+.1%}"
        return (
            f"| {self.mechanism} | {self.shares} | {self.rule} | {taken} | {change} | "
            f"{self.grown} of {self.geounits} | {self.worst:.2f} ({self.worst_level}) |"
        )


def made_parents(seed: int, blocks: int) -> tuple[np.ndarray, ...]:
    """Return a spine with fan-outs like a state's, a few only children at every level among them."""
    rng = np.random.default_rng(seed)
    sizes = [blocks]
    parents: list[np.ndarray] = []
    for mean in (12.0, 4.0, 12.0):
        fanout: list[int] = []
        while sum(fanout) < sizes[-1]:
            fanout.append(1 if rng.random() < 0.08 else 1 + int(rng.poisson(mean - 1)))
        fanout[-1] -= sum(fanout) - sizes[-1]
        parents.append(np.repeat(np.arange(len(fanout)), fanout))
        sizes.append(len(fanout))
    parents += [np.zeros(sizes[-1], dtype=np.int64), np.zeros(1, dtype=np.int64)]
    return tuple(reversed(parents))


def level_shares(parents: tuple[np.ndarray, ...]) -> Iterator[tuple[str, list[float]]]:
    """Yield named ways to share the budget over levels."""
    count = len(parents)
    yield "equal", [1 / count] * count
    inverse = [1 / len(parent) for parent in parents]
    yield "1 / geounits", [value / sum(inverse) for value in inverse]


def only_children(spine: SharedSpine) -> tuple[SharedSpine, tuple[tuple[int, int], ...]]:
    """Bypass parents with one child: the rule under zCDP."""
    return chosen_rule(spine, lambda parent, children: len(children) == 1)


def theorem_2(spine: SharedSpine) -> tuple[SharedSpine, tuple[tuple[int, int], ...]]:
    """Bypass where no variance grows: the rule under pure differential privacy."""
    return chosen_rule(
        spine, lambda parent, children: children.min() >= (len(children) - 1) * parent / 2 * (1 - 1e-12)
    )


def chosen_rule(
    spine: SharedSpine, allowed: Callable[[float, np.ndarray], bool]
) -> tuple[SharedSpine, tuple[tuple[int, int], ...]]:
    """Apply a rule for (share of the parent, shares of its children), from the leaves up."""
    chosen = []
    for level in reversed(range(len(spine.parents) - 1)):
        for geounit, share in enumerate(spine.shares[level]):
            if share > 0 and allowed(share, spine.shares[level + 1][spine.children(level, geounit)]):
                spine = spine.bypassed(level, geounit)
                chosen.append((level, geounit))
    return spine, tuple(chosen)


def outcomes(blocks: int = 1500, seed: int = SEED) -> Iterator[Outcome]:
    """Yield every rule under both mechanisms and every way to share the budget."""
    parents = made_parents(seed, blocks)
    sizes = [len(parent) for parent in parents]
    rules = {
        "only child": only_children,
        "Theorem 2": theorem_2,
        "sum of squares": least_sum_of_squares,
        "sum of squares, levels alike": lambda spine: least_sum_of_squares(spine, [1 / g for g in sizes]),
    }
    for pure in (True, False):
        for name, shares in level_shares(parents):
            spread = tuple(np.full(g, share) for g, share in zip(sizes, shares, strict=True))
            spine = SharedSpine(parents, spread, pure)
            before = spine.variances()
            for rule, apply in rules.items():
                if rule == "Theorem 2" and not pure:
                    continue
                found, chosen = apply(spine)
                after = found.variances()
                growth = [np.sqrt(b / a) for a, b in zip(before, after, strict=True)]
                worst = int(np.argmax([g.max() for g in growth]))
                weights = [1 / g for g in sizes] if rule.endswith("alike") else [1.0] * len(sizes)
                sums = [sum(w * v.sum() for w, v in zip(weights, vs, strict=True)) for vs in (before, after)]
                yield Outcome(
                    "Laplace" if pure else "Gaussian",
                    name,
                    rule,
                    {level: sum(1 for at, _ in chosen if at == k) for k, level in enumerate(LEVELS[:-1])},
                    float(np.sqrt(sums[1] / sums[0])),
                    float(growth[worst].max()),
                    LEVELS[worst],
                    sum(int((g > 1 + 1e-9).sum()) for g in growth),
                    sum(sizes),
                )


def main() -> None:
    """Print the table; write it with ``--to``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=1500)
    parser.add_argument("--to", type=Path, default=None, help="also write the table to this folder (JSON)")
    options = parser.parse_args()
    sizes = [len(parent) for parent in made_parents(SEED, options.blocks)]
    print(f"Geounits: {', '.join(f'{g} {level}' for g, level in zip(sizes, LEVELS, strict=True))}.\n")
    print(
        "| Noise | Level shares | Rule | Bypassed (state / county / tract / block group) | Root of the sum "
        "of squares | Geounits with larger error | Largest growth of a standard error |"
    )
    print("|---|---|---|---|---|---|---|")
    found = []
    for outcome in outcomes(options.blocks):
        print(outcome.row(), flush=True)
        found.append(asdict(outcome))
    if options.to is not None:
        options.to.mkdir(parents=True, exist_ok=True)
        (options.to / "bypass_rules.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
