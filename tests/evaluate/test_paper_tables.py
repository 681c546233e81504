"""The paper's figures as data: they can be asked for, and they are what the paper prints."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from ucofia.errors import UnknownNameError
from ucofia.evaluate import paper_tables

SHARED = Path(os.environ.get("UCOFIA_SHARED", Path(__file__).parents[3] / "shared"))
TEX = SHARED / "paper" / "ucofia.tex"
needs_paper = pytest.mark.skipif(not TEX.exists(), reason="the paper is not here")


def printed_numbers(label: str) -> Counter[float]:
    """Every number in the cells of a table of the TeX source, with how often it occurs."""
    text = TEX.read_text(encoding="utf-8")
    end = text.index(f"\\label{{table:{label}}}")
    body = text[text.rindex("\\begin{tabular}", 0, end) : end].split("\\end{tabular}")[0]
    cells = re.sub(r"\\(multicolumn|multirow|cline|cite|setlength)\{[^}]*\}", "", body)
    # A figure has a decimal point, except the parameters of the table of costs.
    pattern = r"(?<![\w.@-])\d+\.\d+(?![\w])" + (r"|\b16[46]\b" if label == "computation" else "")
    return Counter(float(number) for number in re.findall(pattern, cells))


@needs_paper
@pytest.mark.parametrize("name", [n for n in paper_tables.tables() if not n.startswith("text:")])
def test_a_table_holds_every_number_of_the_paper_and_no_other(name: str) -> None:
    ours = Counter(v for row in paper_tables.figures(table=name) for v in row.values.values())
    assert ours == printed_numbers(name)


@needs_paper
def test_no_table_of_the_paper_is_missing_and_their_order_is_its() -> None:
    text = TEX.read_text(encoding="utf-8")
    labels = re.findall(r"\\label\{table:([^}]*)\}", text)
    numbered = [t for t in paper_tables.tables().values() if t.number is not None]
    assert [t.name for t in numbered] == labels
    assert [t.number for t in numbered] == list(range(1, len(labels) + 1))


@needs_paper
def test_figures_given_in_sentences_stand_there() -> None:
    text = TEX.read_text(encoding="utf-8")
    for row in paper_tables.figures():
        if row.table.startswith("text:"):
            for value in row.values.values():
                assert f"${value:g}\\%$" in text


def test_the_papers_own_rows_are_found() -> None:
    (main,) = paper_tables.figures(table="sota", dataset="msrvtt", method="UCoFiA")
    assert (main.direction, main.values) == ("t2v", {"R@1": 49.4, "R@5": 72.1, "MnR": 12.9})
    (back,) = paper_tables.figures(table="v2t", dataset="didemo", method="UCoFiA")
    assert back.values == {"R@1": 46.0, "R@5": 71.9}
    (vatex,) = paper_tables.figures(dataset="vatex", method="TS2-Net")
    assert vatex.values == {"R@1": 59.1, "R@5": 90.0, "MnR": 3.5}
    without, balanced = paper_tables.figures(table="abla4")
    assert not without.setting["sinkhorn"] and balanced.setting["sinkhorn"]
    assert balanced.values["R@1"] == 49.4 and without.values["R@10"] == 82.3


def test_a_metric_that_a_table_leaves_out_is_absent() -> None:
    (row,) = paper_tables.figures(table="didemo", direction="v2t", method="X-CLIP")
    assert row.values == {"R@1": 43.1, "R@5": 72.2, "MnR": 10.9}


def test_main_tables_and_appendix_disagree_where_the_paper_does() -> None:
    rows = paper_tables.figures(dataset="activitynet", direction="t2v", method="UCoFiA")
    found = {row.table: row.values for row in rows}
    assert (found["sota"]["R@5"], found["anet"]["R@5"]) == (76.0, 76.6)
    assert (found["sota"]["MnR"], found["anet"]["MnR"]) == (6.6, 6.4)


def test_an_unknown_table_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="unknown table of the paper 'soat'; did you mean"):
        paper_tables.figures(table="soat")
