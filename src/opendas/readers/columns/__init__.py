"""Tables of columns: CSV and Parquet, codes, and findings that name file, line and rule."""
