"""streamlog: a shared log on object storage.

The names are imported when they are first asked for, so that importing the package stays light.
docs/api.md lists all that users may import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.wiring import Components as Components
    from streamlog.wiring import OpenEngine as OpenEngine
    from streamlog.wiring import open as open

__all__ = ["Components", "OpenEngine", "open"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from streamlog import wiring

        return getattr(wiring, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
