"""The privacy audit: measures the noise of the production code path against the plan it claims to follow."""
