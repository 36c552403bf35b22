"""Origins of audited samples, as seen from the client under audit."""

from enum import IntEnum


class Origin(IntEnum):
    """Provenance of a sample with respect to one target client.

    Attributes:
        MEMBER: The target client trained on it.
        OTHER_CLIENT: Another client of the federation trained on it (the literature's
            in-federation non-member, IFL).
        UNSEEN: Nobody trained on it (out-of-federation non-member, OFL).

    Examples:
        >>> Origin.MEMBER.value, Origin.UNSEEN.value
        (0, 2)
    """

    MEMBER = 0
    OTHER_CLIENT = 1
    UNSEEN = 2
