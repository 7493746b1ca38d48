"""Plain values in, checked dataclasses out: the reading side of any config of ours.

`build` makes a nested dataclass from the dictionaries of a JSON file, `override` sets one field
from the text of a command line. Both are strict: an unknown name is a ConfigError that offers the
nearest one, a value of the wrong type says what was expected.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from starc.errors import ConfigError


def override(config: Any, text: str) -> Any:
    """The dataclass with one `dotted.key=value` applied; `part=none` and `part=on` switch parts."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r}: no value; write {key.strip()}=VALUE")
    return _replaced(config, key.strip().split("."), value.strip(), key.strip())


def suggest(name: str, known: Iterable[str]) -> str:
    """Words for an error message: the nearest known name, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def _part(hint: Any) -> type | None:
    """The dataclass of a field that is one, or one or None."""
    for option in (hint, *typing.get_args(hint)):
        if isinstance(option, type) and dataclasses.is_dataclass(option):
            return option
    return None


def build(kind: type, data: Any, where: str) -> Any:
    """A dataclass from plain dictionaries, checking names and types."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected an object (found {data!r})")
    hints = typing.get_type_hints(kind)
    for name in data:
        if name not in hints:
            raise ConfigError(f"{where}.{name}: unknown setting; {suggest(name, hints)}")
    if missing := [name for name in hints if name not in data]:
        raise ConfigError(f"{where}: missing {', '.join(missing)}; write all settings")
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        value, part = data[name], _part(hint)
        if part is not None and value is not None:
            values[name] = build(part, value, f"{where}.{name}")
        else:
            values[name] = _typed(value, hint, f"{where}.{name}")
    return kind(**values)


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The JSON value as the field's type: lists become tuples, whole numbers floats."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in options:
            try:
                return _typed(value, option, where)
            except ConfigError:
                continue
    elif origin is Literal:
        if value in options and isinstance(value, str):
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_typed(item, options[0], where) for item in value)
    elif hint is type(None):
        if value is None:
            return None
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is hint:
        return value
    raise ConfigError(f"{where}: expected {_describe(hint)} (found {value!r})")


def _describe(hint: Any) -> str:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in options)
    if origin is Literal:
        return " or ".join(options)
    if origin is tuple:
        return "numbers joined by commas"
    if dataclasses.is_dataclass(hint):
        return "on"
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    return names.get(hint, "text")


def _replaced(part: Any, path: list[str], text: str, key: str) -> Any:
    """The dataclass with the setting at `path` read from `text`."""
    hints = typing.get_type_hints(type(part))
    name, rest = path[0], path[1:]
    if name not in hints:
        raise ConfigError(f"{key}: unknown setting {name!r}; {suggest(name, hints)}")
    inner = _part(hints[name])
    value = getattr(part, name)
    if rest:
        if inner is None:
            raise ConfigError(f"{key}: {name!r} has no settings of its own")
        value = _replaced(inner() if value is None else value, rest, text, key)
    elif inner is not None and text == "on":
        value = inner()
    else:
        value = _typed(_plain(text, hints[name]), hints[name], key)
    return dataclasses.replace(part, **{name: value})


def _plain(text: str, hint: Any) -> Any:
    """Text of the command line as a JSON-like value."""
    words = {"none": None, "true": True, "false": False}
    if hint is not str and text.lower() in words:
        return words[text.lower()]
    if "tuple" in str(hint) and "," in text.strip("()[]"):
        return [_plain(item.strip(), int) for item in text.strip("()[]").rstrip(",").split(",")]
    if hint == tuple[int, ...]:
        return [_plain(text.strip("()[]"), int)]
    for kind in (int, float):
        try:
            return text if hint is str else kind(text)
        except ValueError:
            continue
    return text
