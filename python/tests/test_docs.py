"""What docs/errors.md says that messages say, they say."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sources():
    for folder, pattern in (("kvloom", "*.cc"), ("kvloom", "*.h"), ("python/src", "*.cc"), ("python/kvloom", "*.py")):
        for file in (ROOT / folder).rglob(pattern):
            text = file.read_text(encoding="utf-8")
            yield re.sub(r'"\s*\n\s*f?"', "", text)  # strings that go on in the next line


def test_error_index():
    rows = re.findall(r"^\| `([^`]+)`(?: \.\.)? \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) > 30
    everything = "\n".join(sources())
    assert [row for row in rows if row not in everything] == []


def test_links():
    """Files that documents speak of by a link are there."""
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8")):
            assert target.startswith("http") or (document.parent / target).exists(), f"{document.name}: {target}"
