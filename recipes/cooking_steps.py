"""Write cooking steps from a grammar: the captions of the embedded model's datastore.

    python recipes/cooking_steps.py

`cooking_steps.toml` holds the grammar. A *kind* lists ingredients (`name|other name`), a *dish*
says which of them it has, what it is cooked in, and by which *techniques* it is made; a technique
is a list of templates, and so are a dish's own steps. In a template

    [a|b|]        is one of these
    {kind}        an ingredient of the dish, {kind.} perhaps with an adjective (chopped onions)
    {kind*}       one to three of them, {kind+} two to four
    {rule}        one alternative of the dish's or the common rule of that name
    text @3       weighs three times as much

No ingredient comes twice in a step, and a step that asks for a kind its dish lacks is dropped: one
whisks eggs, not a chicken. The same seed gives the same file on every machine.

Plain steps ("flip the naan over") are the same in everybody's words. So that no sentence of a data
set is shipped, `skip` lists the marks of those that were met; `--check` with annotation files finds
more:

    python recipes/cooking_steps.py --check $STARC_SHARED/data/yc2/vid2seq_*.json
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starc.retrieval.captions import read_captions, same_text

GRAMMAR = Path(__file__).with_suffix(".toml")
COUNT = 6000
SEED = 2026
WORDS = (4, 16)
ALWAYS = ("add", "common", "prep", "serve")
"""Techniques of every dish."""
SHARES = {"own": 0.27, "add": 0.27, "common": 0.12, "prep": 0.06, "serve": 0.06}
"""Of a dish's steps; its other techniques share the rest."""
ADJECTIVE = 0.3
"""How often an ingredient in a list has one."""
JOINED = 0.12
"""How often two steps of a dish become one."""
SMALL = frozenset(
    re.findall(
        r"\w+",
        "a an and at for from in into it of off on onto out over some the them then to up with "
        "cook mix stir together well",
    )
)
"""Words that do not make another step."""
TWICE = frozenset({"black", "chopped", "green", "oil", "paste", "pepper", "powder", "red", "sauce"})
"""Other words that may come twice in a step."""

Weighted = list[tuple[str, float]]


class Absent(Exception):
    """The dish has no (further) ingredient of the kind that a template asks for."""


@dataclass
class Dish:
    """What one dish is made of and how."""

    weight: float
    has: frozenset[str]
    rules: dict[str, Weighted]
    templates: dict[str, Weighted]


@dataclass
class Grammar:
    """The grammar as read: ingredients by kind, adjectives, common rules, dishes."""

    kinds: dict[str, list[list[str]]]
    unions: dict[str, Weighted]
    adjectives: dict[str, Weighted]
    rules: dict[str, Weighted]
    dishes: list[Dish]
    skip: frozenset[str]
    """Marks of steps to leave out."""


def weighted(items: Sequence[str]) -> Weighted:
    """`text @3` as (text, 3); without a weight 1."""
    found = []
    for item in items:
        text, _, weight = item.partition("@")
        found.append((text.strip(), float(weight or 1)))
    return found


def listed(text: str) -> Weighted:
    """Alternatives between commas."""
    return weighted(text.split(","))


def read_grammar(path: Path = GRAMMAR) -> Grammar:
    """The grammar of a file; a dish that asks for an unknown ingredient is an error."""
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    kinds = {
        kind: [[name.strip() for name in names.split("|")] for names in text.split(",")]
        for kind, text in table["kinds"].items()
    }
    known = {names[0] for group in kinds.values() for names in group}
    dishes = []
    for name, entry in table["dishes"].items():
        dish = _dish(entry, table["techniques"])
        if unknown := sorted(dish.has - known):
            raise SystemExit(f"{path}: {name} has {unknown[0]!r}, which is of no kind; add it")
        dishes.append(dish)
    return Grammar(
        kinds,
        {name: listed(text) for name, text in table["unions"].items()},
        {name: listed(text) for name, text in table["adjectives"].items()},
        {name: listed(text) for name, text in table["rules"].items()},
        dishes,
        frozenset(table["skip"].split()),
    )


def _dish(entry: dict[str, Any], techniques: dict[str, list[str]]) -> Dish:
    fixed = {"has", "does", "steps", "weight"}
    does = (*ALWAYS, *(name for name, _ in listed(entry["does"])))
    templates = {name: weighted(techniques[name]) for name in does}
    if entry["steps"]:
        templates["own"] = weighted(entry["steps"])
    return Dish(
        entry.get("weight", 1.0),
        frozenset(name for name, _ in listed(entry["has"])),
        {name: listed(text) for name, text in entry.items() if name not in fixed},
        templates,
    )


@dataclass
class Writer:
    """Writes one step: expands a template, and remembers which ingredients are used."""

    grammar: Grammar
    dish: Dish
    rng: random.Random
    used: set[str] = field(default_factory=set)

    def step(self) -> str:
        """A step of the dish; raises `Absent` where a template does not suit it."""
        template = self._template()
        if self.rng.random() < JOINED:
            template = f"{template} and {self._template()}"
        text = " ".join(self.expand(template).split())
        return re.sub(r"\b(?:the|some) (?=(?:the|some|a|half|\d) )", "", text)

    def _template(self) -> str:
        return self.pick(self.dish.templates[self.pick(self._techniques())])

    def _techniques(self) -> Weighted:
        others = [name for name in self.dish.templates if name not in SHARES]
        rest = (1 - sum(SHARES.values())) / max(len(others), 1)
        return [(name, SHARES.get(name, rest)) for name in self.dish.templates]

    def pick(self, alternatives: Weighted) -> str:
        """One of the alternatives by weight."""
        left = self.rng.random() * sum(weight for _, weight in alternatives)
        for text, weight in alternatives:
            left -= weight
            if left < 0:
                return text
        return alternatives[-1][0]

    def expand(self, text: str) -> str:
        """The template with every choice made, from left to right."""
        while found := re.search(r"\[([^\[\]]*)\]|\{([^{}]*)\}(?![^\[\]]*\])", text):
            if found[2] is None:
                options = [*found[1].split("|")]
                if len(options) == 1:
                    options.append("")
                chosen = self.pick([(option, 1.0) for option in options])
            else:
                chosen = self.symbol(found[2])
            text = text[: found.start()] + chosen + text[found.end() :]
        return text

    def symbol(self, name: str) -> str:
        """What stands for a name in braces."""
        kind = name.rstrip(".*+")
        if kind in self.dish.rules:
            return self.pick(self.dish.rules[kind])
        if kind in self.grammar.rules:
            return self.pick(self.grammar.rules[kind])
        if name.endswith("."):
            return self.ingredient(kind, adjective=0.7)
        if name.endswith(("*", "+")):
            sizes: Weighted = [("1", 4), ("2", 4), ("3", 2)]
            if name.endswith("+"):
                sizes = [("2", 5), ("3", 4), ("4", 2)]
            return self.several(kind, int(self.pick(sizes)))
        return self.ingredient(kind)

    def several(self, kind: str, count: int) -> str:
        """`a b and c`: as many ingredients of the kind, without commas."""
        items = [self.ingredient(kind, adjective=ADJECTIVE) for _ in range(count)]
        return " and ".join([*([" ".join(items[:-1])] if count > 1 else []), items[-1]])

    def ingredient(self, kind: str, *, adjective: float = 0.0) -> str:
        """An ingredient of the dish that the step does not have yet."""
        while kind in self.grammar.unions:
            fitting = [(k, w) for k, w in self.grammar.unions[kind] if self._fits(k)]
            if not fitting:
                raise Absent(kind)
            kind = self.pick(fitting)
        if kind not in self.grammar.kinds:
            raise Absent(kind)
        names = [group for group in self.grammar.kinds[kind] if self._free(group)]
        if not names:
            raise Absent(kind)
        group = names[int(self.rng.random() * len(names))]
        self.used.add(group[0])
        name = self.pick([(name, 2.0 if n == 0 else 1.0) for n, name in enumerate(group)])
        if self.rng.random() < adjective:
            return f"{self.pick(self.grammar.adjectives[kind])} {name}"
        return name

    def _free(self, group: list[str]) -> bool:
        return group[0] in self.dish.has and group[0] not in self.used

    def _fits(self, kind: str) -> bool:
        if kind in self.grammar.unions:
            return any(self._fits(part) for part, _ in self.grammar.unions[kind])
        return any(self._free(group) for group in self.grammar.kinds[kind])


def cooking_steps(
    count: int = COUNT, seed: int = SEED, grammar: Grammar | None = None
) -> list[str]:
    """As many steps that differ by more than small words, in the order they were thought of."""
    grammar = grammar or read_grammar()
    rng = random.Random(seed)
    found: dict[frozenset[str], str] = {}
    chooser = Writer(grammar, grammar.dishes[0], rng)
    menu = [(str(n), dish.weight) for n, dish in enumerate(grammar.dishes)]
    while len(found) < count:
        dish = grammar.dishes[int(chooser.pick(menu))]
        try:
            step = Writer(grammar, dish, rng).step()
        except Absent:
            continue
        if sensible(step) and mark(step) not in grammar.skip:
            found.setdefault(frozenset(step.split()) - SMALL, step)
    return list(found.values())


def sensible(step: str) -> bool:
    """Whether a step has a cook's length and repeats nothing."""
    words = step.split()
    telling = [word for word in words if word not in SMALL | TWICE]
    return WORDS[0] <= len(words) <= WORDS[1] and len(set(telling)) == len(telling)


def mark(step: str) -> str:
    """Eight hexadecimal digits for a step, blind to case, spacing and punctuation."""
    return f"{zlib.crc32(same_text(step).encode()):08x}"


def met(steps: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The steps that are captions of annotation files."""
    theirs = {same_text(caption) for path in paths for caption in read_captions(path).captions}
    return [step for step in steps if same_text(step) in theirs]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("cooking_steps.jsonl"))
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--check", type=Path, nargs="+", metavar="ANNOTATIONS")
    asked = parser.parse_args()
    steps = cooking_steps(asked.count, asked.seed)
    if asked.check:
        found = met(steps, asked.check)
        print(f"{len(found)} of {len(steps)} steps occur there; their marks, for `skip`:")
        print(" ".join(mark(step) for step in found))
        return
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"caption": step}, ensure_ascii=False) + "\n" for step in steps)
    asked.out.write_text(lines, encoding="utf-8", newline="\n")
    print(f"{asked.out}: {len(steps)} steps")


if __name__ == "__main__":
    main()
