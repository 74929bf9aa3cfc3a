# mypy: allow-untyped-defs, allow-untyped-calls
"""Merging tract groups of one county, for Algorithm 2: compiled, and so a file of its own.

What a merge does to the distances, and the searches. Write ``n = c - c'`` for an entity and a tract, and let
``n`` of a group be the sum over its tracts (a tract that the entity does not touch has ``n = -1``). By
Cumings-Menon et al. (2024), equations (4.1) and (4.2), a group costs

    c_g  = sum c  - max(0,  n - 1)
    c'_g = sum c' - max(0, -n - 1)

so a grouping is worth, to an entity, what these maxima sum to; and the distance of the entity is
``min(x, y)`` with ``x`` (``y``) the sum of its ``c_g`` (``c'_g``) plus what it costs outside the county.
Groups keep ``m``, the sum of ``n + 1`` over their tracts, for the entities that touch them: ``n = m - size``,
and ``m = 0`` for all other entities. The lists are linked, so that a merge copies nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from opendas.arrays.kernels import inner

if TYPE_CHECKING:
    from opendas.arrays import Ints

END = -1


class County(NamedTuple):
    """Groups of the tracts of one county and the distances of the entities in it; changed in place."""

    # int64 (tracts,): tracts in the group that starts with this tract; 0 where the tract starts none.
    size: Any
    # int64 (tracts,): first tract of the group that each tract was merged into last; follow it to itself.
    group: Any
    head: Any  # int64 (tracts,): first node of each group's list, by ascending entity
    # entity, m, following, int64 (nodes,): the nodes of the lists.
    entity: Any
    m: Any
    following: Any
    # x, y, int64 (entities,): cost of each entity from its own parts, and from those of its complement.
    x: Any
    y: Any
    # int64 (entities + 1,): entities with y <= x, whose distance falls with every group less; first how many
    # there are.
    active: Any
    # net, seen, stamp, int64 arrays: scratch: change in the number of entities at each distance; distances
    # touched; last pair that touched each entity.
    net: Any
    seen: Any
    stamp: Any


def county_state(
    group: Ints,
    starts: Ints,
    entity: Ints,
    inside: Ints,
    outside: Ints,
    base: tuple[Ints, Ints],
) -> County:
    """Return the state of one county, its tracts grouped as `group` says.

    - `group` (tracts,): lowest tract of the group of each tract.
    - `starts` (tracts + 1,): tract ``t`` has the pairs ``starts[t]:starts[t + 1]``, by ascending entity.
    - `entity`, `inside`, `outside` (pairs,): entity, ``c`` and ``c'``.
    - `base` (entities,): what ``x`` and ``y`` are beyond the costs of the groups.
    """
    tracts, entities = len(group), len(base[0])
    own = np.arange(tracts, dtype=np.int64)
    x = base[0] + np.bincount(entity, inside, minlength=entities).astype(np.int64)
    y = base[1] + np.bincount(entity, outside - 1, minlength=entities).astype(np.int64) + tracts
    limit = int(np.minimum(x, y).max()) if entities else 0
    following = np.arange(1, len(entity) + 1, dtype=np.int64)
    last = starts[1:][starts[1:] > starts[:-1]] - 1
    following[last] = END
    state = County(
        size=np.ones(tracts, dtype=np.int64),
        group=own.copy(),
        head=np.where(starts[1:] > starts[:-1], starts[:-1], END),
        entity=entity.copy(),
        m=inside - outside + 1,
        following=following,
        x=x,
        y=y,
        active=np.zeros(entities + 1, dtype=np.int64),
        net=np.zeros(limit + 2, dtype=np.int64),
        seen=np.zeros(2 * entities + 2, dtype=np.int64),
        stamp=np.full(entities, END, dtype=np.int64),
    )
    _activate(state)
    merged = np.flatnonzero(group != own)
    merge_pairs(state, group[merged], merged)
    return state


@njit(cache=True, nogil=True)
def gain(n):
    """Return what a group with net count `n` saves."""
    return n - 1 if n > 1 else 0


@njit(cache=True, nogil=True)
def _activate(state):
    """List the entities whose complement is at least as cheap."""
    count = 0
    for k in range(len(state.x)):
        if state.y[k] <= state.x[k]:
            count += 1
            state.active[count] = k
    state.active[0] = count


@njit(cache=True, nogil=True)
def _move(state, old, new, count):
    """Note that one entity's distance goes from `old` to `new`; return how many distances are noted."""
    state.net[old] -= 1
    state.net[new] += 1
    state.seen[count] = old
    state.seen[count + 1] = new
    return count + 2


@inner
def _verdict(state, count):
    """Compare the sorted vectors: -1 if the new one is less, 0 if equal, 1 if greater; clear the scratch.

    Sorted vectors compare as the counts at the largest value where they differ do.
    """
    highest, sign = -1, 0
    for i in range(count):
        value = state.seen[i]
        if state.net[value] != 0 and value > highest:
            highest = value
            sign = 1 if state.net[value] > 0 else -1
    for i in range(count):
        state.net[state.seen[i]] = 0
    return sign


@inner
def compare_merge(state, u, v):
    """Return the sign of the change in the sorted distances if groups `u` and `v` become one."""
    size_u, size_v = state.size[u], state.size[v]
    i, j = state.head[u], state.head[v]
    pair = u * len(state.size) + v
    limit = len(state.net) - 2
    count = 0
    while i != END or j != END:
        take_u = j == END or (i != END and state.entity[i] <= state.entity[j])
        take_v = i == END or (j != END and state.entity[j] <= state.entity[i])
        k, n_u, n_v = state.entity[i if take_u else j], -size_u, -size_v
        if take_u:
            n_u += state.m[i]
            i = state.following[i]
        if take_v:
            n_v += state.m[j]
            j = state.following[j]
        # The distance of entity k, before and after: min(x, y), with the maxima of (4.1) and (4.2) above.
        state.stamp[k] = pair
        old = min(state.x[k], state.y[k])
        new = min(
            state.x[k] - gain(n_u + n_v) + gain(n_u) + gain(n_v),
            state.y[k] - gain(-n_u - n_v) + gain(-n_u) + gain(-n_v),
        )
        if new > limit:  # above every distance there is: greater, whatever the others do
            _verdict(state, count)
            return 1
        if new != old:
            count = _move(state, old, new, count)
    # Entities that touch neither group: their complement needs one geounit less.
    for a in range(1, state.active[0] + 1):
        k = state.active[a]
        if state.stamp[k] != pair:
            count = _move(state, state.y[k], state.y[k] - 1, count)
    return _verdict(state, count)


@inner
def merge(state, u, v):
    """Make groups `u` and `v` one, which keeps the place of `u`."""
    size_u, size_v = state.size[u], state.size[v]
    state.y[:] -= 1  # for an entity that touches neither: size_u + size_v - 1, less what each had
    i, j = state.head[u], state.head[v]
    tail = END
    while i != END or j != END:
        take_u = j == END or (i != END and state.entity[i] <= state.entity[j])
        take_v = i == END or (j != END and state.entity[j] <= state.entity[i])
        node, n_u, n_v = (i if take_u else j), -size_u, -size_v
        k = state.entity[node]
        if take_u:
            n_u += state.m[i]
            i = state.following[i]
        if take_v:
            n_v += state.m[j]
            j = state.following[j]
        # What is saved before and after: the maxima of (4.1) and (4.2) above.
        state.x[k] += gain(n_u) + gain(n_v) - gain(n_u + n_v)
        state.y[k] += 1 + gain(-n_u) + gain(-n_v) - gain(-n_u - n_v)
        state.m[node] = n_u + n_v + size_u + size_v
        if tail == END:
            state.head[u] = node
        else:
            state.following[tail] = node
        state.following[node] = END
        tail = node
    state.head[v] = END
    state.group[v] = u
    state.size[u] += size_v
    state.size[v] = 0
    _activate(state)


@njit(cache=True, nogil=True)
def merge_pairs(state, left, right):
    """Merge groups pair by pair, whatever the distances do."""
    for i in range(len(left)):
        merge(state, left[i], right[i])


@njit(cache=True, nogil=True)
def sweep(state, bound):
    """Go once through all pairs of groups of a county; return whether any were merged.

    A merged group keeps the place of its first tract, and the pass goes on with the next pair.

    Notes
    -----
    The inner loop of Cumings-Menon et al. (2024), Algorithm 2.
    """
    tracts = len(state.size)
    changed = False
    for u in range(tracts - 1):
        if state.size[u] == 0:
            continue
        for v in range(u + 1, tracts):
            if state.size[v] == 0 or state.size[u] + state.size[v] > bound:
                continue
            if compare_merge(state, u, v) <= 0:
                merge(state, u, v)
                changed = True
    return changed


@njit(cache=True, nogil=True)
def merge_until_final(state, bound):
    """Merge as the production system does: each group in turn takes the first that fits, then starts again.

    A group that finds no partner is final, and later ones no longer try it.
    """
    tracts = len(state.size)
    for u in range(tracts - 1):
        if state.size[u] == 0:
            continue
        v = u + 1
        while v < tracts:
            fits = state.size[v] > 0 and state.size[u] + state.size[v] <= bound
            if fits and compare_merge(state, u, v) <= 0:
                merge(state, u, v)
                v = u
            v += 1


NONE = -(1 << 62)


@njit(cache=True, nogil=True)
def pair_score(state, u, v, weight):
    """Return the worth of merging two groups: greater is better, `NONE` if nothing is saved.

    Savings count `weight` each; among equal ones the pair with the fewest tracts that pull an entity in
    opposite directions is best, then the larger one, which fills groups.

    `weight`, int64 (entities,): positive for an entity counted from its own parts, negative for one counted
    from its complement.
    """
    size_u, size_v = state.size[u], state.size[v]
    i, j = state.head[u], state.head[v]
    saved, torn = 0, 0
    while i != END or j != END:
        take_u = j == END or (i != END and state.entity[i] <= state.entity[j])
        take_v = i == END or (j != END and state.entity[j] <= state.entity[i])
        k, n_u, n_v = state.entity[i if take_u else j], -size_u, -size_v
        if take_u:
            n_u += state.m[i]
            i = state.following[i]
        if take_v:
            n_v += state.m[j]
            j = state.following[j]
        worth = weight[k]
        if worth < 0:
            worth, n_u, n_v = -worth, -n_u, -n_v
        saved += worth * (gain(n_u + n_v) - gain(n_u) - gain(n_v))
        if n_u * n_v < 0:
            torn += worth * min(abs(n_u), abs(n_v))
    if saved <= 0:
        return NONE
    return (1000 * saved - torn) * 4096 + size_u + size_v


@inner
def _best_partner(state, u, bound, weight):
    """Return the best group to merge with `u`, and the score; -1 and `NONE` if there is none."""
    best, top = -1, NONE
    for v in range(len(state.size)):
        if v != u and state.size[v] > 0 and state.size[u] + state.size[v] <= bound:
            score = pair_score(state, u, v, weight)
            if score > top:
                best, top = v, score
    return best, top


@njit(cache=True, nogil=True)
def merge_best_first(state, bound, weight):
    """Merge the best pair of groups until none saves anything; return the merged pairs, (merges, 2).

    Algorithm 2 takes the first pair that does no harm, and merges pairs without effect as it meets them,
    which fills groups with tracts of different entities before the tracts of one entity are together.
    Every group remembers its best partner. A merge changes the scores of one group only, so that another
    group looks at all partners again only if its own is gone and the merged one is no better.
    """
    tracts = len(state.size)
    partner = np.empty(tracts, np.int64)
    score = np.empty(tracts, np.int64)
    for u in range(tracts):
        if state.size[u] > 0:
            partner[u], score[u] = _best_partner(state, u, bound, weight)
        else:
            partner[u], score[u] = -1, NONE
    pairs = np.empty((tracts, 2), np.int64)
    count = 0
    while True:
        best = np.argmax(score)
        if score[best] == NONE:
            return pairs[:count]
        u, v = min(best, partner[best]), max(best, partner[best])
        pairs[count, 0], pairs[count, 1] = u, v
        count += 1
        merge(state, u, v)
        partner[v], score[v] = -1, NONE
        partner[u], score[u] = _best_partner(state, u, bound, weight)
        for w in range(tracts):
            if state.size[w] == 0 or w == u:
                continue
            now = NONE
            if state.size[u] + state.size[w] <= bound:
                now = pair_score(state, w, u, weight)
            if now > score[w] or (now == score[w] and partner[w] in (u, v)):
                partner[w], score[w] = (u if now != NONE else -1), now
            elif partner[w] == u or partner[w] == v:
                partner[w], score[w] = _best_partner(state, w, bound, weight)
