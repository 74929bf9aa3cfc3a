"""States by name, postal code and FIPS code: the 50 states, the District of Columbia and Puerto Rico."""

from __future__ import annotations

from dataclasses import dataclass

from opendas.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class State:
    """One state."""

    fips: str  # two digits
    postal: str  # two capital letters
    name: str


_TABLE = """
01 AL Alabama; 02 AK Alaska; 04 AZ Arizona; 05 AR Arkansas; 06 CA California; 08 CO Colorado;
09 CT Connecticut; 10 DE Delaware; 11 DC District of Columbia; 12 FL Florida; 13 GA Georgia; 15 HI Hawaii;
16 ID Idaho; 17 IL Illinois; 18 IN Indiana; 19 IA Iowa; 20 KS Kansas; 21 KY Kentucky; 22 LA Louisiana;
23 ME Maine; 24 MD Maryland; 25 MA Massachusetts; 26 MI Michigan; 27 MN Minnesota; 28 MS Mississippi;
29 MO Missouri; 30 MT Montana; 31 NE Nebraska; 32 NV Nevada; 33 NH New Hampshire; 34 NJ New Jersey;
35 NM New Mexico; 36 NY New York; 37 NC North Carolina; 38 ND North Dakota; 39 OH Ohio; 40 OK Oklahoma;
41 OR Oregon; 42 PA Pennsylvania; 44 RI Rhode Island; 45 SC South Carolina; 46 SD South Dakota;
47 TN Tennessee; 48 TX Texas; 49 UT Utah; 50 VT Vermont; 51 VA Virginia; 53 WA Washington;
54 WV West Virginia; 55 WI Wisconsin; 56 WY Wyoming; 72 PR Puerto Rico
"""

STATES: tuple[State, ...] = tuple(
    State(*entry.strip().split(" ", 2)) for entry in _TABLE.replace("\n", " ").split(";")
)
"""In order of FIPS code."""


def find_state(text: str) -> State:
    """Return the state that a name, a postal code or a FIPS code means, in any case.

    Raises
    ------
    ConfigError
        If there is none; names the nearest.

    Examples
    --------
    >>> find_state("ri").name
    'Rhode Island'
    >>> find_state("new_york").fips
    '36'
    """
    wanted = text.strip().replace("_", " ").casefold()
    for state in STATES:
        if wanted in (state.fips, state.postal.casefold(), state.name.casefold()):
            return state
    hint = nearest(
        wanted.title(), [state.name for state in STATES], "give a name, a postal code or a FIPS code."
    )
    raise ConfigError(f"no state {text!r}; {hint}")
