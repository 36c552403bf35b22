"""Settings of studies that older versions carried out, with defaults as they were then."""

from collections.abc import Mapping

FIRST_SET = "2026-1"
"""The attacks that were run where none was named, before sets of attacks had names."""


def settled(config: Mapping[str, object]) -> dict[str, object]:
    """The settings of a study that was carried out, with defaults as they were at its time.

    That is the set of attacks, and how the risk of a clustered federation's models was estimated.
    """
    before = {"attack_set": FIRST_SET} if config.get("attacks") == {} else {}
    found = {**before, **config}
    risk = config.get("risk")
    if isinstance(risk, Mapping) and "training" not in risk:
        found["risk"] = {"training": "continued", "sizes": "capped", **risk}
    return found
