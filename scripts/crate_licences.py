#!/usr/bin/env python3
"""Prints the crates that programs of ours link, with their licences and licence texts, each text once.

  scripts/crate_licences.py PACKAGE…

The licences of most crates require that their text accompanies binaries. The texts are the crates' own files.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TEXTS = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(packages):
    """Name and version of the crates that the packages link, without ours."""
    wanted = [word for package in packages for word in ("--package", package)]
    tree = output("cargo", "tree", "--locked", *wanted, "--edges", "normal", "--prefix", "none", "--format", "{p}")
    # "serde v1.0.229 (proc-macro)"
    return sorted({tuple(line.split()[:2]) for line in tree.splitlines() if line and not line.startswith("tandem-")})


def main():
    host = re.search(r"^host: (.*)$", output("rustc", "-vV"), re.MULTILINE).group(1)
    metadata = output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host)
    known = {(one["name"], "v" + one["version"]): one for one in json.loads(metadata)["packages"]}
    by_text = {}
    crates = [known[crate] for crate in linked(sys.argv[1:])]
    for crate in crates:
        folder = Path(crate["manifest_path"]).parent
        print(f'{crate["name"]} {crate["version"]}: {crate["license"] or "see its licence file"}')
        for file in sorted(folder.iterdir()):
            if file.is_file() and TEXTS.match(file.name):
                text = file.read_text(errors="replace").strip()
                by_text.setdefault(text, []).append(f'{crate["name"]} {crate["version"]}')
    for text, names in by_text.items():
        print("\n" + "-" * 100 + "\n" + ", ".join(names) + "\n\n" + text)
    if not crates:
        sys.exit("crate_licences: no crates found")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: scripts/crate_licences.py PACKAGE…")
    main()
