"""Settings of studies by older versions, completed with the defaults of their time."""

from collections.abc import Mapping

FIRST_SET = "2026-1"
"""Attacks that were run by default before sets of attacks had names."""

DEFENDED_LIKE_THE_RUN = ("shadow", "references")
"""Tables of federations that the adversary trains, which older versions never defended."""

ADDITIONS_KEY = "growth"
"""Key of the additions after the first record in the study's file."""

LEARNED = frozenset({"seqmia", "stacked"})
"""Attacks that learned from a shadow federation in older versions, even without its table."""

TUNED = frozenset({"rmia", "rmia-series"})
"""Attacks whose slope was 0.3 by default in older versions."""

COMPARED = TUNED | {"lira", "lira-series"}
"""Attacks that compared with reference federations in older versions, even without their table."""

COMPARED_BY_DEFAULT = ("2026-2", ("sum", "globals", "final"))
"""The set with these attacks, and the views in which they ran by default."""


def resolve_older_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a completed study, with the defaults of the version that ran it.

    The defaults concern the set of attacks, the risk estimate of a clustered federation's models,
    shadow and reference federations without a defense, the slope of RMIA, and the audited samples
    of source inference. A table [audit] without ``sources`` means a version before all of these.

    The needs of custom attacks are unknown, so their shadow and reference federations are taken
    from the settings as they are. Additions since the first record (``growth``) are not
    settings and are left out.
    """
    default_set = {"attack_set": FIRST_SET} if config.get("attacks") == {} else {}
    settings = {**default_set, **config}
    settings.pop(ADDITIONS_KEY, None)
    risk = config.get("risk")
    if isinstance(risk, Mapping) and "training" not in risk:
        settings["risk"] = {"training": "continued", "sizes": "capped", **risk}
    for table in DEFENDED_LIKE_THE_RUN:
        section = config.get(table)
        if isinstance(section, Mapping) and section.get("mode") != "known-split":
            settings[table] = {"defense": "none", **section}
    audit = config.get("audit")
    if isinstance(audit, Mapping) and "sources" not in audit:
        settings |= _before_sources(settings, audit)
    return settings


def _before_sources(config: Mapping[str, object], audit: Mapping[str, object]) -> dict[str, object]:
    """Return the tables whose defaults were different before ``audit.sources`` existed."""
    tables: dict[str, object] = {"audit": {"sources": 0, **audit}}
    section = config.get("attacks")
    attacks = section if isinstance(section, Mapping) else {}
    if TUNED & attacks.keys():
        tables["attacks"] = {
            name: {"offline": 0.3, **options}
            if name in TUNED and isinstance(options, Mapping)
            else options
            for name, options in attacks.items()
        }
    needed = [table for table, names in _NEEDED_BY.items() if names & attacks.keys()]
    default_set, views = COMPARED_BY_DEFAULT
    if not attacks and config.get("attack_set") == default_set and audit.get("view") in views:
        needed.append("references")
    if _is_defended(config.get("defense")):
        missing = (table for table in needed if config.get(table) is None)
        tables |= {table: {"defense": "none"} for table in missing}
    return tables


_NEEDED_BY = {"shadow": LEARNED, "references": COMPARED}


def _is_defended(section: object) -> bool:
    """Return False only if the table [defense] is known to defend no client."""
    if not isinstance(section, Mapping):
        return section is not None
    added = section.get("chain") or section.get("also")
    return bool(added) or section.get("name", "none") != "none"
