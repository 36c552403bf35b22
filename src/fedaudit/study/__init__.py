"""Studies: audits of simulated federations, from a plan to a record.

``build`` constructs the parts of a plan's runs, ``running`` trains, measures and evaluates them,
``front`` audits Python objects, and ``comparing`` compares records.
"""
