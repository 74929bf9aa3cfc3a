"""PHSafe: tables of persons joined to their households, with truncation and exact noise.

After Sexton et al. (2024), "PHSafe: Disclosure Avoidance for the 2020 Census Supplemental Demographic and
Housing Characteristics File (S-DHC)"; it reads and writes the formats of the published program.
"""
