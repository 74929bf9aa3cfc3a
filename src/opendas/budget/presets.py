"""Named budgets: the published allocations and two of this project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import MappingProxyType

from opendas.budget.allocation import exact_shares
from opendas.errors import ConfigError, nearest

# The published allocations, as printed.
#
# Sources
# -------
# Production, United States: the TopDown paper, Tables 6 to 8. Production, Puerto Rico: the public release of
# the 2020 redistricting production code (strategy ``ProductionCandidate20210527PR_mult8_add02_dsepJune3`` and
# its run certificates). April 2021 demonstration data: the TopDown paper, section 8.1 and Tables 3 to 5.
#
# 2020 DHC: the public release of the 2020 DHC production code, whose strategies state the rho of every query
# group at every geolevel. ``tenvacgq`` is of the companion of the units product.
# A table has a header of geolevels and a line per query group; ``-`` means not measured. Query names omit the
# spaces around ``*``. A table of shares begins with a dot and has a line of geolevel shares. A table of
# losses begins with its unit of rho and sums to the total.

_US_2020_PERSONS = """
.                           us        state      county     tract      block_group  block
(geolevel)                  104/4099  1440/4099  447/4099   687/4099   1256/4099    165/4099
total                       -         3773/4097  3126/4097  1567/4102  1705/4099    5/4097
cenrace                     52/4097   6/4097     10/4097    4/2051     3/4099       9/4097
hispanic                    26/4097   6/4097     10/4097    5/4102     3/4099       5/4097
votingage                   26/4097   6/4097     10/4097    5/4102     3/4099       5/4097
hhinstlevels                26/4097   6/4097     10/4097    5/4102     3/4099       5/4097
hhgq                        26/4097   6/4097     10/4097    5/4102     3/4099       5/4097
hispanic*cenrace            130/4097  12/4097    28/4097    1933/4102  1055/4099    21/4097
votingage*cenrace           130/4097  12/4097    28/4097    10/2051    9/4099       21/4097
votingage*hispanic          26/4097   6/4097     10/4097    5/4102     3/4099       5/4097
votingage*hispanic*cenrace  26/241    2/241      101/4097   67/4102    24/4099      71/4097
detailed                    189/241   230/4097   754/4097   241/2051   1288/4099    3945/4097
"""

_PR_2020_PERSONS = """
.                           state     county     tract      block_group  block
(geolevel)                  689/4099  695/4099   772/4099   1778/4099    165/4099
total                       -         3126/4097  1467/4102  1876/4103    5/4097
cenrace                     11/108    10/4097    13/4102    4/4103       9/4097
hispanic                    11/108    10/4097    1/586      4/4103       5/4097
votingage                   11/108    10/4097    1/586      4/4103       5/4097
hhinstlevels                11/108    10/4097    1/586      4/4103       5/4097
hhgq                        11/108    10/4097    1/586      4/4103       5/4097
hispanic*cenrace            53/513    28/4097    866/2051   749/4103     21/4097
votingage*cenrace           53/513    28/4097    15/2051    10/4103      21/4097
votingage*hispanic          11/108    10/4097    1/586      4/4103       5/4097
votingage*hispanic*cenrace  56/513    101/4097   50/2051    27/4103      71/4097
detailed                    25/342    754/4097   725/4102   1417/4103    3945/4097
"""

_US_2020_UNITS = """
.           us     state  county  tract     block_group  block
(geolevel)  1/205  1/205  7/82    364/1025  1759/4100    99/820
detailed    1      1      1       1         1            1
"""

_PR_2020_UNITS = """
.           state        county        tract         block_group    block
(geolevel)  5047/876580  18746/219145  94451/262974  281911/657435  99/820
detailed    1            1             1             1              1
"""

_APRIL_2021_PERSONS = """
.                           us        state     county    tract     block_group  block
(geolevel)                  51/1024   153/1024  78/1024   51/1024   172/1024     519/1024
total                       -         678/1024  342/1024  1/1024    572/1024     1/1024
cenrace                     2/1024    1/1024    1/1024    2/1024    1/1024       2/1024
hispanic                    1/1024    1/1024    1/1024    1/1024    1/1024       1/1024
votingage                   1/1024    1/1024    1/1024    1/1024    1/1024       1/1024
hhinstlevels                1/1024    1/1024    1/1024    1/1024    1/1024       1/1024
hhgq                        1/1024    1/1024    1/1024    1/1024    1/1024       1/1024
hispanic*cenrace            5/1024    2/1024    3/1024    5/1024    3/1024       5/1024
votingage*cenrace           5/1024    2/1024    3/1024    5/1024    3/1024       5/1024
votingage*hispanic          1/1024    1/1024    1/1024    1/1024    1/1024       1/1024
votingage*hispanic*cenrace  17/1024   6/1024    11/1024   17/1024   8/1024       17/1024
detailed                    990/1024  330/1024  659/1024  989/1024  432/1024     989/1024
"""

_APRIL_2021_UNITS = """
.           us      state   county   tract    block_group  block
(geolevel)  1/1024  1/1024  18/1024  75/1024  906/1024     23/1024
detailed    1       1       1        1        1            1
"""

_US_2020_DHC_PERSONS = """
1/10000 us state county prim tract_subset_group tract_subset block_group block
relgq_4_groups*age_18_64_116                                     73  999  310  478  478  868  430   11
sex*age_18_64_116                                                73  999  310  478  478  868  430   11
sex*age_38_groups                                                73  999  310  478  478  868  430   11
sex*hispanic                                                     73  999  310  478  478  868  430   11
relgq_4_groups*sex                                               73  999  310  478  478  868  430   11
gq_constr_groups*age_10_groups                                  292 3996 1240 1912 1912 3472  430   11
popSehsdTargetsRelship                                           73  999 1240  478  478 3472  430   11
relship_and_eight_level_GQ*sex*age_40_groups*hispanic*cenrace    73  999  310  478  478  868  430   11
relgq*sex*age_40_groups*hispanic*cenrace                         73  999  310  478  478  868  430   11
detailed                                                         73  999  310  478  478  868  430   11
"""

_PR_2020_DHC_PERSONS = """
1/10000 state county prim tract_subset_group tract_subset block_group block
relgq_4_groups*age_18_64_116                                   1009  320  490  490  878  446   11
sex*age_18_64_116                                              1011  320  490  490  878  446   11
sex*age_38_groups                                              1011  320  490  490  878  446   11
sex*hispanic                                                   1011  320  490  490  878  446   11
relgq_4_groups*sex                                             1011  320  490  490  878  446   11
gq_constr_groups*age_10_groups                                 4045 1280 1961 1961 3512  446   11
popSehsdTargetsRelship                                         1011 1280  490  490 3512  446   11
relship_and_eight_level_GQ*sex*age_40_groups*hispanic*cenrace  1011  320  490  490  878  446   11
relgq*sex*age_40_groups*hispanic*cenrace                       1011  320  490  490  878  446   11
detailed                                                       1011  320  490  490  878  446   11
"""

_TYPE = "DetailedCoupleTypeMultGenDetOwnChildSize"

_US_2020_DHC_UNITS = f"""
1/10000 us state county prim tract_subset_group tract_subset block_group block
hisp*hhtenshort_2lev*multig                                  792  714  986  973  973 1150  291   11
hisp*hhtenshort_2lev                                         212  193  266  214  214  310   78    3
hisp*race*hhtenshort_2lev                                    212  191 1500 1500 1500 1750  442   17
sex*hhtenshort_2lev*partner_type_detailed_own_child_status   792 1428 1972 1946 1946 2300  581   22
hisp*hhtenshort_2lev*coupled_hh_type                         792  714 3944  973  973 4601 1162   44
sex*hisp*race*hhtenshort_3lev*{_TYPE}                        257 3216 1380  973  973 1610  407   15
sex*hhage*hisp*race*hhtenshort_3lev*{_TYPE}                  257 3216 1380  973  973 1610  407   15
hhage*hhtenshort_3lev*{_TYPE}                                212  193  266  214  214  310   78    3
detailed                                                    1049 3931 1380  973  973 1610  407   15
tenvacgq                                                     259 3216 1380  973  973 1610  407   15
"""

_PR_2020_DHC_UNITS = f"""
1/10000 state county prim tract_subset_group tract_subset block_group block
hisp*hhtenshort_2lev*multig                                  748 1041 1054 1054 1205  346   11
hisp*hhtenshort_2lev                                         202  281  232  232  325   93    3
hisp*race*hhtenshort_2lev                                    200 1584 1624 1624 1833  526   17
sex*hhtenshort_2lev*partner_type_detailed_own_child_status  1496 2082 2107 2107 2410  691   22
hisp*hhtenshort_2lev*coupled_hh_type                         748 4164 1054 1054 4820 1382   44
sex*hisp*race*hhtenshort_3lev*{_TYPE}                       3368 1457 1054 1054 1687  484   15
sex*hhage*hisp*race*hhtenshort_3lev*{_TYPE}                 3368 1457 1054 1054 1687  484   15
hhage*hhtenshort_3lev*{_TYPE}                                202  281  232  232  325   93    3
detailed                                                    4117 1457 1054 1054 1687  484   15
tenvacgq                                                    3364 1457 1054 1054 1687  484   15
"""

# This project's: the production rho, with shares derived from public sizes for the informed estimator by
# experiments/equal_rho.py, which also measures their gains and losses.

_OPENDAS_2026_PERSONS = """
.                   state       county      tract       block_group  block
(geolevel)          689/4099    695/4099    772/4099    1778/4099    165/4099
total               -           6174/10000  2573/10000  3434/10000   320/10000
votingage           1087/10000  652/10000   850/10000   862/10000    458/10000
hispanic            1059/10000  648/10000   676/10000   743/10000    399/10000
cenrace             1097/10000  200/10000   47/10000    563/10000    482/10000
votingage*hispanic  1257/10000  2/10000     3/10000     1/10000      171/10000
hispanic*cenrace    1620/10000  141/10000   3748/10000  1195/10000   719/10000
votingage*cenrace   58/10000    18/10000    14/10000    37/10000     153/10000
detailed            2612/10000  1755/10000  1929/10000  3105/10000   7238/10000
hhinstlevels        10/10000    10/10000    10/10000    10/10000     10/10000
hhgq                1200/10000  400/10000   150/10000   50/10000     50/10000
"""

_OPENDAS_2026_BLOCKS_PERSONS = """
.                   state       county      tract       block_group  block
(geolevel)          1215/10000  1927/10000  1031/10000  4335/10000   1492/10000
total               -           5601/10000  2397/10000  4372/10000   270/10000
votingage           1302/10000  968/10000   1080/10000  225/10000    1539/10000
hispanic            1286/10000  954/10000   881/10000   168/10000    1098/10000
cenrace             1802/10000  250/10000   74/10000    165/10000    1401/10000
votingage*hispanic  896/10000   23/10000    161/10000   27/10000     178/10000
hispanic*cenrace    825/10000   317/10000   4931/10000  1778/10000   2275/10000
votingage*cenrace   74/10000    69/10000    96/10000    64/10000     201/10000
detailed            2605/10000  1408/10000  220/10000   3141/10000   2978/10000
hhinstlevels        10/10000    10/10000    10/10000    10/10000     10/10000
hhgq                1200/10000  400/10000   150/10000   50/10000     50/10000
"""

_OPENDAS_2026_UNITS = """
.           state  county  tract  block_group  block
(geolevel)  1/100  6/100   21/100  44/100      28/100
detailed    1      1       1       1           1
"""


@dataclass(frozen=True, slots=True)
class Preset:
    """A named allocation.

    - `description`: its use, in one line.
    - `source`: publication that prints it.
    - `product`: the built-in product that it is for.
    - `geolevels`: top first; sums to exactly 1.
    - `queries`: geolevel -> query group -> share; each geolevel sums to exactly 1.
    """

    name: str
    description: str
    source: str
    product: str
    rho: Fraction
    geolevels: Mapping[str, Fraction]
    queries: Mapping[str, Mapping[str, Fraction]]
    estimator: str | None = None
    """Estimator that the shares were derived for, if they need it."""


_PAPER = "TopDown paper, Tables 3 to 5"
_PRODUCTION = "TopDown paper, Tables 6 to 8; run certificates"
_CODE = "2020 redistricting production code and run certificates"
_DHC_CODE = "2020 DHC production code, persons strategies"
_DHC_UNITS_CODE = "2020 DHC production code, units strategies"
_OURS = "OpenDAS, experiments/equal_rho.py"
_OURS_TRIED = "OpenDAS, experiments/no_row_worse.py"
# name -> description, source, product, rho (None: the sum of the table), table
_PRESETS: Mapping[str, tuple[str, str, str, str | None, str]] = {
    "us2020-persons": (
        "2020 redistricting data, persons, 50 states and DC",
        _PRODUCTION,
        "pl94-persons",
        "293764/114921",
        _US_2020_PERSONS,
    ),
    "pr2020-persons": (
        "2020 redistricting data, persons, Puerto Rico; fits any run rooted at a state",
        _CODE,
        "pl94-persons",
        "293764/114921",
        _PR_2020_PERSONS,
    ),
    "us2020-units": (
        "2020 redistricting data, housing units, 50 states and DC",
        _PRODUCTION,
        "pl94-units",
        "11417641/152349649",
        _US_2020_UNITS,
    ),
    "pr2020-units": (
        "2020 redistricting data, housing units, Puerto Rico; fits any run rooted at a state",
        _CODE,
        "pl94-units",
        "11417641/152349649",
        _PR_2020_UNITS,
    ),
    "opendas2026-persons": (
        "production rho and geolevels, for informed; fits any run rooted at a state",
        _OURS,
        "pl94-persons",
        "293764/114921",
        _OPENDAS_2026_PERSONS,
    ),
    "opendas2026-blocks-persons": (
        "production rho moved to blocks, for informed; fits any run rooted at a state",
        _OURS,
        "pl94-persons",
        "293764/114921",
        _OPENDAS_2026_BLOCKS_PERSONS,
    ),
    "opendas2026-units": (
        "production rho, more of it for blocks, for informed; fits any run rooted at a state",
        _OURS_TRIED,
        "pl94-units",
        "11417641/152349649",
        _OPENDAS_2026_UNITS,
    ),
    "april2021-persons": (
        "April 2021 demonstration data, persons, the larger budget (rho 1.095 with units)",
        _PAPER,
        "pl94-persons",
        "1.05",
        _APRIL_2021_PERSONS,
    ),
    "april2021-units": (
        "April 2021 demonstration data, units, the larger budget (rho 1.095 with persons)",
        _PAPER,
        "pl94-units",
        "0.045",
        _APRIL_2021_UNITS,
    ),
    "april2021-low-persons": (
        "April 2021 demonstration data, persons, the smaller budget (rho 0.1885 with units)",
        _PAPER,
        "pl94-persons",
        "0.185",
        _APRIL_2021_PERSONS,
    ),
    "april2021-low-units": (
        "April 2021 demonstration data, units, the smaller budget (rho 0.1885 with persons)",
        _PAPER,
        "pl94-units",
        "0.0035",
        _APRIL_2021_UNITS,
    ),
    "us2020-dhc-persons": (
        "2020 DHC, persons, 50 states and DC",
        _DHC_CODE,
        "dhc-persons",
        None,
        _US_2020_DHC_PERSONS,
    ),
    "pr2020-dhc-persons": (
        "2020 DHC, persons, Puerto Rico; fits any run rooted at a state",
        _DHC_CODE,
        "dhc-persons",
        None,
        _PR_2020_DHC_PERSONS,
    ),
    "us2020-dhc-units": (
        "2020 DHC, households and units, 50 states and DC",
        _DHC_UNITS_CODE,
        "dhc-units",
        None,
        _US_2020_DHC_UNITS,
    ),
    "pr2020-dhc-units": (
        "2020 DHC, households and units, Puerto Rico; fits any run rooted at a state",
        _DHC_UNITS_CODE,
        "dhc-units",
        None,
        _PR_2020_DHC_UNITS,
    ),
}


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(_PRESETS)


@cache
def preset(name: str) -> Preset:
    """Return a preset by name.

    Raises `ConfigError` if no preset has this name; suggests the nearest.
    """
    if name not in _PRESETS:
        raise ConfigError(f"there is no budget preset {name!r}; {nearest(name, _PRESETS)}")
    description, source, product, rho, table = _PRESETS[name]
    if rho is None:
        total, geolevels, queries = _read_losses(table)
    else:
        total, (geolevels, queries) = Fraction(rho), _read_shares(table, name)
    return Preset(
        name=name,
        description=description,
        source=source,
        product=product,
        rho=total,
        geolevels=geolevels,
        queries=queries,
        estimator="informed" if source in (_OURS, _OURS_TRIED) else None,
    )


_LevelShares = Mapping[str, Fraction]
_QueryShares = Mapping[str, Mapping[str, Fraction]]


def _read_shares(table: str, name: str) -> tuple[_LevelShares, _QueryShares]:
    """Parse a printed table of shares: a header, the geolevel shares, a line per query group."""
    header, level_shares, *lines = (line.split() for line in table.strip().splitlines())
    levels = header[1:]
    geolevels = exact_shares(dict(zip(levels, level_shares[1:], strict=True)), f"Preset {name}, geolevels")
    exact = {
        level: MappingProxyType(exact_shares(shares, f"Preset {name}, {level}"))
        for level, shares in _columns(levels, lines).items()
    }
    return MappingProxyType(geolevels), MappingProxyType(exact)


def _read_losses(table: str) -> tuple[Fraction, _LevelShares, _QueryShares]:
    """Parse a printed table of losses, whose header has their unit, into the total and its shares."""
    header, *lines = (line.split() for line in table.strip().splitlines())
    unit, levels = Fraction(header[0]), header[1:]
    losses = {
        level: {query: unit * Fraction(loss) for query, loss in column.items()}
        for level, column in _columns(levels, lines).items()
    }
    spent = {level: sum(column.values(), Fraction(0)) for level, column in losses.items()}
    total = sum(spent.values(), Fraction(0))
    shares = {
        level: MappingProxyType({query: loss / spent[level] for query, loss in column.items()})
        for level, column in losses.items()
    }
    geolevels = {level: rho / total for level, rho in spent.items()}
    return total, MappingProxyType(geolevels), MappingProxyType(shares)


def _columns(levels: list[str], lines: Iterable[list[str]]) -> dict[str, dict[str, str]]:
    """Return geolevel -> measured query group -> printed entry."""
    columns: dict[str, dict[str, str]] = {level: {} for level in levels}
    for query, *entries in lines:
        for level, entry in zip(levels, entries, strict=True):
            if entry != "-":
                columns[level][" * ".join(query.split("*"))] = entry
    return columns
