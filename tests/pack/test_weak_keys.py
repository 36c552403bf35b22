"""Weak signature keys are refused."""

import base64
import hashlib
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.pack.manifest import is_signed, public_key

pytest.importorskip("cryptography")

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
PREFIX = bytes.fromhex("302a300506032b6570032100")
"""DER prefix of an Ed25519 public key."""

Point = tuple[int, int]


def added(point: Point, other: Point) -> Point:
    """Add two points by the addition law of the curve (RFC 8032, section 5.1.4)."""
    (a, b), (c, d) = point, other
    k = D * a * b * c * d
    return (a * d + c * b) * pow(1 + k, -1, P) % P, (b * d + a * c) * pow(1 - k, -1, P) % P


def small_points() -> list[Point]:
    """Return all multiples of a point of order eight: a point times the group's order."""
    root = pow(2, (P - 1) // 4, P)
    for start in range(2, 200):
        y = start
        numerator, denominator = (y * y - 1) % P, (D * y * y + 1) % P
        square = numerator * pow(denominator, -1, P) % P
        x = pow(square, (P + 3) // 8, P)
        x = x if (x * x - square) % P == 0 else x * root % P
        if (x * x - square) % P:
            continue
        candidate = times(ORDER, (x, y))
        multiples = [times(n, candidate) for n in range(1, 9)]
        if len({*multiples}) == 8:
            return multiples
    raise AssertionError("no point of order eight")


ORDER = 2**252 + 27742317777372353535851937790883648493


def times(count: int, point: Point) -> Point:
    result = (0, 1)
    while count:
        if count & 1:
            result = added(result, point)
        point, count = added(point, point), count >> 1
    return result


def pem(path: Path, y: int, sign: int) -> Path:
    raw = (y | sign << 255).to_bytes(32, "little")
    text = base64.b64encode(PREFIX + raw).decode()
    path.write_text(f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    return path


def test_the_eight_points_of_small_order_are_refused(tmp_path: Path) -> None:
    points = small_points()
    assert (0, 1) in points
    for number, (x, y) in enumerate(points):
        with pytest.raises(BadInput, match="a point of small order"):
            public_key(pem(tmp_path / f"{number}.pem", y, x & 1))


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", [*range(P, 2**255)])
def test_a_non_canonical_curve_point_is_refused(tmp_path: Path, y: int, sign: int) -> None:
    with pytest.raises(BadInput, match="a point of small order"):
        public_key(pem(tmp_path / "key.pem", y, sign))


@pytest.mark.parametrize("y", [0, 1, P - 1])
def test_a_zero_x_with_a_sign_is_refused(tmp_path: Path, y: int) -> None:
    with pytest.raises(BadInput, match="a point of small order"):
        public_key(pem(tmp_path / "key.pem", y, 1))


def test_a_valid_key_verifies_only_its_signature(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    for number in range(8):
        private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(bytes([number])).digest())
        raw = int.from_bytes(private.public_key().public_bytes_raw(), "little")
        key = public_key(pem(tmp_path / "key.pem", raw & (2**255 - 1), raw >> 255))
        assert is_signed(b"manifest", private.sign(b"manifest"), key)
        assert not is_signed(b"other", private.sign(b"manifest"), key)
        assert not is_signed(b"manifest", (1).to_bytes(32, "little") + bytes(32), key)
