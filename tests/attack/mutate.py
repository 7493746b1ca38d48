"""What damaged and hostile inputs look like: bytes and JSON, mutated by a seeded generator."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, -1e308, 1e-320,
    float("nan"), float("inf"), -float("inf"), "", " ", "\0", "\ud800", "é" * 300, "x" * 100_000,
    "=cmd()", "../../etc/passwd", "/dev/zero", "<script>alert(1)</script>", "\u202egpj.exe", "1",
    "nan", [], {}, [[]], [None], {"": {}}, [[[[[[]]]]]], ["a", 1, None], {"start": 0},
]  # fmt: skip
"""Values that stand where others should."""
BYTES = (
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"[" * 5000,
    b"\n",
)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to eight things done to them."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not out:
            return bytes(rng.randbytes(rng.randint(0, 40)))
        at = rng.randrange(len(out))
        # Headers decide most, so half of all damage is done there.
        at = at if rng.random() < 0.5 else rng.randrange(min(len(out), 400))
        kind, length = rng.randrange(7), rng.choice((1, 4, 16, 200, 4000))
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at : at + length]
        elif kind == 2:
            out[at : at + 4] = rng.choice(BYTES)
        elif kind == 3:
            out[at:at] = rng.randbytes(length)
        elif kind == 4:
            out[at : at + length] = bytes(min(length, len(out) - at))
        elif kind == 5:
            del out[at:]
        else:
            source = rng.randrange(len(out))
            out[at:at] = out[source : source + length]
    return bytes(out)


def mutated_json(content: Any, rng: random.Random) -> bytes:
    """The text of a JSON document of which some values are odd, gone, doubled or elsewhere."""
    if rng.random() < 0.2:
        return mutated_bytes(json.dumps(content).encode(), rng)
    content = json.loads(json.dumps(content))
    for _ in range(rng.randint(1, 4)):
        content = _mutated(content, rng)
    text = json.dumps(content, ensure_ascii=rng.random() < 0.7)
    if rng.random() < 0.05:
        text = text[: rng.randrange(len(text) + 1)]
    return text.encode("utf-8", "surrogatepass")


def _mutated(value: Any, rng: random.Random) -> Any:
    """One place of a document, deep or shallow, made odd."""
    if not value or not isinstance(value, dict | list) or rng.random() < 0.15:
        return copy.deepcopy(rng.choice(ODD))
    if isinstance(value, list):
        at = rng.randrange(len(value))
        value[at] = _mutated(value[at], rng)
        if rng.random() < 0.1:
            value *= rng.choice((0, 2, 50))
        return value
    key = rng.choice(list(value))
    kind = rng.random()
    if kind < 0.1:
        del value[key]
    elif kind < 0.2:
        value[rng.choice(("", "starc", "\ud800", "v_", "..", "x" * 300))] = value.pop(key)
    elif kind < 0.25:
        return dict(reversed(value.items()))
    else:
        value[key] = _mutated(value[key], rng)
    return value
