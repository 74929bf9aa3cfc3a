"""The allocations that were published, as printed.

Sources
-------
Production, United States: the TopDown paper, Tables 6 to 8. Production, Puerto Rico: the public release of
the 2020 redistricting production code (strategy ``ProductionCandidate20210527PR_mult8_add02_dsepJune3`` and
its run certificates). April 2021 demonstration data: the TopDown paper, section 8.1 and Tables 3 to 5.

A table has a header of geolevels and a line per query group; ``-`` means not measured. Query names are
written without the spaces around ``*``.
"""

from __future__ import annotations

__all__ = ["APRIL_2021_PERSONS", "APRIL_2021_UNITS", "PR_2020_PERSONS", "PR_2020_UNITS"]
__all__ += ["US_2020_PERSONS", "US_2020_UNITS"]

US_2020_PERSONS = """
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

PR_2020_PERSONS = """
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

US_2020_UNITS = """
.           us     state  county  tract     block_group  block
(geolevel)  1/205  1/205  7/82    364/1025  1759/4100    99/820
detailed    1      1      1       1         1            1
"""

PR_2020_UNITS = """
.           state        county        tract         block_group    block
(geolevel)  5047/876580  18746/219145  94451/262974  281911/657435  99/820
detailed    1            1             1             1              1
"""

APRIL_2021_PERSONS = """
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

APRIL_2021_UNITS = """
.           us      state   county   tract    block_group  block
(geolevel)  1/1024  1/1024  18/1024  75/1024  906/1024     23/1024
detailed    1       1       1        1        1            1
"""
