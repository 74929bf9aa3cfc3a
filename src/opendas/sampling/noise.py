"""Noise as a pure function of a key and an address.

A draw encrypts its address (its layout stands below) as one AES-256 block. The first 8 bytes of the
ciphertext, little-endian, are the word that :mod:`opendas.sampling.inverse_cdf` turns into an integer; the
other 8 bytes are not used. A word that does not decide the draw is extended by the words of the same address
with refinement 1, 2, ...

Axes: ``C`` geounits, ``m`` cells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from threading import local
from typing import Any, NamedTuple, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numba import njit
from numpy.typing import ArrayLike, NDArray

from opendas.arrays import Ints
from opendas.errors import EnvironmentFailure, PrivacyError
from opendas.sampling.inverse_cdf import SamplerTable

# The address of a draw: one AES block that names a cell of a measurement.
#
# Bits, most significant first::
#
#     geolevel 8 | geounit 40 | query 16 || cell 48 | refinement 16
#
# The two 64-bit halves are stored in this order, each little-endian, as the 16 bytes of the block. Nothing is
# hashed or cut: an index that does not fit is refused, so that different cells have different blocks.


LEVEL_BITS = 8
UNIT_BITS = 40
QUERY_BITS = 16
CELL_BITS = 48
REFINEMENT_BITS = 16


def index_array(field: str, values: ArrayLike, bits: int) -> Ints:
    """Check that all ``values`` fit in ``bits`` bits; return them one after the other.

    They are contiguous and read-only, so that one compiled version of the kernels serves all callers.
    """
    array = np.asarray(values)
    if array.dtype != np.int64:
        if array.dtype.kind not in "iu" and array.size:
            raise PrivacyError(f"{field} indices have type {array.dtype}; an address is made of integers.")
        # An unsigned value beyond int64 turns negative here, and is refused below.
        array = array.astype(np.int64)
    indices = np.ascontiguousarray(array.reshape(-1)).view()
    indices.flags.writeable = False
    if not _fit(indices, bits):
        raise PrivacyError(
            f"A {field} index does not fit in the {bits} bits that a noise address has for it "
            f"(0 to {2**bits - 1}). Two draws would share noise, so nothing is drawn."
        )
    return indices


def scalar_index(field: str, value: int, bits: int) -> int:
    """Check one index as :func:`index_array` does, without making an array."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < 1 << bits:
        return int(value)
    index_array(field, value, bits)
    raise PrivacyError(f"The {field} of a draw is a single integer, not an array.")


@njit(cache=True, nogil=True)
def _fit(values: Any, bits: Any) -> Any:
    seen = np.int64(0)
    for value in values:
        seen |= value >> bits  # 0 exactly for values from 0 to 2**bits - 1
    return seen == 0


@njit(cache=True, nogil=True)
def fill_addresses(blocks: Any, level: Any, query: Any, units: Any, cells: Any, start: Any) -> Any:
    """Write the addresses ``start, start + 1, ...`` of the grid units x cells into ``blocks``.

    All indices were checked before. ``blocks`` has shape (n, 2), ``units`` (C,), ``cells`` (m,).
    """
    m = cells.shape[0]
    count = blocks.shape[0]
    unit, cell = start // m, start % m
    written = 0
    while written < count:
        head = np.uint64(level << 56 | units[unit] << 16 | query)
        stretch = min(m - cell, count - written)
        rows, run = blocks[written : written + stretch], cells[cell : cell + stretch]
        for j in range(stretch):  # over slices: the compiler vectorises it, three times as fast
            rows[j, 0] = head
            rows[j, 1] = np.uint64(run[j] << 16)
        written += stretch
        cell = 0
        unit += 1


@njit(cache=True, nogil=True)
def fill_pairs(blocks: Any, level: Any, query: Any, units: Any, cells: Any, start: Any) -> Any:
    """Write the addresses of the pairs ``start, start + 1, ...`` of a unit and a cell into ``blocks``.

    All indices were checked before. ``units`` and ``cells`` have shape (N,).
    """
    count = blocks.shape[0]
    of, run = units[start : start + count], cells[start : start + count]
    for j in range(count):
        blocks[j, 0] = np.uint64(level << 56 | of[j] << 16 | query)
        blocks[j, 1] = np.uint64(run[j] << 16)


@njit(cache=True, nogil=True)
def add_to_groups(values: Any, start: Any, group: Any, cells: Any, sums: Any) -> Any:
    """Add the values at ``start, start + 1, ...`` of the grid units x cells to their unit's row of ``sums``.

    Each in the column of its cell. ``group`` has shape (C,), ``cells`` (m,), ``sums`` (G, M).
    """
    m = cells.shape[0]
    unit, cell = start // m, start % m
    added = 0
    while added < values.shape[0]:
        stretch = min(m - cell, values.shape[0] - added)
        run, places, to = values[added : added + stretch], cells[cell : cell + stretch], sums[group[unit]]
        for j in range(stretch):
            to[places[j]] += run[j]
        added += stretch
        cell = 0
        unit += 1


_KEY_BYTES = 32
_BLOCK_BYTES = 16
#: Blocks encrypted in one call: addresses and words together stay in a core's second-level cache.
_CHUNK = 8192

Request = tuple[SamplerTable, ArrayLike, int, ArrayLike]
SumRequest = tuple[SamplerTable, ArrayLike, int, ArrayLike, Ints, Ints]


class NoiseSource:
    """Exact noise under one derived key.

    The same key, table and address give the same value in whatever call, order, thread or process. Threads
    may share a source; a worker process makes its own from the key bytes.

    `key`, 32 bytes: from :meth:`opendas.custody.run_key.RunKey.derive`.
    """

    __slots__ = ("_cipher", "_local")

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
            raise PrivacyError(
                f"A noise key is {_KEY_BYTES} bytes; what was given is not. Nothing was drawn."
            )
        if sys.byteorder != "little":
            raise EnvironmentFailure("Noise addresses are little-endian; this machine is not supported.")
        # ECB on distinct blocks is the block cipher itself used as a pseudo-random function: that is what an
        # addressable source needs, and there is no plaintext to hide.
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())
        self._local = local()

    def __repr__(self) -> str:
        return "NoiseSource(<key>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A noise source is not pickled. Pass its key bytes to the worker and make one there.")

    def draw_many(self, level: int, requests: Sequence[Request]) -> list[Ints]:
        """Draw several grids of one geolevel; small ones share one call of the cipher.

        - `level`: geolevel, 8 bits.
        - `requests` (table, unit, query, cells): the law; geounit indices in the spine of the run, 40 bits,
          int or int array (C,); the query group, 16 bits; cell indices in the *full* query, 48 bits, int
          array (m,).
        - Returns: in counts, one array a request, of shape ``unit.shape + cells.shape``: (m,) for a single
          geounit, (C, m) for several.

        Raises `PrivacyError` if an index does not fit its field. Nothing is drawn then.
        """
        prepared: list[_Prepared] = []
        for request in requests:
            # Often all requests have the same geounits: they are checked once.
            alike = bool(prepared) and request[1] is requests[len(prepared) - 1][1]
            checked = _Prepared.checked(level, request, prepared[-1] if alike else None)
            out = np.empty(np.shape(request[1]) + np.shape(request[3]), dtype=np.int64)
            prepared.append(checked._replace(out=out))
        self._run(prepared)
        return [request.out for request in prepared]

    def draw_pairs(self, level: int, requests: Sequence[Request]) -> list[Ints]:
        """Draw the noise of pairs of a geounit and a cell, of several query groups of one geolevel.

        - `level`: geolevel, 8 bits.
        - `requests` (table, units, query, cells): as for :meth:`draw_many`, but with as many geounits as
          cells, int arrays (N,).
        - Returns (N,): the draw of each pair, one array a request.

        Raises `PrivacyError` if an index does not fit its field, or geounits and cells differ in number.
        Nothing is drawn then.
        """
        prepared: list[_Prepared] = []
        for request in requests:
            checked = _Prepared.checked(level, request)
            if checked.units.size != checked.cells.size:
                raise PrivacyError("Pairs of geounits and cells differ in number. Nothing was drawn.")
            out = np.empty(checked.cells.size, dtype=np.int64)
            prepared.append(checked._replace(out=out, pairs=True))
        self._run(prepared)
        return [request.out for request in prepared]

    def add_sums(self, level: int, requests: Sequence[SumRequest]) -> None:
        """Add the draws of several grids of one geolevel to sums over groups of geounits; keep none of them.

        - `level`: geolevel, 8 bits.
        - `requests` (table, units, query, cells, group, sums): the first four as for :meth:`draw_many`;
          ``group``, int64 (C,), tells to which row of ``sums``, int64 (G, M), each geounit's draws are added,
          each in the column with the number of its cell.

        Raises `PrivacyError` if an index does not fit its field, or sums have no place for a draw. Nothing is
        drawn then.
        """
        prepared: list[_Prepared] = []
        for i, request in enumerate(requests):
            alike = i > 0 and request[1] is requests[i - 1][1] and request[4] is requests[i - 1][4]
            prepared.append(_summing(level, request, prepared[-1] if alike else None))
        self._run(prepared)

    def words_at(self, level: int, unit: int, query: int) -> Callable[..., NDArray[np.uint64]]:
        """Return the random bits of one query group at one geounit.

        As :class:`opendas.sampling.mechanisms.KeyedWords`: those of number `n` and refinement `r` are what a
        draw takes for cell `n` and refinement `r`.

        Raises `PrivacyError` on use, if an index does not fit its field.
        """

        def words(numbers: Ints, refinement: int = 0) -> NDArray[np.uint64]:
            cells = index_array("cell", numbers, CELL_BITS)
            units = index_array("geounit", [unit], UNIT_BITS)
            heads = scalar_index("geolevel", level, LEVEL_BITS), scalar_index("query", query, QUERY_BITS)
            more = np.uint64(scalar_index("refinement", refinement, REFINEMENT_BITS))
            out, scratch = np.empty(len(cells), dtype=np.uint64), self._scratch()
            for start in range(0, len(cells), _CHUNK):
                size = min(_CHUNK, len(cells) - start)
                blocks = scratch.blocks[:size]
                fill_addresses(blocks, *heads, units, cells, start)
                blocks[:, 1] |= more
                scratch.encrypt(size)
                out[start : start + size] = scratch.words[:size, 0]
            return out

        return words

    def _run(self, requests: Sequence[_Prepared]) -> None:
        scratch = self._scratch()
        pending: list[_Piece] = []
        used = 0
        for request in requests:
            start = 0
            while start < request.size:
                size = min(_CHUNK - used, request.size - start)
                blocks = scratch.blocks[used : used + size]
                fill = fill_pairs if request.pairs else fill_addresses
                fill(blocks, request.level, request.query, request.units, request.cells, start)
                pending.append(_Piece(request, start, used, size))
                start += size
                used += size
                if used == _CHUNK:
                    self._finish(scratch, pending, used)
                    pending, used = [], 0
        if used:
            self._finish(scratch, pending, used)

    def _finish(self, scratch: _Scratch, pending: Sequence[_Piece], used: int) -> None:
        scratch.encrypt(used)
        for request, start, first, size in pending:
            words = scratch.words[first : first + size]
            keep = request.group is None
            out = request.out.reshape(-1)[start : start + size] if keep else scratch.values[:size]
            undecided = request.table.lookup(words, out, scratch.ties)
            for i in scratch.ties[:undecided].tolist():
                more = partial(self._word, scratch.blocks[first + i].tobytes())
                out[i] = request.table.resolve(int(words[i, 0]), more)
            if request.group is not None:
                add_to_groups(out, start, request.group, request.cells, request.out)

    def _word(self, block: bytes, refinement: int) -> int:
        low = int.from_bytes(block[8:], "little") | refinement
        refined = self._cipher.encryptor().update(block[:8] + low.to_bytes(8, "little"))
        return int.from_bytes(refined[:8], "little")

    def _scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch(self._cipher)
        return scratch


_NOWHERE = np.zeros(0, dtype=np.int64)


class _Prepared(NamedTuple):
    """A checked request and the place for its draws, or, with groups, for their sums."""

    table: SamplerTable
    level: int
    query: int
    units: Ints
    cells: Ints
    out: Ints = _NOWHERE
    group: Ints | None = None
    groups: int = 0
    pairs: bool = False

    @property
    def size(self) -> int:
        """Number of draws."""
        return self.cells.size if self.pairs else self.units.size * self.cells.size

    @classmethod
    def checked(cls, level: int, request: Request, alike: _Prepared | None = None) -> _Prepared:
        """Check a request, without a place for its draws; `alike` has the same geounits, and was checked."""
        table, unit, query, cells = request
        units = index_array("geounit", unit, UNIT_BITS) if alike is None else alike.units
        return cls(
            table,
            scalar_index("geolevel", level, LEVEL_BITS),
            scalar_index("query", query, QUERY_BITS),
            units,
            index_array("cell", cells, CELL_BITS),
        )


def _summing(level: int, request: SumRequest, alike: _Prepared | None) -> _Prepared:
    """Check a request for sums; `alike` has the same geounits and groups, and was checked."""
    table, units, query, cells, group, sums = request
    found = _Prepared.checked(level, (table, units, query, cells), alike)
    if alike is None or alike.group is None:
        if len(group) != found.units.size or (found.units.size and group.min() < 0):
            raise PrivacyError("Sums of draws need a group for every geounit. Nothing was drawn.")
        group = np.ascontiguousarray(group, dtype=np.int64)
        groups = int(group.max(initial=-1)) + 1
    else:
        group, groups = alike.group, alike.groups
    if groups > len(sums) or int(found.cells.max(initial=-1)) >= sums.shape[1]:
        raise PrivacyError("Sums of draws need a place for every group and cell. Nothing was drawn.")
    return found._replace(out=sums, group=group, groups=groups)


class _Piece(NamedTuple):
    """Draws ``start ... start + size`` of a request, at ``first`` in the scratch blocks."""

    request: _Prepared
    start: int
    first: int
    size: int


class _Scratch:
    """The buffers and cipher context of one thread."""

    __slots__ = ("_blocks_bytes", "_encryptor", "_words_bytes", "blocks", "ties", "values", "words")

    def __init__(self, cipher: Cipher[modes.ECB]) -> None:
        self.blocks = np.zeros((_CHUNK, 2), dtype=np.uint64)
        # The cipher asks for room for one block more than it writes.
        self.words = np.zeros((_CHUNK + 1, 2), dtype=np.uint64)
        self.ties = np.zeros(_CHUNK, dtype=np.int64)
        self.values = np.zeros(_CHUNK, dtype=np.int64)
        self._blocks_bytes = self.blocks.reshape(-1).view(np.uint8).data
        self._words_bytes = self.words.reshape(-1).view(np.uint8).data
        # Whole blocks in ECB leave no state behind, so a context can be used again, and survives a fork.
        self._encryptor = cipher.encryptor()

    def encrypt(self, count: int) -> None:
        """Encrypt the first ``count`` addresses into words."""
        self._encryptor.update_into(self._blocks_bytes[: count * _BLOCK_BYTES], self._words_bytes)
