"""Signatures of packs: Ed25519, over the bytes of the manifest, by the package cryptography."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.core.errors import BadInput
from fedaudit.core.files import TooLarge, read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE_FILE = "manifest.sig"
SIGNATURE_BYTES = 64
_LONGEST_KEY = 10_000
_HOW = "make one with `openssl genpkey -algorithm ed25519 -out key.pem`"


def private_key(path: Path) -> "Ed25519PrivateKey":
    """The key that signs, from a PEM file.

    Raises:
        BadInput: The package is not installed, or the file is no such key without a password.
    """
    _refuse_missing_package()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_pem(path), password=None)
    # A key in a form that is not known is a ValueError, one with a password a TypeError.
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(
            f"{path} is no private key in PEM without a password ({error}); {_HOW}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{path} is a private key of another kind than Ed25519; {_HOW}")
    return key


def public_key(path: Path) -> "Ed25519PublicKey":
    """The key that a signature is held against, from a PEM file.

    Raises:
        BadInput: The package is not installed, or the file is no such key.
    """
    _refuse_missing_package()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    how = "write it with `openssl pkey -in key.pem -pubout -out public.pem`"
    try:
        key = load_pem_public_key(_pem(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{path} is no public key in PEM ({error}); {how}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BadInput(f"{path} is a public key of another kind than Ed25519; {how}")
    return key


def is_signed(content: bytes, signature: bytes, key: "Ed25519PublicKey") -> bool:
    """True if somebody with the private key of this public one has signed the content."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _pem(path: Path) -> bytes:
    try:
        return read_text(path, max_bytes=_LONGEST_KEY).encode()
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        raise BadInput(f"the key {path} cannot be read ({error}); give a PEM file") from error


def _refuse_missing_package() -> None:
    if find_spec("cryptography") is None:
        raise BadInput(
            "signatures need the package cryptography, which is not installed; run pip install "
            "'fedaudit[sign]'"
        )
