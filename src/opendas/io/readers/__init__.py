"""Readers: official files and users' tables become a frame and a histogram."""
