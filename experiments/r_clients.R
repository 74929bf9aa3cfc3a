# What R packages read of a release of OpenDAS; called by experiments/r_clients.py, which checks the answers.
#
#   Rscript r_clients.R LIBRARY QUESTION FILE ANSWER [FILE]
#
# LIBRARY has PL94171, ppmf, nanoparquet and arrow, installed from their sources. ANSWER is a CSV file.

given <- commandArgs(TRUE)
.libPaths(c(given[1], .libPaths()))
suppressMessages(library(dplyr))
question <- given[2]
file <- given[3]

# The eighteen columns that both packages make of a block.
legacy <- function(path, level) {
  PL94171::pl_read(path) |>
    PL94171::pl_select_standard(clean_names = TRUE) |>
    PL94171::pl_subset(level)
}

# Lists of noisy answers: how many, and their sum.
sums <- function(found) {
  if ("value" %in% names(found)) {
    found$size <- lengths(found$value)
    found$value <- vapply(found$value, sum, numeric(1))
    found$query_shape <- vapply(found$query_shape, prod, numeric(1))
  }
  found
}

answer <- switch(question,
  # As a redistricting analyst: one zip file, one call, blocks.
  legacy = legacy(file, "750"),
  # As alarm-redist/census-2020, R/01_compile.R: voting districts, and blocks where a state has none.
  districts = {
    type <- "vtd"
    found <- legacy(file, "700")
    if (nrow(found) == 0) {
      type <- "block"
      found <- legacy(file, "750")
    }
    mutate(found, type = type)
  },
  # Records, and what ppmf counts of them by block.
  microdata = {
    library(ppmf) # its own functions look for its data where packages are attached
    read_ppmf(NULL, file) |>
      add_geoid(tract = TABTRACTCE, block_group = TABBLKGRPCE) |>
      agg()
  },
  nanoparquet = sums(nanoparquet::read_parquet(file)),
  arrow = sums(as.data.frame(arrow::read_parquet(file)))
)
readr::write_csv(answer, given[4], na = "")
package <- switch(question, legacy = , districts = "PL94171", microdata = "ppmf", question)
cat(as.character(packageVersion(package)))
