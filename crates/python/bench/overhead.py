"""Measures the overhead of running a scenario from Python: its CPU time relative to that of the command.

    make wheel && pip install target/wheels/tandem_sched-*.whl && cargo build --release -p tandem-cli
    TANDEM=target/release/tandem-sim python crates/python/bench/overhead.py [SCENARIO.toml] [--rounds N] [--json FILE]

Each round runs both, in alternating order and in separate processes: `tandem-sim run SCENARIO --json FILE`, and `run` in Python with the
same JSON output. The latter is measured from the reading of the scenario, without the start of Python and the import of the wheel, which
are reported separately. CPU time is user and system time of all threads (getrusage). The result is the geometric mean of the ratios, with
their minimum and maximum. Both must be release builds of the same version, on an idle machine.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]

PROGRAM = """
import resource, sys
import tandem_sched as ts

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

before = cpu()
with open(sys.argv[2], "w") as file:
    file.write(ts.run(ts.Scenario.from_file(sys.argv[1])).json())
print(before, cpu() - before)
"""


def cpu_of(command):
    """Returns the CPU time of a command in seconds, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", nargs="?", default=str(REPOSITORY / "scenarios/bench-locks.toml"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json")
    asked = parser.parse_args()
    tandem = os.environ.get("TANDEM", str(REPOSITORY / "target/release/tandem-sim"))
    ratios, starts = [], []
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "python.json", Path(folder) / "command.json"

        def python():
            _, said = cpu_of([sys.executable, "-c", PROGRAM, asked.scenario, str(ours)])
            start, run = map(float, said.split())
            starts.append(start)
            return run

        def command():
            return cpu_of([tandem, "run", asked.scenario, "--json", str(theirs)])[0]

        for number in range(asked.rounds):
            if number % 2:
                run, alone = python(), command()
            else:
                alone, run = command(), python()
            if ours.read_bytes() != theirs.read_bytes():
                sys.exit("the results differ: wheel and command have different versions")
            ratios.append(run / alone)
            print(f"round {number + 1}: command {alone:.3f} s, Python {run:.3f} s, ratio {ratios[-1]:.3f}", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"ratio {mean:.3f} ({min(ratios):.3f} … {max(ratios):.3f}); start and import of Python: {sum(starts) / len(starts):.3f} s")
    if asked.json:
        found = {"ratios": ratios, "mean": mean, "start_s": sum(starts) / len(starts), "scenario": Path(asked.scenario).name}
        Path(asked.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
