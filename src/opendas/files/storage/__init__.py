"""Where files are: in folders and at addresses, and Parquet."""
