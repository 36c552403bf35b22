"""Settings of studies that older versions carried out, with defaults as they were then."""

from collections.abc import Mapping

FIRST_SET = "2026-1"
"""The attacks that were run where none was named, before sets of attacks had names."""

DEFENDED_LIKE_THE_RUN = ("shadow", "references")
"""Tables of federations that the adversary trains, which older versions never defended."""


def settled(config: Mapping[str, object]) -> dict[str, object]:
    """The settings of a study that was carried out, with defaults as they were at its time.

    These are the set of attacks, how the risk of a clustered federation's models was estimated,
    shadow and reference federations without a defense, and which samples source inference asked
    about.
    """
    before = {"attack_set": FIRST_SET} if config.get("attacks") == {} else {}
    found = {**before, **config}
    risk = config.get("risk")
    if isinstance(risk, Mapping) and "training" not in risk:
        found["risk"] = {"training": "continued", "sizes": "capped", **risk}
    for table in DEFENDED_LIKE_THE_RUN:
        section = config.get(table)
        if isinstance(section, Mapping) and section.get("mode") != "known-split":
            found[table] = {"defense": "none", **section}
    audit = config.get("audit")
    if isinstance(audit, Mapping) and "sources" not in audit:
        found["audit"] = {"sources": 0, **audit}
    return found
