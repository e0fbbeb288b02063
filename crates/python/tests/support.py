"""Shared fixtures of the tests of the wheel: a scenario, the command to compare with, and checks for libraries.

TANDEM is the path of the tandem-sim with which results are compared byte for byte, REPOSITORY that of its sources; scripts/test-wheel sets
both.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tandem_sched as ts

REPOSITORY = Path(os.environ.get("REPOSITORY", Path(__file__).parents[3]))
sys.path.insert(0, str(REPOSITORY / "scripts"))
sys.dont_write_bytecode = True
import like_libtest

TEXT = """
duration = "20ms"
warmup = "4ms"
[machine]
pcpus = 2
[[vm]]
name = "a"
vcpus = 2
workload = "mutex"
[[vm]]
name = "b"
vcpus = 2
workload = "burn"
"""
LONG = TEXT.replace("20ms", "4000s")
VARY = {"host.scheduler": ["cfs", "eevdf"], "vm.a.vcpus": "1..3"}
ARGUMENTS = ["--vary", "host.scheduler=cfs,eevdf", "--vary", "vm.a.vcpus=1..3"]
TANDEM = os.environ.get("TANDEM", "")


def has(library):
    return importlib.util.find_spec(library) is not None


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        self.file = self.path / "s.toml"
        self.file.write_text(TEXT)
        self.scenario = ts.Scenario.from_file(self.file)

    def tandem(self, *arguments):
        """Runs the command; returns the content of the file that its last argument names."""
        if not Path(TANDEM).is_file():
            self.skipTest("TANDEM names no binary to compare with")
        command = [TANDEM, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.path, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.path / str(arguments[-1])).read_bytes()
