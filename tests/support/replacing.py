"""Methods of one object, or class, that a test replaces: what a type checker refuses to assign."""

from __future__ import annotations


def replace_method(owner: object, name: str, method: object) -> None:
    """Until the owner is gone, or the test puts the old one back. The owner has such a method."""
    assert callable(getattr(owner, name)), f"{owner!r} has no method {name}"
    setattr(owner, name, method)
