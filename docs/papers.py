"""Generate a page for each paper: its tables with the paper's value and our figure in each cell.

`python docs/papers.py` writes docs/papers.md and docs/papers/, as does `make docs`. They are not
committed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.claims.table_pages import index_page, judged_papers, paper_page

PAGE = Path(__file__).parent / "papers.md"
FOLDER = Path(__file__).parent / "papers"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old_page in FOLDER.glob("*.md"):
        old_page.unlink()
    papers = judged_papers()
    for paper in papers:
        (FOLDER / paper.page).write_text(paper_page(paper), encoding="utf-8")
    PAGE.write_text(index_page(papers), encoding="utf-8")


if __name__ == "__main__":
    main()
