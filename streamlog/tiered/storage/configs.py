"""Settings of a plug-in: which there are, and which it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from streamlog.errors import InvalidConfig


def check_known(configs: Mapping[str, str], known: Collection[str], family: str = "") -> None:
    """`family`: how further settings may begin. Errors: InvalidConfig, which names the nearest."""
    for name in configs:
        if name in known or (family and name.startswith(family) and name != family):
            continue
        near = get_close_matches(name[:80].lower(), known, n=1, cutoff=0.5)
        every = [*sorted(known), *([f"{family}*"] if family else [])]
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(every)}"
        raise InvalidConfig(
            f"unknown setting {name[:80]!r} of the remote storage; {hint}", name=name[:80]
        )


def required(configs: Mapping[str, str], name: str, example: str) -> str:
    """A setting's value, some text. Errors: InvalidConfig."""
    value = configs.get(name, "")
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidConfig(
            f"the remote storage needs the setting {name}, such as {name}={example}", name=name
        )
    return value


def truth(configs: Mapping[str, str], name: str) -> bool:
    """A setting that is true or false; false where it is not given. Errors: InvalidConfig."""
    value = configs.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidConfig(
            f"{name} of the remote storage is {value!r}, but has to be true or false", name=name
        )
    return value == "true"
