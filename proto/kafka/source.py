"""Python source of a module: its classes, constants, and functions that equal versions share."""

from __future__ import annotations

from definitions import INTEGERS, Field, Message, Structure

TYPES = {
    "string": "str",
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "bytes": "Records",
    "records": "Records",
    **dict.fromkeys(INTEGERS, "int"),
}
EMPTY = {"string": '""', "bool": "False", "float64": "0.0", "uuid": "ZERO_UUID"}


class Source:
    """Names that functions of one module share: `struct` formats, bound once."""

    def __init__(self) -> None:
        self._formats: set[str] = set()

    def packer(self, codes: str) -> str:
        return self._use("pack", codes)

    def unpacker(self, codes: str) -> str:
        return self._use("unpack", codes)

    def _use(self, what: str, codes: str) -> str:
        self._formats.add(codes)
        return f"_{what}_{_identifier(codes)}"

    def constants(self, body: str) -> list[str]:
        """One line for each bound method that `body` names."""
        lines = []
        for codes in sorted(self._formats):
            for what, method in (("pack", "pack"), ("unpack", "unpack_from")):
                name = f"_{what}_{_identifier(codes)}"
                if f"{name}(" in body:
                    lines.append(f'{name} = Struct(">{codes}").{method}')
        return lines


class Body:
    """Statements of one function, and its local names."""

    def __init__(self, source: Source, message: Message, version: int) -> None:
        self._source = source
        self._message = message
        self._version = version
        self._is_flexible = version in message.flexible
        self._lines: list[str] = []
        self._names = 0

    def _put(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)

    def _name(self, stem: str) -> str:
        """A name that no other statement of the function uses."""
        self._names += 1
        return f"{stem}_{self._names}"


def _identifier(codes: str) -> str:
    return codes.replace("?", "Z").replace("16s", "U")


def is_optional_structure(field: Field) -> bool:
    """A tagged structure: None stands for Kafka's default of all its fields, which is not sent."""
    return field.structure is not None and not field.is_array and not is_required(field)


def is_required(field: Field) -> bool:
    """A structure that is always there: whoever makes the message says what it is."""
    is_structure = field.structure is not None and not field.is_array
    can_be_absent = [one for one in (field.nullable, field.tagged) if one.first <= one.last]
    return is_structure and not can_be_absent


def type_of(field: Field, is_request: bool) -> str:
    """A request has one buffer where a response may have several: one batch for each partition."""
    inner = field.structure.name if field.structure is not None else TYPES[field.type]
    if inner == "Records" and is_request:
        inner = "Buffer"
    kind = f"Sequence[{inner}]" if field.is_array else inner
    can_be_null = field.nullable.first <= field.nullable.last or is_optional_structure(field)
    return f"{kind} | None" if can_be_null else kind


def default_of(field: Field) -> str:
    """Kafka's default as Python source."""
    if field.default == "null":
        return "None"
    if field.is_array:
        return "()"
    if field.structure is not None:
        return "None"
    if field.type in ("bytes", "records"):
        return "None" if field.nullable.first <= field.nullable.last else 'b""'
    if field.default:
        if field.type == "string":
            return f'"{field.default}"'
        return field.default.capitalize() if field.type == "bool" else str(int(field.default, 0))
    return EMPTY.get(field.type, "0")


def class_lines(structure: Structure, is_request: bool) -> list[str]:
    fields = structure.fields
    slots = "".join(f'"{one.name}", ' for one in fields).strip()
    lines = [f"class {structure.name}(Structure):", f"    __slots__ = ({slots})", ""]
    lines += [f"    {one.name}: {type_of(one, is_request)}" for one in fields]
    if not fields:
        return lines[:2]
    lines += ["", "    def __init__(", "        self,", "        *,"]
    for one in fields:
        default = "" if is_required(one) else f" = {default_of(one)}"
        lines.append(f"        {one.name}: {type_of(one, is_request)}{default},")
    lines += ["    ) -> None:"]
    lines += [f"        self.{one.name} = {one.name}" for one in fields]
    return lines
