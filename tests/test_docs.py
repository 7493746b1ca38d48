"""Links between documents, the size of the README, and the index of dev/LOG.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("dev/*.md")])
LOG = (ROOT / "dev/LOG.md").read_text("utf-8")


def prose(page: Path) -> str:
    """The text of a page without its code blocks, which may hold brackets and #."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The local links of a page, as file and anchor."""
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(page)):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            yield (page.parent / name if name else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for file, anchor in links(page):
        assert file.exists(), f"{page.name} links to {file}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {file.name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = r"`((?:tests|benchmarks|recipes|examples|docs|dev)/[\w./-]+\.\w+)`"
    past = page.name in ("LOG.md", "CHANGELOG.md")  # may name files that have gone since
    for name in [] if past else re.findall(named, prose(page)):
        assert (ROOT / name).is_file(), f"{page.name} names {name}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


def test_the_log_has_an_index_and_decisions() -> None:
    index, *entries = re.split(r"^## (?=\d{4}-\d\d-\d\d · )", LOG, flags=re.M)
    titles = [entry.splitlines()[0] for entry in entries]
    assert len(titles) > 40 and titles == sorted(titles, key=lambda title: title[:10])
    linked = re.findall(r"^- (\d{4}-\d\d-\d\d) · \[(.+?)\]\(#\S+\): ", index, flags=re.M)
    assert [f"{date} · {name}" for date, name in linked] == titles
    for entry in entries:
        assert re.search(r"^Decision: \S", entry, flags=re.M), entry.splitlines()[0]
