"""streamlog: a shared log on object storage.

`streamlog.open` is made when first asked for, so that importing the package stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.wiring import open as open

__all__ = ["open"]


def __getattr__(name: str) -> object:
    if name == "open":
        from streamlog.wiring import open as opened

        return opened
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
