"""Results of label inference in an audit's result file."""

from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

LABEL_INFERENCE = "labels"
"""Topic of estimates of label inference, whose unit is a client and a class."""

OTHER_CLIENT = "classes of another client"
"""Null hypothesis: a client's update reveals no more about its classes than about another's."""


def label_estimates(record: Record) -> list[Estimate]:
    """Return the AUC over all runs; empty if the study has no label inference."""
    return record.where(topic=LABEL_INFERENCE, seed=None)
