"""Release gate: comparison of a record's upper confidence limits with the ceilings of a policy.

A *figure* is an estimate in a record, such as the AUC of an attack on a client in a run. A
*ceiling* is the largest value of a metric that a policy allows.
"""
