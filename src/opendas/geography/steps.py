"""The steps of a spine recipe: each regroups the leaves of a draft, and none divides a leaf.

Sources: "Geographic spines in the 2020 Census Disclosure Avoidance System", sections 1 (AIAN spine), 4
(optimised block groups) and 6 (production settings). Axes: ``b`` leaves in the order of the frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import isqrt

import numpy as np
import numpy.typing as npt

from opendas.arrays import Codes, Ints
from opendas.errors import ConfigError
from opendas.geography.draft import Draft, Layer, combine, numbered

__all__ = [
    "PRODUCTION_AIAN",
    "block_groups",
    "divide_into_parts",
    "group",
    "in_ranges",
    "insert_groups",
    "insert_intersections",
    "largest_group",
    "split",
]

PRODUCTION_AIAN = (
    "0001-4799",
    "4800-4989",
    "5000-5499",
    "5500-5899",
    "5900-5999",
    "6000-7999",
    "9000-9499",
)
"""AIANNH codes of the AIAN branch in 2020: all kinds but tribal and state designated statistical areas."""


def in_ranges(codes: Codes, ranges: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which codes lie in ranges such as ``"0001-4799"``, or equal single codes.

    Parameters
    ----------
    codes : bytes array (b,)
        The empty code lies in no range.
    ranges : sequence of str
        Both ends included; compared as text of equal length.

    Raises
    ------
    ConfigError
        If the ends of a range have different lengths, or its end is before its start.
    """
    inside = np.zeros(len(codes), dtype=np.bool_)
    lengths = np.char.str_len(codes)
    for text in ranges:
        first, dash, last = (part.strip().encode() for part in text.partition("-"))
        last = last if dash else first
        if not first or len(first) != len(last) or last < first:
            raise ConfigError(
                f'[geography] spine: {text!r} is no range of codes; write "0001-4799", or one code "2415".'
            )
        inside |= (lengths == len(first)) & (codes >= first) & (codes <= last)
    return inside


def divide_into_parts(draft: Draft, top: str, inside: npt.NDArray[np.bool_]) -> Draft:
    """Divide every geounit from the level `top` down, but no leaf, into a part inside and one outside.

    The AIAN spine, where `inside` marks the leaves in AIAN areas. A geounit on one side only is that part;
    an empty part does not exist. Geocodes get ``1`` (inside) or ``0`` in front, as in production.

    Parameters
    ----------
    draft : Draft
    top : str
    inside : bool (b,)

    Raises
    ------
    ConfigError
        If there is no such level, it is the leaf level or not as published, or the draft is divided already.
    """
    place = draft.index(top, "the division into parts")
    if place == len(draft.layers) - 1:
        raise ConfigError(f"[geography] spine: {top!r} is the leaf level, and leaves are not divided.")
    if any(layer.whole is not None for layer in draft.layers):
        raise ConfigError("[geography] spine: the spine can be divided into parts once; it is already.")
    if not draft.layers[place].official:  # what parts hold together may be exact: of official geounits only
        raise ConfigError(
            f"[geography] spine: the step aian comes before the steps that regroup {top!r}: it makes "
            "parts of official geounits."
        )
    layers = []
    for number, layer in enumerate(draft.layers[place:-1]):
        pair = 2 * layer.label + inside
        found, label = numbered(pair)
        mark = np.where(found % 2 == 1, b"1", b"0").astype("S1")
        codes = np.char.add(mark, layer.codes[found // 2])
        whole = (found // 2).astype(np.int64) if number == 0 else None
        layers.append(Layer(layer.name, label, codes, official=False, whole=whole))
    return draft.changed(place, *layers)


def split(draft: Draft, level: str, key: Ints, name: str | None = None) -> Draft:
    """Divide the geounits of a level, and of those between it and the leaves, where `key` differs.

    Parameters
    ----------
    draft : Draft
    level : str
    key : int64 (b,)
        For instance :func:`opendas.geography.draft.combine` of entity codes.
    name : str, optional
        New name of the level.
    """
    place = draft.index(level, "the step split")
    if place == len(draft.layers) - 1:
        raise ConfigError(f"[geography] spine: {level!r} is the leaf level, and leaves are not divided.")
    if name is not None and name != level and name in draft.names:
        raise ConfigError(f"[geography] spine: two levels would have the name {name!r}.")
    layers = [_divided(layer, key) for layer in draft.layers[place:-1]]
    if name is not None:
        layers[0] = replace(layers[0], name=name)
    return draft.changed(place, *layers)


def _divided(layer: Layer, key: Ints) -> Layer:
    """Divide a level's geounits by a key; divided ones are numbered ``.1``, ``.2`` ... behind their code.

    If such a code is there already, all are numbered.
    """
    pairs, label = numbered(layer.label * (int(key.max()) + 1) + key)
    old = pairs // (int(key.max()) + 1)
    if len(old) == len(layer):
        return layer
    starts = np.flatnonzero(np.concatenate([[True], old[1:] != old[:-1]]))
    counts = np.diff(np.append(starts, len(old)))
    number = np.arange(len(old)) - np.repeat(starts, counts) + 1
    alone = np.repeat(counts, counts) == 1
    suffix = np.char.add(b".", number.astype("S10"))
    whole = None if layer.whole is None else layer.whole[old]
    with_number = np.char.add(layer.codes[old], suffix)
    codes = np.where(alone, layer.codes[old], with_number)
    if len(np.unique(codes)) < len(codes):
        codes = with_number
    return Layer(layer.name, label, codes, official=False, whole=whole)


def insert_intersections(draft: Draft, above: str, key: Ints, name: str) -> Draft:
    """Insert a level above `above`: the intersections of the geounits there with the areas that `key` tells.

    Geounits from `above` down, but no leaf, are divided where they lie in several of the new ones, so that
    the levels nest. The DHC's *prims* and *tract subsets* are made this way (paper, section 6).
    """
    place = draft.index(above, f"the step intersect ({name})")
    if place == 0:
        raise ConfigError(f"[geography] spine: {above!r} is the topmost level; nothing stands above it.")
    parent = draft.layers[place - 1]
    label = combine([parent.label, key])
    made = _numbered_within(name, parent, label)
    lower = [_divided(layer, label) for layer in draft.layers[place:-1]]
    return draft.changed(place, *lower).inserted(place, made)


def largest_group(members: int, fanout_cutoff: int, *, off_by_one: bool = False) -> int:
    """Return how many of a geounit's `members` one group may hold: ``sqrt(members) + fanout_cutoff``.

    The smallest possible largest fan-out of a geounit and its groups is the square root, rounded up (paper,
    section 4). Production let groups grow to one more; `off_by_one` reproduces it.
    """
    return isqrt(members) + fanout_cutoff + int(off_by_one)


def group(
    draft: Draft,
    level: str,
    key: Ints,
    name: str,
    *,
    fanout_cutoff: int,
    off_by_one: bool = False,
) -> Draft:
    """Insert a level of groups above `level`: geounits of one parent whose key is the same, in order.

    Parameters
    ----------
    draft : Draft
    level : str
    key : int64 (b,)
        Geounits of `level` are alike if they hold the same set of keys.
    name : str
    fanout_cutoff : int, >= 1
    off_by_one : bool

    Notes
    -----
    Section 4 of the paper: groups are filled in order of geocode up to :func:`largest_group`, and never hold
    geounits that are not alike.
    """
    place = draft.index(level, f"the step that makes {name}")
    if place == 0:
        raise ConfigError(f"[geography] spine: {level!r} is the topmost level and cannot be grouped.")
    if fanout_cutoff < 1:
        raise ConfigError("[geography] spine: fanout_cutoff is at least 1.")
    layer, parent = draft.layers[place], draft.layers[place - 1]
    alike, first = _kinds(layer, key)
    above = parent.label[first]
    order = np.lexsort((alike, above))  # stable: geounits that are alike stay in order
    run = np.concatenate([[True], np.diff(above[order] * (int(alike.max()) + 1) + alike[order]) != 0])
    starts = np.flatnonzero(run)
    position = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    members = np.bincount(above, minlength=len(parent))
    largest = np.array(
        [largest_group(n, fanout_cutoff, off_by_one=off_by_one) for n in members.tolist()], dtype=np.int64
    )
    new = run | (position % largest[above[order]] == 0)
    number = np.empty(len(layer), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return insert_groups(draft, level, number, name)


def insert_groups(draft: Draft, level: str, number: Ints, name: str) -> Draft:
    """Insert a level above `level`, given the group of each of its geounits, int64 (k,).

    Geounits of different parents are never in one group, whatever their numbers.
    """
    place = draft.index(level, f"the step that makes {name}")
    parent = draft.layers[place - 1]
    label = combine([parent.label, number[draft.layers[place].label]])
    return draft.inserted(place, _numbered_within(name, parent, label))


def block_groups(
    draft: Draft, key: Ints, *, name: str = "block_group", fanout_cutoff: int = 12, off_by_one: bool = False
) -> Draft:
    """Replace the level `name` above the leaves by groups of leaves with the same key.

    Optimised block groups: the key numbers the combinations of off-spine entities.
    """
    if name in draft.names:
        place = draft.names.index(name)
        if place != len(draft.layers) - 2:
            raise ConfigError(
                f"[geography] spine: block_groups makes the level above the leaves; {name!r} is not there."
            )
        draft = draft.without(place)
    leaf = draft.layers[-1].name
    return group(draft, leaf, key, name, fanout_cutoff=fanout_cutoff, off_by_one=off_by_one)


def _kinds(layer: Layer, key: Ints) -> tuple[Ints, Ints]:
    """Number the geounits' sets of keys in order, int64 (k,); and return one leaf of each geounit."""
    if len(layer) == len(key):  # leaves
        leaf = np.argsort(layer.label)
        return combine([key[leaf]]), leaf
    width = int(key.max()) + 1
    pairs = numbered(layer.label * width + key)[0]
    geounit, value = pairs // width, pairs % width
    starts = np.searchsorted(geounit, np.arange(len(layer) + 1))
    sets = [tuple(value[a:b].tolist()) for a, b in itertools.pairwise(starts)]
    place = {keys: number for number, keys in enumerate(sorted(set(sets)))}
    first = np.empty(len(layer), dtype=np.int64)
    first[layer.label] = np.arange(len(key))  # any leaf of the geounit
    return np.array([place[keys] for keys in sets], dtype=np.int64), first


def _numbered_within(name: str, parent: Layer, label: Ints) -> Layer:
    """Make a level whose geounits are coded as the parent's geocode, a dash, and a number from 1.

    `label` numbers the new geounits, those of one parent after those of the parents before it.
    """
    above = np.empty(int(label.max()) + 1, dtype=np.int64)
    above[label] = parent.label
    starts = np.flatnonzero(np.concatenate([[True], above[1:] != above[:-1]]))
    counts = np.diff(np.append(starts, len(above)))
    number = np.arange(len(above)) - np.repeat(starts, counts) + 1
    width = len(str(int(counts.max())))
    text = np.char.zfill(number.astype(f"U{width}"), width).astype(f"S{width}")
    codes = np.char.add(np.char.add(parent.codes[above], b"-"), text)
    return Layer(name, label, codes, official=False)
