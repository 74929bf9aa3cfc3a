# mypy: allow-untyped-defs, allow-untyped-calls
"""Merging tract groups best pair first, where Algorithm 2 takes the first pair that does no harm.

Algorithm 2 also merges pairs without effect as it meets them, which fills groups with tracts of different
entities before the tracts of one entity are together. Here the pair that saves most is merged first, until no
pair saves anything.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from opendas.geography.greedy import END, gain, merge

__all__ = ["merge_best_first", "pair_score"]

NONE = -(1 << 62)


@njit(cache=True, nogil=True)
def pair_score(state, u, v, weight):
    """Return the worth of merging two groups: greater is better, `NONE` if nothing is saved.

    Savings count `weight` each; among equal ones the pair with the fewest tracts that pull an entity in
    opposite directions is best, then the larger one, which fills groups.

    Parameters
    ----------
    state : County
    u, v : int
        Groups.
    weight : int64 (entities,)
        Positive for an entity counted from its own parts, negative for one counted from its complement.
    """
    size_u, size_v = state.size[u], state.size[v]
    i, j = state.head[u], state.head[v]
    saved, torn = 0, 0
    while i != END or j != END:
        take_u = j == END or (i != END and state.entity[i] <= state.entity[j])
        take_v = i == END or (j != END and state.entity[j] <= state.entity[i])
        n_u, n_v, k = -size_u, -size_v, END
        if take_u:
            k = state.entity[i]
            n_u += state.m[i]
            i = state.following[i]
        if take_v:
            k = state.entity[j]
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


@njit(cache=True, nogil=True)
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
