"""What the AMI paper says of the success of its attack, as marks beside one's own games."""

from typing import NamedTuple

SAME_MECHANISMS = ("bitrand", "ome")
"""Mechanisms that are the paper's own."""


class Printed(NamedTuple):
    """A figure that stands in the paper's text.

    Attributes:
        mechanism: That it is of.
        label: In a legend; names the data.
        epsilons: First and last named epsilon that it is said of.
        adv: The success.
        said: How it is said.
    """

    mechanism: str
    label: str
    epsilons: tuple[float, float]
    adv: float
    said: str


PRINTED = (
    Printed("bitrand", "AMI paper, BitRand, CelebA: ≥ 67%", (3.0, 4.0), 0.67, "at least 67%"),
    Printed("bitrand", "AMI paper, BitRand, ImageNet: ≥ 58%", (3.0, 4.0), 0.58, "at least 58%"),
    Printed("bitrand", "AMI paper, BitRand, CIFAR-10: ≥ 62%", (3.0, 4.0), 0.62, "at least 62%"),
    Printed("bitrand", "AMI paper, BitRand, all three: ≥ 77%", (5.0, 10.0), 0.77, "at least 77%"),
    Printed("bitrand", "AMI paper, BitRand, all three: ~99%", (9.0, 10.0), 0.99, "near 99%"),
    Printed("ome", "AMI paper, OME, CelebA, CIFAR-10: ~90%", (1.0, 10.0), 0.9, "about 90%"),
    Printed("ome", "AMI paper, OME, ImageNet: > 95%", (1.0, 10.0), 0.95, "more than 95%"),
)
"""Section 5 and appendix D of the paper. Its figures draw curves without numbers."""
