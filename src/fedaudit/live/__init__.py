"""Audits of other people's federations: a recorder for a loop that is not fedaudit's."""
