"""Text that is not English is known by its letters and its small words."""

from __future__ import annotations

import pytest

from starc.media.language import why_foreign

ENGLISH = "First cut the beets and carrots into strips, then fry the onion until it is golden."


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Сначала нарежьте свёклу и морковь тонкой соломкой.", "written in Cyrillic letters"),
        ("먼저 양파를 썰어서 팬에 볶아 주세요", "written in Hangul letters"),
        ("首先把洋葱切成小块然后放入锅中炒熟", "written in CJK letters"),
        (
            "Zuerst schneiden wir die Rüben und das Gemüse, dann kommt der Topf auf den Herd.",
            "German words",
        ),
        (
            "On coupe les carottes et les oignons, puis on met le beurre dans la poêle.",
            "French words",
        ),
        (
            "Primero cortamos las cebollas y los ajos, y con el aceite se pone todo en la olla.",
            "Spanish words",
        ),
        (ENGLISH, None),
        (f"{ENGLISH} Это борщ.", None),
        ("Add the crème fraîche and the jalapeños to the pâté de foie gras on the plate", None),
        ("2 3 4 ♪ ♪ [Music] 10 %", None),
        ("Kartoffeln schälen", None),  # too short to tell
        ("w1 w2 w3 w4 w5 w6 w7 w8 w9", None),
        ("", None),
    ],
)
def test_what_is_not_english(text: str, why: str | None) -> None:
    assert why_foreign(text.split(", ")) == why
