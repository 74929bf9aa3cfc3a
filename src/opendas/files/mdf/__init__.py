"""Microdata detail files: layout, reading and writing."""
