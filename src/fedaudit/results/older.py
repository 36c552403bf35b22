"""Settings of studies that older versions ran, completed with the defaults of those versions."""

from collections.abc import Mapping

FIRST_SET = "2026-1"
"""Name of the set of attacks that ran by default before sets had names."""

ADVERSARY_FEDERATIONS = ("shadow", "references")
"""Tables of federations that the adversary trains. Older versions trained them without a
defense."""

ADDITIONS_KEY = "growth"
"""Key, in the study's file, of additions that were made after the first record."""

SHADOW_ATTACKS = frozenset({"seqmia", "stacked"})
"""Attacks for which older versions trained a shadow federation even without its table."""

RMIA_ATTACKS = frozenset({"rmia", "rmia-series"})
"""RMIA attacks, whose slope was 0.3 by default in older versions."""

REFERENCE_ATTACKS = RMIA_ATTACKS | {"lira", "lira-series"}
"""Attacks for which older versions trained reference federations even without their table."""

DEFAULT_REFERENCES = ("2026-2", ("sum", "globals", "final"))
"""The set of attacks that has attacks with reference federations, and the views in which these ran
by default."""


def resolve_older_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a completed study, with the defaults of the version that ran it.

    The defaults concern the set of attacks, the risk estimate of a clustered federation's models,
    the defense of shadow and reference federations, the slope of RMIA, and the audited samples of
    source inference. If the table [audit] has no ``sources``, the version had all of the older
    defaults.

    It is unknown which custom attacks use a shadow or reference federations, so these tables are
    not added for them. Additions since the first record (``growth``) are not settings and are left
    out.
    """
    default_set = {"attack_set": FIRST_SET} if config.get("attacks") == {} else {}
    settings = {**default_set, **config}
    settings.pop(ADDITIONS_KEY, None)
    risk = config.get("risk")
    if isinstance(risk, Mapping) and "training" not in risk:
        settings["risk"] = {"training": "continued", "sizes": "capped", **risk}
    for table in ADVERSARY_FEDERATIONS:
        section = config.get(table)
        if isinstance(section, Mapping) and section.get("mode") != "known-split":
            settings[table] = {"defense": "none", **section}
    audit = config.get("audit")
    if isinstance(audit, Mapping) and "sources" not in audit:
        settings |= _tables_before_sources(settings, audit)
    return settings


def _tables_before_sources(
    config: Mapping[str, object], audit: Mapping[str, object]
) -> dict[str, object]:
    """Return tables of settings with the defaults of versions without ``audit.sources``."""
    tables: dict[str, object] = {"audit": {"sources": 0, **audit}}
    section = config.get("attacks")
    attacks = section if isinstance(section, Mapping) else {}
    if RMIA_ATTACKS & attacks.keys():
        tables["attacks"] = {
            name: {"offline": 0.3, **options}
            if name in RMIA_ATTACKS and isinstance(options, Mapping)
            else options
            for name, options in attacks.items()
        }
    needed = [table for table, names in _ATTACKS_BY_TABLE.items() if names & attacks.keys()]
    default_set, views = DEFAULT_REFERENCES
    if not attacks and config.get("attack_set") == default_set and audit.get("view") in views:
        needed.append("references")
    if _is_defended(config.get("defense")):
        missing = (table for table in needed if config.get(table) is None)
        tables |= {table: {"defense": "none"} for table in missing}
    return tables


_ATTACKS_BY_TABLE = {"shadow": SHADOW_ATTACKS, "references": REFERENCE_ATTACKS}


def _is_defended(section: object) -> bool:
    """Return False only if the table [defense] certainly defends no client."""
    if not isinstance(section, Mapping):
        return section is not None
    added = section.get("chain") or section.get("also")
    return bool(added) or section.get("name", "none") != "none"
