"""Studies: audits of simulated federations, from a plan to a record.

``build`` resolves a plan to the parts of its runs, ``running`` trains, measures and evaluates
them, ``front`` takes Python objects in place of a file, and ``comparing`` compares records.
"""
