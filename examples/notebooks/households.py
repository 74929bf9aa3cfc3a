# %% [markdown]
# # Persons in their households: PHSafe
#
# Average household size joins persons to homes, and cannot come from a table of persons. PHSafe truncates
# large households, counts, and adds noise. This page makes a synthetic state of 20,000 households, in the
# three files that the published program reads, and releases the average size of its households.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from opendas.phsafe.posterior.post_processing import post_process
from opendas.phsafe.run import HouseholdOptions, run_private
from opendas.phsafe.tables import TABLES

rng = np.random.default_rng(7)
kinds = pd.DataFrame(
    {  # people, HHT2, HHT, CPLT, codes of the other members
        "alone": (1, "09", "4", "5", ()),
        "couple": (2, "02", "1", "1", ("21",)),
        "one child": (3, "01", "1", "1", ("21", "25")),
        "two children": (4, "01", "1", "1", ("21", "25", "25")),
        "one parent": (2, "06", "3", "5", ("25",)),
        "large": (12, "01", "1", "1", ("21", *["25"] * 10)),
    },
    index=["people", "HHT2", "HHT", "CPLT", "others"],
).T
chosen = rng.choice(
    kinds.index, size=20_000, p=[0.3, 0.28, 0.17, 0.15, 0.09, 0.01]
)
homes = kinds.loc[chosen].reset_index(drop=True)
homes["MAFID"] = 100_000_001 + np.arange(len(homes))
homes["race"] = rng.choice(
    ["01", "02", "03", "04"], size=len(homes), p=[0.75, 0.15, 0.004, 0.096]
)
homes["hispanic"] = rng.choice(["1", "2"], size=len(homes), p=[0.8, 0.2])
homes["people"].astype(int).describe().round(2)[["count", "mean", "max"]]

# %% [markdown]
# The three files: a row for each person, each unit and each place.

# %%
data = Path("data")
data.mkdir()
roles = homes["others"].map(lambda others: ("20", *others))
each = homes.assign(RELSHIP=roles).explode("RELSHIP")
child = (each["RELSHIP"] == "25").to_numpy()
pd.DataFrame(
    {
        "RTYPE": "3",
        "MAFID": each["MAFID"],
        "QAGE": np.where(
            child,
            rng.integers(0, 18, len(each)),
            rng.integers(25, 80, len(each)),
        ),
        "CENHISP": each["hispanic"],
        "CENRACE": each["race"],
        "RELSHIP": each["RELSHIP"],
    }
).to_csv(data / "persons.csv", index=False)
pd.DataFrame(
    {
        "RTYPE": "2",
        "MAFID": homes["MAFID"],
        "FINAL_POP": homes["people"],
        "NPF": homes["people"].where(homes["people"] > 1, 0),
        "HHSPAN": homes["hispanic"],
        "HHRACE": homes["race"],
        "TEN": rng.choice(["1", "2", "3"], size=len(homes)),
        "HHT": homes["HHT"],
        "HHT2": homes["HHT2"],
        "CPLT": homes["CPLT"],
    }
).to_csv(data / "units.csv", index=False)
place = {
    "TABBLKST": "44",
    "TABBLKCOU": "001",
    "TABTRACTCE": "000100",
    "TABBLK": "1000",
    "TABBLKGRPCE": "1",
}
area = {
    "REGIONCE": "1",
    "DIVISIONCE": "1",
    "PLACEFP": "99999",
    "AIANNHCE": "9999",
}
pd.DataFrame({"RTYPE": "2", "MAFID": homes["MAFID"], **place, **area}).to_csv(
    data / "geo.csv", index=False
)

# %% [markdown]
# The configuration has a budget for every table and level; 0 leaves a level out. Here the numerator and the
# denominator of the average get 1/10 each for all households, by race and by Hispanic origin. Of a household
# with more than `tau` people, `tau` are counted.

# %%
wanted = {"PH1_num", "PH1_denom"}
budgets = {
    table.name: {
        level.name: 0.1
        if table.name in wanted and level.name.startswith("state")
        else 0
        for level in table.levels
    }
    for table in TABLES
}
config = {
    "privacy_budget": budgets,
    "tau": {"PH1_num": 10, "PH2": 10, "PH3": 6, "PH4": 10, "PH6": 6, "PH7": 10},
    "state_filter": ["44"],
    "reader": "csv",
    "privacy_defn": "zcdp",
}
Path("config.json").write_text(json.dumps(config))
released = run_private(
    Path("config.json"), data, Path("out"), HouseholdOptions(seed=3)
)
{name: released[name] for name in ("tables", "stamps")}

# %% [markdown]
# What is published: noisy counts, each with the variance of its noise.

# %%
(part,) = Path("out", "PH1_num").glob("part-*.csv")
pd.read_csv(part, sep="|").head(4)

# %% [markdown]
# A quotient of noisy counts may be impossible. The model-based estimates keep the average between 1 and 10
# people, and come with 90 % credible intervals. They are computed from what is published, and cost nothing.

# %%
post_process(Path("out"))
(found,) = Path("out", "PH1", "estimates").glob("PH1_state*.csv")
estimates = (
    pd.read_csv(found, sep="|")
    .query("DATA_CELL == 1")
    .set_index("ITERATION_CODE")
)
columns = ["RATIO_NOISY", "RATIO_PRED", "RATIO_PRED_LO", "RATIO_PRED_HI"]
estimates.loc[["*", "A", "B", "C", "D", "E"], columns].round(2)

# %% [markdown]
# Beside the truth, which anyone may see of synthetic households. Truncation to ten people lowers the average
# a little: a bias, which no interval shows. No householder here is of race E (Pacific Islander): noise alone
# is known of them, and the interval is nearly as wide as the bounds.

# %%
codes = {"A": "01", "B": "02", "C": "03", "D": "04"}
size = homes["people"].astype(int)
truth = {
    "*": size.mean(),
    **{
        letter: size[homes["race"] == code].mean()
        for letter, code in codes.items()
    },
}
print(
    f"average of all: {size.mean():.3f}, after truncation: {size.clip(upper=10).mean():.3f}"
)
shown = estimates.loc[[*truth, "E"]]
figure, axis = plt.subplots(figsize=(6, 2.8))
low, high = (
    shown["RATIO_PRED"] - shown["RATIO_PRED_LO"],
    shown["RATIO_PRED_HI"] - shown["RATIO_PRED"],
)
axis.errorbar(
    shown.index,
    shown["RATIO_PRED"],
    yerr=[low, high],
    fmt="o",
    capsize=4,
    label="estimate, 90 %",
)
axis.plot(list(truth), list(truth.values()), "kx", label="truth")
axis.set(
    xlabel="race of the householder (* all)",
    ylabel="people in a household",
    ylim=(0, None),
)
axis.legend(fontsize=8)
figure.tight_layout()
