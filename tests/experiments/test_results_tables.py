"""The tables of the results pages have the numbers of their stored run files."""

import re

import pytest

from results_tables import MARKED, README, RESULTS, TABLES, page_with_tables, path_of

PAGES = [path_of(README), *sorted(RESULTS.glob("*.md"))]


def test_every_table_stands_on_its_page() -> None:
    shown = {match[1]: page.stem for page in PAGES for match in MARKED.finditer(page.read_text(encoding="utf-8"))}
    assert shown == {name: page for name, (page, _) in TABLES.items()}


@pytest.mark.parametrize("page", sorted({page for page, _ in TABLES.values()}))
def test_each_number_of_a_table_is_that_of_its_run_files(page: str) -> None:
    text = path_of(page).read_text(encoding="utf-8")
    assert page_with_tables(page, text) == text, "run scripts/figures/results_tables.py"
    table = next(match for match in MARKED.finditer(text) if re.search(r"\d", match[2]))
    at = table.start(2) + re.search(r"\d", table[2]).start()
    wrong = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
    assert page_with_tables(page, wrong) == text
