"""Texts of records and logs: a digest, limits of length and depth, and safe characters.

Escape sequences and characters that change the reading direction could make a terminal or a report
display something other than the actual text.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

MAX_TEXT_LENGTH = 10_000
"""Maximum length of a text in a record, in characters."""
MAX_DEPTH = 32
"""Maximum nesting depth of a study's settings, over three times that of real studies."""

_SPACES = "\t\n\r"
_WITHOUT_SPACES = str.maketrans("", "", _SPACES)
_LINE_BREAKS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_WORD = re.compile(r"[\w.-]")
_PARAMETERS = frozenset("0123456789;?")
"""Characters of an ANSI sequence between its bracket and the letter that ends it."""
_DIRECTION_CONTROLS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


def clean_text(text: str) -> str:
    """Replace every forbidden character by U+FFFD, and truncate the text if it is too long."""
    if len(text) > MAX_TEXT_LENGTH:
        text = text[: MAX_TEXT_LENGTH - 1] + "…"
    return text if is_plain(text) else "".join("\ufffd" if _is_forbidden(c) else c for c in text)


def is_plain(text: str) -> bool:
    """Return True if a record may contain the text without changes."""
    return len(text) <= MAX_TEXT_LENGTH and (
        text.isprintable() or not any(map(_is_forbidden, text))
    )


def is_plain_json(document: str) -> bool:
    """Return True if all texts of a JSON document are certainly plain, without parsing it.

    This avoids a check of each text, which takes half of the time of reading a record. If it
    returns False, the texts may still be plain, with a harmless escape or uncommon character.
    """
    if "\\" in document or not document.translate(_WITHOUT_SPACES).isprintable():
        return False
    return max(map(len, document.split('"'))) <= MAX_TEXT_LENGTH


def one_line(text: str) -> str:
    """Return the text as a single plain line, with spaces instead of line breaks."""
    return clean_text(_LINE_BREAKS.sub(" ", text))


_BACKSLASHED = re.compile(r"([\\`*_\[\]|~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;", "$": "&#36;"}
_LINKS = re.compile(r"://|(?i:\bwww)\.")


def escape_markdown(text: str) -> str:
    """Escape a text for Markdown, so that it prints verbatim on one line, without links."""
    safe = "".join(_ENTITIES.get(char, char) for char in one_line(text))
    safe = _BACKSLASHED.sub(r"\\\1", safe)
    return _LINKS.sub(lambda match: match[0].replace(":", "&#58;").replace(".", "&#46;"), safe)


def indent_lines(text: str) -> str:
    """Return the text as plain lines, of which all but the first are indented.

    Lines of quoted text therefore cannot be mistaken for output of this package.
    """
    lines = (_LINE_BREAKS.sub("\ufffd", line) for line in re.split("\r?\n", text))
    return clean_text("\n  ".join(lines))


class LogLines:
    """Filter for log lines that prevents their text from being run as commands by a CI system.

    GitHub runs ``::command::`` at the beginning of a line, also after spaces. Azure Pipelines and
    TeamCity run ``##vso[command]`` and ``##teamcity[command]`` anywhere. Names in records can
    contain such text, and lines can be wrapped before any word.

    A command may arrive in parts, and with ANSI sequences between its characters, which some
    systems remove first. The filter therefore keeps its state between parts. It returns every
    character immediately.
    """

    def __init__(self) -> None:
        self._start = "blank"  # or "colon" after spaces and one colon, or "text"
        self._hashes = 0  # at the end of the visible text: "#" is 1, "##" is 2, "##word" is 3
        self._sequence = ""  # the last character of an unfinished ANSI sequence

    def defused(self, text: str) -> str:
        """Return the next part of the log, with a space in the first word of each command."""
        return "".join(f" {char}" if self._completes_command(char) else char for char in text)

    def _completes_command(self, char: str) -> bool:
        """Process the next character; return True if it completes the beginning of a command."""
        if self._in_sequence(char):
            return False
        if _LINE_BREAKS.match(char):
            self._start, self._hashes = "blank", 0
            return False
        completes = (char == ":" and self._start == "colon") or (char == "[" and self._hashes > 1)
        if not (self._start == "blank" and char.isspace()):
            self._start = "colon" if (self._start, char) == ("blank", ":") else "text"
        if char == "#":
            self._hashes = 2 if self._hashes in (1, 2) else 1
        else:
            self._hashes = 3 if self._hashes > 1 and _WORD.match(char) else 0
        return completes

    def _in_sequence(self, char: str) -> bool:
        """Return True if a character is part of an ANSI sequence, such as a colour."""
        before, self._sequence = self._sequence, ""
        if char == "\x1b" or (char == "[" and before == "\x1b"):
            self._sequence = char
        elif before == "[" and char in _PARAMETERS:
            self._sequence = before
        else:
            return before == "[" and char.isascii() and char.isalpha()
        return True


def without_commands(text: str) -> str:
    """Return lines without text that a CI system would run as a command; see :class:`LogLines`."""
    return LogLines().defused(text)


def log_line(text: str) -> str:
    """Return the text as one plain line without text that a CI system would run as a command."""
    return without_commands(one_line(text))


def plain_json(value: object) -> object:
    """Apply :func:`clean_text` to all texts of a JSON value, including keys."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): plain_json(inner) for key, inner in value.items()}
    return [plain_json(inner) for inner in value] if isinstance(value, list | tuple) else value


def iterate_texts(document: object) -> Iterator[str]:
    """Yield every text of a JSON value, including keys."""
    return (value for value in _values(document) if isinstance(value, str))


def whole_numbers(document: object) -> Iterator[int]:
    """Yield every integer of a JSON value."""
    return (value for value in _values(document) if isinstance(value, int))


def iterate_keys(document: object) -> Iterator[str]:
    """Yield every key of a JSON value."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value
        waiting += _parts(value)


def _values(document: object) -> Iterator[object]:
    # No recursion, since untrusted values may be deeply nested.
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value
        else:
            yield value


def deeper_than(value: object, levels: int) -> bool:
    """Return True if the nesting of lists and dictionaries exceeds a number of levels."""
    # Level by level instead of recursion, since untrusted values may be deeply nested.
    layer = [value]
    for _ in range(levels + 1):
        layer = [part for item in layer for part in _parts(item)]
        if not layer:
            return False
    return True


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _is_forbidden(char: str) -> bool:
    """Return True for control characters, unpaired surrogates, and changes of direction."""
    kinds = ("Cc", "Cs", "Zl", "Zp")
    return char in _DIRECTION_CONTROLS or (
        unicodedata.category(char) in kinds and char not in _SPACES
    )


DIGEST: Final = "digest"
"""Key of the digest in the JSON object, next to its format and version."""


def sealed_json(document: Mapping[str, object]) -> str:
    """Return a JSON object as one line of text that ends with the digest of its content.

    The digest detects accidental changes. It is not a signature: anyone who rewrites the file can
    also rewrite the digest.
    """
    return _compact({**document, DIGEST: content_digest(document)}) + "\n"


def content_digest(document: Mapping[str, object]) -> str:
    """Return the SHA-256 of a JSON object's content, independent of spacing and order of keys."""
    return hashlib.sha256(_compact(document, sort_keys=True).encode()).hexdigest()


def was_altered(document: Mapping[str, object]) -> bool:
    """Return True if a parsed object has a digest that does not match its content.

    Documents of older versions have no digest and count as unaltered.
    """
    return DIGEST in document and document[DIGEST] != content_digest(without_digest(document))


def without_digest(document: Mapping[str, object]) -> dict[str, object]:
    """Return a JSON object without its digest."""
    return {name: value for name, value in document.items() if name != DIGEST}


def _compact(document: Mapping[str, object], *, sort_keys: bool = False) -> str:
    return json.dumps(
        document,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
        sort_keys=sort_keys,
    )
