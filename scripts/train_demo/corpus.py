"""Text of the training domains, taken from Debian packages that are freely licensed.

Documents are ordered by a hash of their text, and every eighth of them is held out: neither the
routers nor the deltas ever see it.
"""

import gzip
import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

PACKAGES = {
    "python3.11-doc": "PSF-2.0",
    "rust-doc": "MIT or Apache-2.0",
    "sqlite3-doc": "public domain",
    "postgresql-doc-15": "PostgreSQL licence",
    "nodejs-doc": "MIT",
    "bible-kjv-text": "text: public domain",
    "bible-kjv": "GPL-2+ program, only run to unpack the text",
    "wordnet-base": "WordNet licence (BSD-like)",
    "jargon-text": "public domain; never trained on, only measured",
}
HELD_OUT_EVERY = 8
# Pages that repeat all others would carry held-out text into training.
REPEATS = {"all.html", "print.html", "index.html", "genindex-all.html"}


def fetch(root: Path) -> None:
    """Download (56 MB) and unpack the packages under `root`, once. Needs apt-get and dpkg."""
    for name in PACKAGES:
        target = root / "packages" / name
        if target.exists():
            continue
        archives = root / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", name], cwd=archives, check=True)
        archive = next(archives.glob(f"{name}_*.deb"))
        subprocess.run(["dpkg", "-x", str(archive), str(target)], check=True)


def documents(root: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Domain -> (training documents, held-out documents), in a fixed order."""
    packages = root / "packages"
    sources: dict[str, Callable[[Path], Iterator[str]]] = {
        "python": _python,
        "rust": _rust,
        "sql": _sql,
        "node": _node,
        "bible": _bible,
        "wordnet": _wordnet,
    }
    return {name: split(list(read(packages))) for name, read in sources.items()}


def unseen(root: Path) -> list[str]:
    """Text of a kind that training never sees: entries of the Jargon File."""
    path = root / "packages/jargon-text/usr/share/doc/jargon-text/jargon.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        text = re.sub(r"\n\s*\n+", "\n\n", re.sub(r"\n +", "\n", file.read()))
    body = text[len(text) // 3 :]  # after the word lists
    return split([body[i : i + 4000] for i in range(0, len(body), 4000)])[1]


def split(texts: list[str]) -> tuple[list[str], list[str]]:
    """Order texts by hash and hold out every eighth."""
    ordered = sorted(set(texts), key=lambda t: hashlib.sha256(t.encode()).digest())
    kept = [t for i, t in enumerate(ordered) if i % HELD_OUT_EVERY]
    return kept, ordered[::HELD_OUT_EVERY]


def _python(packages: Path) -> Iterator[str]:
    root = packages / "python3.11-doc/usr/share/doc/python3.11/html"
    for part in ("library", "tutorial", "howto", "reference", "faq"):
        yield from _pages(root / part, "*.html", start='role="main">', end='class="sphinxsidebar"')


def _rust(packages: Path) -> Iterator[str]:
    root = packages / "rust-doc/usr/share/doc/rust-doc/html"
    for part in ("book", "reference", "rust-by-example", "nomicon", "cargo"):
        yield from _pages(root / part, "**/*.html", start="<main", end="</main>")


def _sql(packages: Path) -> Iterator[str]:
    yield from _pages(packages / "sqlite3-doc/usr/share/doc/sqlite3", "*.html", start="<body")
    root = packages / "postgresql-doc-15/usr/share/doc/postgresql-doc-15/html"
    yield from _pages(root, "*.html", start="<body")


def _node(packages: Path) -> Iterator[str]:
    root = packages / "nodejs-doc/usr/share/doc/nodejs/api"
    for page in _pages(root, "*.html", start='id="apicontent"', end="</body"):
        yield from (page[i : i + 12_000] for i in range(0, len(page), 12_000))


def _bible(packages: Path) -> Iterator[str]:
    program = packages / "bible-kjv/usr/bin/bible"
    data = packages / "bible-kjv-text/usr/lib"
    command = [str(program), "-f", "-p", str(data), "Gen1:1-Rev22:21"]
    raw = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    chapters: dict[str, list[str]] = {}
    for line in raw.splitlines():
        match = re.match(r"(\w+ ?\d+):\d+ (.+)", line.strip())
        if match:
            chapters.setdefault(match[1], []).append(match[2])
    yield from (" ".join(verses) for verses in chapters.values())


def _wordnet(packages: Path) -> Iterator[str]:
    root = packages / "wordnet-base/usr/share/wordnet"
    for part in ("noun", "verb", "adj"):
        entries = []
        for line in (root / f"data.{part}").read_text(encoding="latin-1").splitlines():
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            if line.startswith(" ") or not gloss:
                continue
            words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
            names = ", ".join(re.sub(r"\(\w+\)$", "", w).replace("_", " ") for w in words)
            entries.append(f"{names}: {gloss.strip()}")
        yield from ("\n".join(entries[i : i + 40]) for i in range(0, len(entries), 40))


def _pages(root: Path, pattern: str, *, start: str, end: str = "</body") -> Iterator[str]:
    for path in sorted(root.glob(pattern)) + sorted(root.glob(pattern + ".gz")):
        if path.name in REPEATS:
            continue
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", errors="replace") as file:
            page = file.read()
        body = page.partition(start)[2].partition(end)[0]
        text = html_text(body if start.endswith(">") else body.partition(">")[2])
        if len(text) > 1500:
            yield text


_BLOCKS = {"p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "dt", "dd", "tr", "table"}
_BLOCKS |= {"section", "pre", "ul", "ol", "dl", "blockquote", "br"}
_HIDDEN = {"script", "style", "nav", "button", "svg", "select"}


class _Text(HTMLParser):
    """Collects visible text; white space is kept only inside <pre>."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = self.pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in _HIDDEN
        self.pre += tag == "pre"
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.hidden = max(0, self.hidden - (tag in _HIDDEN))
        self.pre = max(0, self.pre - (tag == "pre"))
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def html_text(body: str) -> str:
    """Plain text of an HTML fragment."""
    parser = _Text()
    parser.feed(body)
    text = "".join(parser.parts).replace("¶", "")
    return re.sub(r"\n\s*\n+", "\n\n", re.sub(r" *\n", "\n", text)).strip()
