"""A spine in the making: levels as labels of leaves, which steps regroup before they become a spine.

Axes: ``b`` leaves in the order of the frame; ``k`` geounits of one level, numbered in the order in which they
will stand on the spine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opendas.arrays import Codes, Ints
from opendas.errors import ConfigError, Finding, GeographyError
from opendas.geography.frame import Frame
from opendas.geography.spine import Spine, SpineLevel

__all__ = ["Draft", "Layer", "combine", "draft_of", "numbered", "standard_spine"]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One level of a draft.

    Parameters
    ----------
    name : str
        Geolevel.
    label : int64 (b,)
        Number of the geounit that each leaf lies in; every number from 0 occurs.
    codes : bytes array (k,)
        Geocode of each geounit.
    official : bool
        The geounits are those of the published geography, undivided.
    whole : int64 (k,) or None
        At the topmost level with parts of official geounits: number of the one that each is a part of.
    """

    name: str
    label: Ints
    codes: Codes
    official: bool = True
    whole: Ints | None = None

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Levels of a spine, the top first and the leaves last.

    Parameters
    ----------
    frame : Frame
    layers : tuple of Layer
        The last one has one geounit a leaf.
    """

    frame: Frame
    layers: tuple[Layer, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Geolevel names, top first."""
        return tuple(layer.name for layer in self.layers)

    def index(self, name: str, why: str) -> int:
        """Return the place of a level.

        Raises
        ------
        ConfigError
            If there is none of that name; `why` says who asked.
        """
        if name not in self.names:
            raise ConfigError(
                f"[geography] spine: {why} needs the level {name!r}, which the spine does not have at that "
                f"step; it has {', '.join(self.names)}."
            )
        return self.names.index(name)

    def inserted(self, place: int, layer: Layer) -> Draft:
        """Return the draft with one more level at `place`."""
        if layer.name in self.names:
            raise ConfigError(
                f"[geography] spine: two levels would have the name {layer.name!r}; give the step another."
            )
        return replace(self, layers=(*self.layers[:place], layer, *self.layers[place:]))

    def changed(self, place: int, *layers: Layer) -> Draft:
        """Return the draft with the levels from `place` on replaced by `layers`, one for one."""
        rest = self.layers[place + len(layers) :]
        return replace(self, layers=(*self.layers[:place], *layers, *rest))

    def without(self, place: int) -> Draft:
        """Return the draft without the level at `place`."""
        return replace(self, layers=(*self.layers[:place], *self.layers[place + 1 :]))

    def spine(self) -> Spine:
        """Return the finished spine, every budget share its level's own.

        Raises
        ------
        GeographyError
            If a geounit lies in two parents.
        """
        order = np.lexsort(tuple(layer.label for layer in reversed(self.layers)))
        levels: list[SpineLevel] = []
        above = np.zeros(len(order), dtype=np.int64)
        for layer in self.layers:
            label = layer.label[order]
            new = np.concatenate([[True], (label[1:] != label[:-1]) | (above[1:] != above[:-1])])
            first = np.flatnonzero(new)
            found = label[first]
            if len(found) != len(layer):
                _refuse_two_parents(layer, found)
            parent = above[first] if levels else np.zeros(len(first), dtype=np.int64)
            whole = None if layer.whole is None else _side_by_side(layer.whole[found], parent)
            levels.append(SpineLevel(layer.name, layer.codes[found], parent, layer.official, whole))
            above = np.cumsum(new) - 1
        return Spine(tuple(levels), order.astype(np.int64), (None,) * len(levels))


def _side_by_side(whole: Ints, parent: Ints) -> Ints | None:
    """Number divided geounits in order; None if the parts of one are apart or have several parents.

    A later step that regroups the levels above may have torn them apart: then no total is theirs together.
    """
    new = np.diff(whole, prepend=-1) != 0
    if int(new.sum()) > len(np.unique(whole)) or bool(np.any(~new[1:] & (np.diff(parent) != 0))):
        return None
    return (np.cumsum(new) - 1).astype(np.int64)


def _refuse_two_parents(layer: Layer, found: Ints) -> None:
    label, counts = np.unique(found, return_counts=True)
    codes = layer.codes[label[counts > 1][:20]]
    raise GeographyError(
        f"a geounit of level {layer.name!r} lies in one parent.",
        [
            Finding("frame", None, layer.name, f"{bytes(code).decode()} lies in more than one parent")
            for code in codes
        ],
    )


def combine(columns: Sequence[npt.NDArray[Any]]) -> Ints:
    """Number the combinations of values of several columns, in lexicographic order.

    Parameters
    ----------
    columns : sequence of arrays (b,)
        Integers or bytes.

    Returns
    -------
    int64 (b,)
        Equal where all columns are equal; every number from 0 occurs.
    """
    found: Ints | None = None
    for column in columns:
        label = numbered(column)[1]
        if found is None:
            found = label
        else:
            found = numbered(found * (int(label.max()) + 1) + label)[1]
    if found is None:
        raise ValueError("there is no column to combine")
    return found


def numbered(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """Return the distinct values in order, and the number of each row's value, int64 (b,)."""
    if column.dtype.kind in "bi" and len(column) and 0 <= column.min() <= column.max() < 4 * len(column):
        there = np.zeros(int(column.max()) + 1, dtype=np.bool_)
        there[column.astype(np.int64)] = True
        return np.flatnonzero(there), (np.cumsum(there) - 1)[column.astype(np.int64)]
    # leaves are sorted by geocode and neighbours are mostly alike: only changes are sorted, if at all
    start = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    length = np.diff(np.append(start, len(column)))
    values = column[start]
    if bool(np.all(values[1:] > values[:-1])):
        return values, np.repeat(np.arange(len(values)), length)
    values, label = np.unique(values, return_inverse=True)
    return values, np.repeat(label.astype(np.int64), length)


def draft_of(frame: Frame) -> Draft:
    """Return the official geolevels of a frame as a draft."""
    layers = []
    for name in frame.geolevels:
        codes, label = numbered(frame.codes(name))
        layers.append(Layer(name, label, codes.astype(frame.codes(name).dtype)))
    return Draft(frame, tuple(layers))


def standard_spine(frame: Frame) -> Spine:
    """Build the spine of the official geolevels.

    Raises
    ------
    GeographyError
        If a geounit lies in two parents.
    """
    return draft_of(frame).spine()
