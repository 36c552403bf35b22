"""Words of `claims/words.toml` for figures, attacks, variants and settings."""

from functools import cache

from docs.claims.data import CLAIMS, Part, read_toml
from fedaudit.core.errors import BadInput


class Words(Part):
    """Words for the names in claims."""

    # {} is replaced by the attack; without {}, the attack follows.
    figures: dict[str, str]
    attacks: dict[str, str]
    # Words for variants and settings; {} is replaced by the value of a setting.
    settings: dict[str, str]


@cache
def words() -> Words:
    return read_toml(CLAIMS / "words.toml", Words)


def figure_words(figure: str, attack: str = "") -> str:
    """Return the words for a figure, and for an attack if it is given in words."""
    text = _known("figures", figure)
    if not attack:
        return text.replace(" of {}", "")
    return text.format(attack) if "{}" in text else f"{text} of {attack}"


def attack_words(attack: str) -> str:
    return _known("attacks", attack)


def setting_words(label: str) -> tuple[str, ...]:
    """Return the words for a variant, or for the settings of a point of games."""
    texts = []
    for setting in label.split(","):
        name, _, value = setting.partition("=")
        is_one_name = setting in words().settings or not value
        text = _known("settings", setting if is_one_name else name)
        texts.append(text.format(_amount(value)) if "{}" in text else text)
    return tuple(word for text in texts if text for word in text.split(", "))


def _known(kind: str, name: str) -> str:
    """Return the words for a name.

    Raises:
        BadInput: The name has no words.
    """
    texts: dict[str, str] = getattr(words(), kind)
    if name not in texts:
        raise BadInput(f"{name!r} has no words; add it to [{kind}] in {CLAIMS.name}/words.toml")
    return texts[name]


def _amount(value: str) -> str:
    return f"{float(value):,.10g}"
