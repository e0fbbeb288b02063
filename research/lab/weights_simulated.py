"""Adds simulated CPU times to the cases of weights-by-mode: scenarios/linux-7.toml with the tasks, weights and CPUs of each case."""

import json
import os
import subprocess
import sys

SIM = os.environ.get("TANDEM_SIM", "target/release/tandem-sim")


def simulate(case, mode, seconds):
    """CPU time of both VMs in `seconds`, after 3 s."""
    settings = {
        "duration": f"{3 + seconds}s",
        "host.eevdf.cgroup_mode": mode,
        "vm.large.vcpus": case["large"],
        "vm.small.vcpus": case["small"],
        "vm.large.weight": 1024 * case["weight"],
    }
    if case["cpus"] == 1:
        settings |= {"vm.large.pins": '"0"', "vm.small.pins": '"0"'}
    command = [SIM, "run", "scenarios/linux-7.toml", "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    results = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    large, small = (vm["received"] for vm in results["vms"])
    return {"large_s": round(large / 1e9, 3), "small_s": round(small / 1e9, 3)}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        data = json.load(file)
    for case in data["cases"]:
        case["simulated"] = {mode: simulate(case, mode, data["seconds"]) for mode in case["modes"]}
    print(json.dumps(data, indent=2))


main()
