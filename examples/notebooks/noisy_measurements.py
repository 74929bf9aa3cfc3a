# %% [markdown]
# # Reading the Census Bureau's noisy measurements
#
# The Census Bureau publishes what it measured before estimation: noisy counts, with the variance of their
# noise. OpenDAS reads these files as they lie. This page makes a file of the same layout, and so does not
# have to download one; with a file of the Census Bureau, begin at the second cell, for instance with
# `measured = "census-2020-pl94-nmf/US_Person_PL_PROD"`.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import opendas as od
from opendas.demo import write_demo

persons, units = write_demo(Path("input"), 300)
od.release(od.load(persons), out="out", seed=1, measurements="full")
od.export_measurements("out", "published")
measured = Path("published") / "pl94-persons"
sorted(path.name for path in measured.iterdir())

# %% [markdown]
# What is in it: for each geolevel the query groups, the geounits asked, and the loss. Rho on the way from the
# top to a block is the same for all blocks; otherwise a part would be missing, or a variance changed.

# %%
found = od.describe_measurements(measured)
print("product:", found["product"])
print("rho from the top to a block:", round(found["rho"], 4))
for said in (*found["contradictions"], *found["missing"]):
    print("-", said)
levels = pd.DataFrame(found["levels"])
levels.assign(queries=levels["queries"].map(len))[
    ["geolevel", "geounits", "queries"]
]

# %% [markdown]
# A single answer, as it was published. Noise may make it negative, and nothing in it adds up.

# %%
tracts = pd.read_parquet(measured / "Tract.parquet" / "DPQuery")
hispanic = tracts[tracts["query_name"] == "hispanic_dpq"].head(4)
hispanic[["geocode", "value", "variance"]]

# %% [markdown]
# Estimates combine all answers that say something about a question, by least squares over the whole tree, and
# an interval comes with each. `P1` and the other published tables can be asked by their name, and so can any
# query group, whether it was measured or not.

# %%
noisy = od.NoisyFile(measured)
table = noisy.intervals("hispanic", geolevel="tract", level="0.90").to_pandas()
table[["geocode", "cell", "estimate", "lower", "upper"]].head(4)

# %% [markdown]
# How much is gained over the answer to this question alone? Standard deviations are known without the truth.

# %%
rows = {}
for name in ("County", "Tract", "Block_Group", "Block"):
    answers = pd.read_parquet(
        measured / f"{name}.parquet" / "DPQuery",
        columns=["query_name", "variance"],
    )
    alone = answers.loc[
        answers["query_name"] == "hispanic_dpq", "variance"
    ].iloc[0]
    combined = (
        noisy.intervals("hispanic", geolevel=name.lower())
        .to_pandas()["variance"]
        .mean()
    )
    rows[name.lower()] = {
        "the answer alone": alone**0.5,
        "all answers combined": combined**0.5,
    }
deviations = pd.DataFrame(rows).T
figure, axis = plt.subplots(figsize=(6, 2.8))
deviations.plot.barh(ax=axis, color=["lightgray", "steelblue"])
axis.set(
    xlabel="standard deviation of a count, people", ylabel="", xlim=(0, 130)
)
axis.legend(loc="lower right", fontsize=8)
figure.tight_layout()
deviations.round(1)

# %% [markdown]
# A district of your own is a list of blocks. Its interval is computed from the measurements of blocks and of
# all that contains them.

# %%
parts = ["TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLK"]
blocks = sorted(
    set(
        od.Release("out")
        .mdf("persons")
        .to_pandas()[parts]
        .astype(str)
        .sum(axis=1)
    )
)
district = noisy.interval(
    "votingage", blocks=blocks[::3], level="0.95"
).to_pandas()
district[["cell", "estimate", "margin"]]
