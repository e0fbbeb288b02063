#!/usr/bin/env python3
"""Copies the documents into the folder of a package, with links that work there.

  scripts/deb_docs.py ROOT

Documents keep their relative paths below /usr/share/doc/tandem. Links to files that the package installs elsewhere get
their installed path; links to files of the source only become plain text. Pictures of documents are copied, too.
"""

import os
import re
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
DOC = Path("usr/share/doc/tandem")
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "docs/*.md", "docs/reference/*.md", "docs/decisions/*.md"]
# Not for readers: the table of contents of the book.
OMITTED = {Path("docs/SUMMARY.md")}
# Installed paths of other files of the source.
ELSEWHERE = {
    "packaging/tandem.toml": "etc/tandem.toml",
    "packaging/systemd": "usr/lib/systemd/system",
    "packaging/systemd/tandem-export.service.d": "usr/share/doc/tandem/examples/tandem-export.service.d",
    "packaging/grafana": "usr/share/tandem/grafana",
    "packaging/prometheus": "usr/share/tandem/prometheus",
    "CHANGELOG.md": "usr/share/doc/tandem/CHANGELOG.md.gz",
    "LICENSE-APACHE": "usr/share/common-licenses/Apache-2.0",
    "LICENSE-GPL-2.0": "usr/share/common-licenses/GPL-2",
    "LICENSE-MIT": "usr/share/doc/tandem/copyright",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def installed(path, documents):
    """The installed path of a file or folder of the source; None if the package does not have it."""
    if path in documents or any(path in document.parents for document in documents):
        return DOC / path
    for above in [path, *path.parents]:
        if str(above) in ELSEWHERE:
            return Path(ELSEWHERE[str(above)]) / path.relative_to(above)
    return None


def adapted(path, text, documents, pictures):
    """The text of a document with links for the package; adds the pictures of the document to `pictures`."""

    def link(match):
        bang, words, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        file, _, part = target.partition("#")
        inside = Path(os.path.normpath(path.parent / file))
        there = installed(inside, documents)
        if there is None and bang and (SOURCE / inside).is_file():
            pictures.add(inside)
            there = DOC / inside
        if there is None:
            return words
        begin = "/" if there.parts[:4] != DOC.parts else ""
        to = there if begin else Path(os.path.relpath(there, (DOC / path).parent))
        return f"{bang}[{words}]({begin}{to}{'#' + part if part else ''})"

    return LINK.sub(link, text)


def main():
    root = Path(sys.argv[1])
    found = {path.relative_to(SOURCE) for pattern in DOCUMENTS for path in SOURCE.glob(pattern)}
    documents, pictures = found - OMITTED, set()
    for path in sorted(documents):
        into = root / DOC / path
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_text(adapted(path, (SOURCE / path).read_text(), documents, pictures))
        into.chmod(0o644)
    for path in sorted(pictures):
        (root / DOC / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SOURCE / path, root / DOC / path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/deb_docs.py ROOT")
    main()
