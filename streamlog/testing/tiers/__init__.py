"""The contracts of tiered storage's plug-ins, for whoever implements one."""
