#!/usr/bin/env python3
"""Prints the crates that a package of ours contains, with their licences and the texts of these, each text once: for who passes on what is built of it.

  scripts/crate_licences.py tandem-cli

The licences of most crates want their text to go with what is built of them. Texts are those that the crates themselves come with.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TEXTS = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(package):
    """Name and version of the crates below the package that are linked, ours left out."""
    tree = output("cargo", "tree", "--locked", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}")
    # "serde v1.0.229 (proc-macro)"
    return sorted({tuple(line.split()[:2]) for line in tree.splitlines() if line and not line.startswith("tandem-")})


def main():
    host = re.search(r"^host: (.*)$", output("rustc", "-vV"), re.MULTILINE).group(1)
    metadata = output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host)
    known = {(one["name"], "v" + one["version"]): one for one in json.loads(metadata)["packages"]}
    by_text = {}
    crates = [known[crate] for crate in linked(sys.argv[1])]
    for crate in crates:
        folder = Path(crate["manifest_path"]).parent
        print(f'{crate["name"]} {crate["version"]}: {crate["license"] or "see its text"}')
        for file in sorted(folder.iterdir()):
            if file.is_file() and TEXTS.match(file.name):
                text = file.read_text(errors="replace").strip()
                by_text.setdefault(text, []).append(f'{crate["name"]} {crate["version"]}')
    for text, names in by_text.items():
        print("\n" + "-" * 100 + "\n" + ", ".join(names) + "\n\n" + text)
    if not crates:
        sys.exit("crate_licences: no crates were found")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/crate_licences.py PACKAGE")
    main()
