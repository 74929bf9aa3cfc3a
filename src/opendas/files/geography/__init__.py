"""The geography of a release in files: frame, spine, areas."""
