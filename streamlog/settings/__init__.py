"""All settings of a node: from file, environment and flags, checked, with their sources.

Imports the settings classes of each component. Used by the server, the command line and the
doctor.
"""

from streamlog.settings.load import Settings, ShownSetting, load

__all__ = ["Settings", "ShownSetting", "load"]
