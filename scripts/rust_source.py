"""Reads structs and enums with their doc comments from Rust sources, for the generated references.

It understands the declarations of this repository, not all of Rust: one field or variant per line, attributes above it.
"""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ITEM = re.compile(r"^(?:pub(?:\([a-z]+\))? )?(struct|enum) (\w+)(?: as \w+)?(?:<[^>]*>)?\s*(\{|\(|;)", re.MULTILINE)
# Structs of settings (crates/policy/src/settings.rs): their lines are `pub key: Type = default, range;`.
SETTINGS = re.compile(r"^settings! \{\n((?:    .*\n|\n)*)\}\n", re.MULTILINE)
SETTING = re.compile(r"^(\w+) = (.+?)(?:, (\(.+\)|[\w:]+))?;$")
MEMBER = re.compile(r"^    (?:pub(?:\([a-z]+\))? )?(?:r#)?(\w+)(?::\s*(.+?))?,?$")


@dataclass
class Member:
    name: str
    type: str
    doc: str
    serde: str
    default: str = ""
    range: str = ""


@dataclass
class Item:
    kind: str
    name: str
    path: Path
    doc: str
    serde: str
    members: list = field(default_factory=list)
    inner: str = ""  # of a newtype

    def named(self, member):
        """The name of a member in JSON and TOML."""
        rename = re.search(r'\brename = "([^"]+)"', member.serde)
        if rename:
            return rename[1]
        rule = re.search(r'\brename_all = "([^"]+)"', self.serde)
        words = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", member.name).lower()
        if rule and rule[1] == "kebab-case":
            return words.replace("_", "-")
        if rule and rule[1] == "lowercase":
            return words.replace("_", "")
        return words if rule or self.kind == "struct" else member.name


def sentence(lines):
    """A doc comment as one line of Markdown, without links into the code."""
    text = re.sub(r" \(`crate::[^`]*`\)", "", " ".join(lines)).strip().replace("|", "\\|")
    return re.sub(r"\[(`[^`]*`)\](?:\([^)]*\))?", r"\1", text)


def getters(text):
    """Doc comments of methods without arguments, by name."""
    found = re.findall(r"((?:^ +///.*\n)+)(?: +#\[.*\n)* +pub (?:const )?fn (\w+)\(&?self\)", text, re.MULTILINE)
    return {name: sentence([line.strip()[3:].strip() for line in doc.strip().split("\n")]) for doc, name in found}


def members(block):
    doc, serde, open_attribute = [], "", False
    for line in block.split("\n"):
        stripped = line.strip()
        if open_attribute or stripped.startswith("#["):
            serde += stripped
            open_attribute = not stripped.endswith("]")
        elif stripped.startswith("///"):
            doc.append(stripped[3:].strip())
        elif (found := MEMBER.match(line)) and not stripped.startswith("//"):
            setting = SETTING.match(found[2] or "")
            kind, default, range_ = setting.groups("") if setting else (found[2] or "", "", "")
            yield Member(found[1], kind, sentence(doc), serde, default, range_)
            doc, serde = [], ""


def items(path):
    """The structs and enums of a file, without those of its tests."""
    text = path.read_text().split("\n#[cfg(test)]")[0]
    text = SETTINGS.sub(lambda block: textwrap.dedent(block[1]), text)
    for found in ITEM.finditer(text):
        above = []
        for line in reversed(text[: found.start()].rstrip("\n").split("\n")):
            if not re.match(r"///|#\[|\)\]|    \w.*,?$", line):
                break
            above.insert(0, line)
        doc = sentence([line[3:].strip() for line in above if line.startswith("///")])
        item = Item(found[1], found[2], path, doc, "".join(line for line in above if not line.startswith("///")))
        if found[3] == "{":
            item.members = list(members(text[found.end() : text.index("\n}", found.start())]))
            for member in item.members:
                member.doc = member.doc or getters(text).get(member.name, "")
        elif found[3] == "(":
            item.inner = re.sub(r"\bpub(\([a-z]+\))? ", "", text[found.end() : text.index(")", found.end())])
        yield item


class Sources:
    """All types of some folders, looked up as a file would name them."""

    def __init__(self, folders):
        self.by_name = {}
        for folder in folders:
            for path in sorted(folder.rglob("*.rs")):
                if "tests" not in path.parts and path.stem != "tests":
                    for item in items(path):
                        self.by_name.setdefault(item.name, []).append(item)

    def find(self, name, path):
        """The type that a name means in a file: of the file itself, of an imported module, of the same crate, of any."""
        candidates = self.by_name.get(name, [])
        text = path.read_text()
        imported = re.search(rf"use ([\w:]+)::(?:\{{[^}}]*\b{name}\b[^}}]*\}}|{name}\b)", text)
        modules = set(imported[1].split("::")[-1:]) if imported else set()
        crate = path.parts[: path.parts.index("src")]
        rules = [
            lambda item: item.path == path,
            lambda item: modules & {item.path.stem, item.path.parent.name},
            lambda item: item.path.parts[: len(crate)] == crate,
            lambda item: True,
        ]
        return next((item for rule in rules for item in candidates if rule(item)), None)
