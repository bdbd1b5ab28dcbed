"""All settings of a node: from file, environment and flags, checked, with their sources."""

from streamlog.settings.load import Settings, ShownSetting, load

__all__ = ["Settings", "ShownSetting", "load"]
