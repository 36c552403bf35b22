"""Studies: audits of simulated federations, from a plan to a record.

``build`` constructs the parts of a plan's runs, ``running`` trains, measures and evaluates them,
and ``comparing`` compares records. The package ``api`` audits Python objects.
"""
