"""The pure parts of the page (times, drafts, merging, subtitles), tried in the browser as modules.

A file of `unit/` exports `tests`: names and functions, which get `is(found, wanted, about)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starc.output.chapters import clock
from starc.viewer.server import create_app
from support.viewer_browser import launch, open_page, running

UNITS = Path(__file__).parent / "unit"
RUN = """async (file) => {
    const faults = [];
    const { tests } = await import(`/unit/${file}`);
    for (const [name, run] of Object.entries(tests)) {
        const is = (found, wanted, about = "") => {
            const [a, b] = [found, wanted].map((one) => JSON.stringify(one));
            if (a !== b) faults.push(`${name} ${about}: ${a} instead of ${b}`);
        };
        try { run(is); } catch (error) { faults.push(`${name}: ${error.stack}`); }
    }
    return [Object.keys(tests).length, faults];
}"""

browser = pytest.fixture(scope="module")(launch)


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running(create_app([tmp_path_factory.mktemp("units")])) as site:
        for page in open_page(browser, site):
            page.route("**/unit/*.js", lambda route: route.fulfill(
                path=UNITS / route.request.url.rsplit("/", 1)[1], content_type="text/javascript",
            ))  # fmt: skip
            page.goto("/")
            yield page


@pytest.mark.parametrize("file", sorted(path.name for path in UNITS.glob("*.js")))
def test_unit(page: Any, file: str) -> None:
    run, faults = page.evaluate(RUN, file)
    assert run and not faults, "\n".join(faults)


def test_times_are_cut_the_same_way_in_exports_and_on_the_page(page: Any) -> None:
    times = [0.0, 0.9994, 0.9996, 7.63, 59.5, 59.9996, 61.25, 599.999, 3599.9996, 3725.75]
    shown = page.evaluate(
        "async (times) => { const { clock } = await import('/static/times.js');"
        " return times.map((time) => clock(time)); }",
        times,
    )
    assert shown == [clock(time).removeprefix("0") for time in times]
