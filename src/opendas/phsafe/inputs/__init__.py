"""Persons, units and places: read, checked field by field, sorted, linked by MAFID and digested."""
