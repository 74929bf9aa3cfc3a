"""Variances before and after the noise: what least squares over the whole tree makes of a plan."""
