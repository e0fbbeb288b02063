"""Links and anchors of Markdown documents, as GitHub and mdBook have them.

A link is `[text](target)` or `![text](target)`; code, in blocks and in lines, has none. An anchor is a heading in small letters: letters, digits, `_`
and `-` stay, blanks become `-`, anything else goes; the second of a name has `-1` behind it.
"""

import re

LINK = re.compile(r"\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
FENCE = re.compile(r"^\s*(```+|~~~+)")
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def prose(text):
    """The lines outside of code blocks as (number, line); comments are blank, so that numbers stay right."""
    text = COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    fence = None
    for number, line in enumerate(text.split("\n"), 1):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
        else:
            yield number, line


def links(text):
    """Every link as (line, target)."""
    for number, line in prose(text):
        for found in LINK.finditer(CODE.sub("", line)):
            yield number, found[1]


def is_outside(target):
    """Whether a link leads out of the repository."""
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def anchors(text):
    """The anchors of a document's headings."""
    found, times = set(), {}
    for _, line in prose(text):
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if not heading:
            continue
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
        name = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", words.lower()))
        count = times.get(name, 0)
        times[name] = count + 1
        found.add(f"{name}-{count}" if count else name)
    return found
