"""The digest that a record and a comparison carry, by which a reader sees that one was altered."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

DIGEST: Final = "digest"
"""Key of the digest in the JSON object, beside its format and version."""


def sealed_json(document: Mapping[str, object]) -> str:
    """Return a JSON object as one line of text that ends with the digest of its content.

    The digest shows accidents and careless edits. It is no signature: whoever rewrites the file
    can also rewrite the digest.

    Args:
        document: The object, of what JSON can hold; without a digest of its own.

    Raises:
        ValueError: It holds a number that is not finite.
    """
    return _compact({**document, DIGEST: content_digest(document)}) + "\n"


def content_digest(document: Mapping[str, object]) -> str:
    """Return the SHA-256 of a JSON object's content, whatever its spacing and order of keys.

    Args:
        document: The object, without its digest.
    """
    return hashlib.sha256(_compact(document, sort_keys=True).encode()).hexdigest()


def was_altered(document: Mapping[str, object]) -> bool:
    """Return True if a parsed object carries a digest that its content does not have.

    Documents from before digests were written carry none, and count as unaltered.

    Args:
        document: As parsed from the file.
    """
    return DIGEST in document and document[DIGEST] != content_digest(without_digest(document))


def without_digest(document: Mapping[str, object]) -> dict[str, object]:
    """Return the content of a JSON object without the digest that it may carry."""
    return {name: value for name, value in document.items() if name != DIGEST}


def _compact(document: Mapping[str, object], *, sort_keys: bool = False) -> str:
    return json.dumps(
        document,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
        sort_keys=sort_keys,
    )
