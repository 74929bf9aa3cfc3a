# %% [markdown]
# # A state, and a district in it
#
# This page releases a small synthetic state as the 2020 Census redistricting data were released, and asks
# for the people of a district that nobody planned for. With real data, `opendas init pl94 --state ri --year
# 2010` writes the run file.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import opendas as od
from opendas.demo import write_demo

persons, units = write_demo(Path("input"), 300)
run = od.load(persons)
run

# %%
release = od.release(run, out="out", seed=1, measurements="full")
release

# %% [markdown]
# Table P1 of the tracts, in the columns of the published files:

# %%
p1 = release.table("P1", geolevel="tract").to_pandas()
p1.iloc[:5, :4]

# %% [markdown]
# A district is a list of blocks. Here it is every third block. The interval is for the true number of
# people, from the noisy answers alone.

# %%
parts = ["TABBLKST", "TABBLKCOU", "TABTRACTCE", "TABBLK"]
blocks = sorted(
    set(release.mdf("persons").to_pandas()[parts].astype(str).sum(axis=1))
)
Path("district.csv").write_text("GEOID\n" + "\n".join(blocks[::3]) + "\n")
district = release.interval(
    "total", blocks="district.csv", level="0.90"
).to_pandas()
district

# %% [markdown]
# How far are published counts from the truth? The office, which holds the records, can say. Here anyone
# can, as they are synthetic.

# %%
errors = pd.DataFrame(od.evaluate(release, truth=run, save=False).rows)
total = errors[errors["query"] == "total"].set_index("geolevel")[
    "mean_abs_error"
]
figure, axis = plt.subplots(figsize=(6, 2.6))
total.plot.barh(ax=axis, color="steelblue")
axis.set(xlabel="mean absolute error of the total, people", ylabel="")
figure.tight_layout()
