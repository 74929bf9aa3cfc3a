"""Statistical post-processing of PHSafe measurements: counts that are not negative, averages with intervals.

It reads what was measured and published, nothing else, so that it costs no privacy. The model is that of the
Bureau's model-based S-DHC estimates: normal or discrete Gaussian noise of known variance, a flat prior on the
counts and ratios that are possible.
"""
