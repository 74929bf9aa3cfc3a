"""Redistricting (P.L. 94-171) summary files of 2010 and 2020."""
