"""Inputs from a few good ones: changed bytes for parsers of text and frames, changed values for messages. Seeded."""

import random
from collections.abc import Sequence
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63),
    0.5, -0.0, 1e-300, 1e300, 1e9, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "",
    "\0",
    "n0",
    "ä",
    "\ud7ff",
    "x" * 200,
    "../..",
    "-oProxyCommand=x",
    "float32",
    "[",
    '"',
    "1e999",
    "9" * 400,
    "\n",
)
TOKENS = tuple(text.encode() for text in TEXTS) + tuple(str(number).encode() for number in NUMBERS) + (
    b"[[nodes]]", b"[", b"]", b"{", b"}", b"=", b'"', b"'''", b"\n", b"\r\n", b"#", b",", b":", b"true", b"null", b"nan", b"inf",
    b"[" * 300, b"{\"a\":" * 300, b"\xff", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"2020-01-01", b"0x10", b"1_0", b"\xef\xbb\xbf",
)  # fmt: skip


def mutate_bytes(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One to five changes of one of the corpus."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 5)):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 64)))
        match rng.randrange(8):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.randrange(256)
            case 2:
                data[at:at] = rng.choice(TOKENS)
            case 3:
                data[at:end] = rng.choice(TOKENS)
            case 4:
                del data[at:end]
            case 5:
                data[at:at] = data[at:end] * rng.choice((1, 2, 20))
            case 6:
                other = rng.choice(corpus)
                start = rng.randint(0, len(other))
                data[at:end] = other[start : start + rng.randint(0, 64)]
            case _:
                lines = bytes(data).split(b"\n")
                rng.shuffle(lines) if rng.random() < 0.3 else lines.insert(at % len(lines), rng.choice(lines))
                data = bytearray(b"\n".join(lines))
    return bytes(data[:65536])


def mutate_value(rng: random.Random, value: Any, often: float = 0.3) -> Any:
    """The same structure with some leaves, items or fields changed."""
    if rng.random() < often / 4:
        return rng.choice((rng.choice(NUMBERS), rng.choice(TEXTS), None, True, [], {}, [value], [value] * 3))
    if isinstance(value, dict):
        changed = {name: mutate_value(rng, one, often) for name, one in value.items()}
        if changed and rng.random() < often / 4:
            changed.pop(rng.choice(list(changed)))
        return changed
    if isinstance(value, list):
        some = [mutate_value(rng, one, often) for one in value]
        return some * 2 if rng.random() < often / 8 else some
    if isinstance(value, bool) or rng.random() > often:
        return value
    if isinstance(value, int | float):
        near = value + rng.choice((-1, 1, 0.5, value, -value / 2))
        return rng.choice((near, rng.choice(NUMBERS), int(near) if abs(near) < 1e15 else 0))
    return rng.choice(TEXTS) if isinstance(value, str) else value
