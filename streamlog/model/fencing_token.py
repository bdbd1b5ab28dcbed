"""Fencing tokens of streams and logs: their limit, and how they look in messages and commands."""

from __future__ import annotations

from streamlog.errors import Invalid

TOKEN_BYTES_MAX = 64
HEX = "hex:"


def check_token(token: bytes) -> None:
    """Errors: Invalid."""
    if not isinstance(token, bytes):
        raise Invalid(f"a fencing token is bytes, not {type(token).__name__}")
    if len(token) > TOKEN_BYTES_MAX:
        raise Invalid(f"a fencing token has at most {TOKEN_BYTES_MAX} bytes, not {len(token)}")


def shown_token(token: bytes) -> str:
    """Text where the token is printable UTF-8, else `hex:` and its bytes in hex. Empty: none."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        text = ""
    is_plain = text.isprintable() and not text.startswith(HEX)
    return text if is_plain and text.encode() == token else HEX + token.hex()


def parsed_token(text: str) -> bytes:
    """What `shown_token` shows. Errors: Invalid for bad hex, or over 64 bytes."""
    try:
        token = bytes.fromhex(text.removeprefix(HEX)) if text.startswith(HEX) else text.encode()
    except ValueError:
        raise Invalid(
            f"{text!r} is no token: hex: is followed by pairs of hex digits, and text is UTF-8"
        ) from None
    check_token(token)
    return token
