"""Figures of weights-by-case: CPU times from the consoles of the real kernels (one file per machine), and simulated ones.

Usage: weights_by_case.py SECONDS CONSOLE…
CPU times are scaled to SECONDS of all CPUs, because the real windows are longer and some leave a CPU idle.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

SIM = os.environ.get("TANDEM_SIM", "target/release/tandem-sim")
LINE = re.compile(r"MODE (\d+) (\d+) (\d+) (\w+) (\S+) (\d+) (\d+) (\S+) (\S+)")


def simulate(large, small, weight, cpus, mode, seconds):
    """CPU times of both VMs in `seconds`, after 3 s."""
    settings = {
        "duration": f"{3 + seconds}s",
        "host.eevdf.cgroup_mode": mode,
        "vm.large.vcpus": large,
        "vm.small.vcpus": small,
        "vm.large.weight": 1024 * weight,
    }
    if cpus == 1:
        settings |= {"vm.large.pins": '"0"', "vm.small.pins": '"0"'}
    command = [SIM, "run", "scenarios/linux-7.toml", "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    results = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [round(vm["received"] / 1e9, 3) for vm in results["vms"]]


def main():
    seconds = int(sys.argv[1])
    cases, release = {}, ""
    for path in map(pathlib.Path, sys.argv[2:]):
        console = path.read_text(errors="replace").replace("\r", "")
        release = re.search(r"RELEASE (\S+)", console)[1]
        for large, small, weight, mask, mode, l, s, begin, end in LINE.findall(console):
            cpus = int(mask, 16).bit_count()
            key = tuple(map(int, (large, small, weight))) + (cpus,)
            modes = cases.setdefault(key, {})
            l, s = int(l), int(s)
            scale = seconds * cpus / (l + s)
            used = (l + s) / 1e6 / (float(end) - float(begin)) / cpus
            row = modes.setdefault(mode, {"real": {}})
            row["real"][path.name] = [round(l * scale, 3), round(s * scale, 3), round(used, 3)]
    for key, modes in cases.items():
        for mode, row in modes.items():
            row["simulated"] = simulate(*key, mode, seconds)
    names = ("large", "small", "weight", "cpus")
    text = json.dumps({
        "command": f"research/lab/weights-by-case VMLINUZ {seconds}",
        "date": datetime.date.today().isoformat(),
        "evidence": "emulation: a stock Debian kernel in QEMU (TCG), 4 CPUs; two cgroups of busy tasks. CPU seconds of "
                    "both, scaled to all CPUs, and for the kernel the part of the CPUs that both used",
        "release": release,
        "seconds": seconds,
        "cases": [dict(zip(names, key)) | {"modes": modes} for key, modes in cases.items()],
    }, indent=1)
    print(re.sub(r"\[([\s\d.,]+)\]", lambda numbers: "[" + " ".join(numbers[1].split()) + "]", text))


main()
