"""Release gate: comparison of a record's confidence limits with the ceilings of a policy.

A *ceiling* is the largest value of a metric that a policy allows. It is compared with the estimates
of a record, such as the AUC of an attack on a client in a run. In verdicts, an estimate is called a
*figure*.
"""
