"""Settings of studies that older versions carried out, with defaults as they were then."""

from collections.abc import Mapping

FIRST_SET = "2026-1"
"""The attacks that were run where none was named, before sets of attacks had names."""

DEFENDED_LIKE_THE_RUN = ("shadow", "references")
"""Tables of federations that the adversary trains, which older versions never defended."""

GROWTH = "growth"
"""What was added to a study after it had a record, in the study's file."""

LEARNED = frozenset({"seqmia", "stacked"})
"""Attacks of older versions that learned from a shadow federation, without a table too."""

TUNED = frozenset({"rmia", "rmia-series"})
"""Attacks of older versions whose slope was 0.3 where a study gave none."""

COMPARED = TUNED | {"lira", "lira-series"}
"""Attacks of older versions that compared with reference federations, without a table too."""

COMPARED_BY_DEFAULT = ("2026-2", ("sum", "globals", "final"))
"""The set with these attacks, and the views in which they ran where no attack was named."""


def settled(config: Mapping[str, object]) -> dict[str, object]:
    """The settings of a study that was carried out, with defaults as they were at its time.

    These are the set of attacks, how the risk of a clustered federation's models was estimated,
    shadow and reference federations without a defense, the slope of RMIA, and which samples source
    inference asked about. Settings with a table [audit] that says nothing of the last
    (``audit.sources``) are of a version before all of these. What an attack of the user's own needs
    is not known here: its shadow and reference federations are as the settings say.
    What was added to a study since its first record is no setting, and is left out.
    """
    before = {"attack_set": FIRST_SET} if config.get("attacks") == {} else {}
    found = {**before, **config}
    found.pop(GROWTH, None)
    risk = config.get("risk")
    if isinstance(risk, Mapping) and "training" not in risk:
        found["risk"] = {"training": "continued", "sizes": "capped", **risk}
    for table in DEFENDED_LIKE_THE_RUN:
        section = config.get(table)
        if isinstance(section, Mapping) and section.get("mode") != "known-split":
            found[table] = {"defense": "none", **section}
    audit = config.get("audit")
    if isinstance(audit, Mapping) and "sources" not in audit:
        found |= _before_sources(found, audit)
    return found


def _before_sources(config: Mapping[str, object], audit: Mapping[str, object]) -> dict[str, object]:
    """The tables that a study of before ``audit.sources`` had other defaults in."""
    found: dict[str, object] = {"audit": {"sources": 0, **audit}}
    attacks = config.get("attacks")
    named = attacks if isinstance(attacks, Mapping) else {}
    if TUNED & named.keys():
        found["attacks"] = {
            name: {"offline": 0.3, **given}
            if name in TUNED and isinstance(given, Mapping)
            else given
            for name, given in named.items()
        }
    needed = [table for table, of in _NEEDED_BY.items() if of & named.keys()]
    usual, views = COMPARED_BY_DEFAULT
    if not named and config.get("attack_set") == usual and audit.get("view") in views:
        needed.append("references")
    if _is_defended(config.get("defense")):
        missing = (table for table in needed if config.get(table) is None)
        found |= {table: {"defense": "none"} for table in missing}
    return found


_NEEDED_BY = {"shadow": LEARNED, "references": COMPARED}


def _is_defended(section: object) -> bool:
    """True unless the table [defense] is known to defend no client."""
    if not isinstance(section, Mapping):
        return section is not None
    more = section.get("chain") or section.get("also")
    return bool(more) or section.get("name", "none") != "none"
