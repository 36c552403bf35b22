"""Words of `claims/words.toml` for figures, attacks, variants and settings."""

from functools import cache

from docs.claims.data import CLAIMS, Part, read_toml
from fedaudit.core.errors import BadInput


class Words(Part):
    """Words for the names in claims."""

    figures: dict[str, str]
    attacks: dict[str, str]
    # Words for variants and settings; {} stands for the value of a setting.
    settings: dict[str, str]


CONTRASTS = {
    "other_client": " against other clients' samples",
    "unseen": " against held-out samples",
}
"""Non-members, if they are only one of the two groups."""


@cache
def words() -> Words:
    return read_toml(CLAIMS / "words.toml", Words)


def figure_words(figure: str, contrast: str = "mixed") -> str:
    is_membership = figure == "auc" or figure.startswith("tpr@")
    return _known("figures", figure) + (CONTRASTS.get(contrast, "") if is_membership else "")


def attack_words(attack: str) -> str:
    return _known("attacks", attack)


def setting_words(label: str) -> tuple[str, ...]:
    """Return the words for a variant, or for the settings of a point of games."""
    texts = []
    for setting in label.split(","):
        name, _, value = setting.partition("=")
        whole = setting in words().settings or not value
        text = _known("settings", setting if whole else name)
        texts.append(text.format(_amount(value)) if "{}" in text else text)
    return tuple(word for text in texts if text for word in text.split(", "))


def _known(kind: str, name: str) -> str:
    """Return the words for a name.

    Raises:
        BadInput: The name has no words.
    """
    known: dict[str, str] = getattr(words(), kind)
    if name not in known:
        raise BadInput(f"{name!r} has no words; add it to [{kind}] in {CLAIMS.name}/words.toml")
    return known[name]


def _amount(value: str) -> str:
    return f"{float(value):,.10g}"
