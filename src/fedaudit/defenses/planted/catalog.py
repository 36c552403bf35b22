"""Every sign of a planted neuron by name."""

from fedaudit.defenses.planted.activity import dead_units, lone_units, one_stands_out
from fedaudit.defenses.planted.base import Sign
from fedaudit.defenses.planted.movement import moved_row, rewritten_row
from fedaudit.defenses.planted.weights import (
    bias_ratio,
    moved_weights,
    norm_ratio,
    odd_row,
    twins,
    zero_weights,
)

SIGNS: dict[str, Sign] = {
    "lone-units": lone_units,
    "one-stands-out": one_stands_out,
    "dead-units": dead_units,
    "norm-ratio": norm_ratio,
    "bias-ratio": bias_ratio,
    "odd-row": odd_row,
    "twins": twins,
    "zero-weights": zero_weights,
    "moved-weights": moved_weights,
    "moved-row": moved_row,
    "rewritten-row": rewritten_row,
}
"""What a client can look at without anybody's help; the last three need the round before."""
