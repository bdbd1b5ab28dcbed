"""Writes the corpus: samples, plain damage to them, and the regressions. Existing files stay.

`python -m tests.fuzz.write_corpus`. The name's first word says what is expected: `valid`, `refused`
(a typed error) or `any` (a value or a typed error). A file that fuzzing found belongs here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.parser import Parser, Refused
from tests.fuzz.parsers import ALL
from tests.fuzz.regressions import READ, REFUSED

CORPUS = Path(__file__).parent / "corpus"


def files(parser: Parser) -> Iterator[tuple[str, bytes]]:
    for number, sample in enumerate(parser.samples[:3]):
        yield f"valid-{number}.bin", sample
    sample = parser.samples[0]
    flipped = bytearray(sample)
    flipped[len(sample) // 2] ^= 0x10
    middle = len(sample) // 2
    damage = {
        "cut": sample[: 2 * len(sample) // 3],
        "flipped": bytes(flipped),
        "all-ones": sample[:middle] + b"\xff" * min(8, len(sample) - middle) + sample[middle + 8 :],
        "longer": sample + b"\x00",
        "empty": b"",
    }
    for name, data in damage.items():
        kinds = {"": data}
        if parser.mend is not None:
            kinds["-mended"] = parser.mend(data)
        for kind, changed in kinds.items():
            is_refused = isinstance(parser.attempt(changed), Refused)
            yield f"{'refused' if is_refused else 'any'}-{name}{kind}.bin", changed
    for name, data in REFUSED.get(parser.name, {}).items():
        yield f"refused-{name}.bin", data
    for name, data in READ.get(parser.name, {}).items():
        yield f"any-{name}.bin", data


def main() -> None:
    for parser in ALL:
        folder = CORPUS / parser.name
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files(parser):
            path = folder / name
            if not path.exists():
                path.write_bytes(data)


if __name__ == "__main__":
    main()
