"""Tests of the installed wheel tandem-sched: objects, pictures, ported policies.

Shared fixtures are in support.py; scripts/test-wheel runs the tests.
"""

import importlib.metadata
import importlib.util
import pickle
import re
import subprocess
import sys
from unittest import mock

import tandem_sched as ts
from support import REPOSITORY, VARY, Case, like_libtest
from tandem_sched.objects import Host, Machine, Role, Vm, Workload


class Objects(Case):
    def test_a_scenario_of_objects_is_that_of_the_text(self):
        vms = [Vm("a", 2, "mutex"), Vm("b", 2, "burn")]
        made = ts.objects.scenario(Machine(2), vms, duration="20ms", warmup="4ms", name="s")
        self.assertEqual(ts.run(made).json(), ts.run(self.scenario).json())
        within = ts.Scenario.from_dict({"name": "s", "duration": "20ms", "warmup": "4ms", "machine": Machine(2), "vm": vms})
        self.assertEqual(ts.run(within).json(), ts.run(self.scenario).json())

    def test_workloads_of_objects_become_part_of_the_scenario(self):
        steps = [{"forever": [{"locked": "hash[random]", "do": [{"compute": "1us"}]}, {"compute": "exp(5us)"}, "work"]}]
        objects = {"hash": {"kind": "spin", "count": 4}}
        cache = Workload("cache", objects=objects, unit="requests", roles=[Role("1 per vcpu", steps)])
        vms = [Vm("web", 2, cache, weight=2048), Vm("other", 1, cache), Vm("burn", 2, "burn")]
        host = Host("cfs", pause_loop={"policy": "off"}, tick="1ms")
        made = ts.objects.scenario(Machine(2, costs={"vm_exit": 900}), vms, host, duration="20ms", policies=["fair"])
        self.assertEqual(made.vms, {"web": 2, "other": 1, "burn": 2})
        self.assertEqual(made.toml.count("[[workload]]"), 1)
        work = [vm["work"] for vm in ts.run(made).to_dict()["vms"]]
        self.assertTrue(all(work), work)
        with self.assertRaisesRegex(ValueError, "two workloads are called 'cache'"):
            other = Workload("cache", roles=[Role(1, ["work", "exit"])])
            ts.objects.scenario(Machine(2), [Vm("web", 2, cache), Vm("x", 1, other)], duration="20ms")

    def test_what_is_wrong_in_objects_is_said(self):
        with self.assertRaises(ts.ScenarioError) as raised:
            ts.objects.scenario(Machine(2, pcpu_per_llc=1), [Vm("a", 2, "mutex")], duration="20ms", name="mine")
        self.assertIn("did you mean `pcpus_per_llc`?", str(raised.exception))
        self.assertEqual(raised.exception.file, "mine.toml")

    def test_scenarios_can_be_sent_to_other_processes(self):
        made = ts.Scenario.from_dict({"name": "s", "duration": "20ms", "machine": Machine(2), "vm": [Vm("a", 2, "mutex")]})
        settings = self.scenario.with_settings({"vm.*.vcpus": 1}).with_settings(seed=7)
        for scenario in (self.scenario, made, settings):
            again = pickle.loads(pickle.dumps(scenario))
            self.assertEqual(ts.run(again).json(), ts.run(scenario).json())
            self.assertEqual(repr(again), repr(scenario))


class Pictures(Case):
    def test_a_sweep_has_a_picture_also_from_its_file(self):
        out = self.path / "s.parquet"
        ran = ts.sweep(self.scenario, VARY, runs=2, out=out)
        read = ts.sweep(self.scenario, VARY, runs=2, out=out)
        compared = ts.compare(self.scenario, VARY, runs=2)
        for sweep in (ran, read):
            self.assertEqual(sweep.comparison.json(), compared.json())
            picture = sweep.picture(["work_rate"])
            # For each of two VMs, a line for each scheduler.
            self.assertEqual(picture.svg.count("<polyline"), 4)
            self.assertEqual(picture._repr_svg_(), compared.svg(["work_rate"]))
        picture.save(self.path / "p.svg")
        self.assertEqual((self.path / "p.svg").read_text(), picture.svg)
        with self.assertRaisesRegex(ValueError, "x.gif cannot be a picture"):
            picture.save("x.gif")
        # An existing picture is kept if the new one cannot be made.
        kept = self.path / "p.png"
        kept.write_bytes(b"old")
        with mock.patch("subprocess.run", side_effect=FileNotFoundError):
            with self.assertRaisesRegex(RuntimeError, "needs the program rsvg-convert"):
                picture.save(kept)
        self.assertEqual(kept.read_bytes(), b"old")
        with self.assertRaisesRegex(ValueError, "a shard has not all runs"):
            ts.sweep(self.scenario, VARY, runs=2, shard="1/2").picture()
        with self.assertRaisesRegex(ValueError, "nothing to draw"):
            ts.sweep(self.scenario, runs=1).picture()

    def test_what_notebooks_show(self):
        table = ts.run(self.scenario).table
        shown = table._repr_html_()
        self.assertEqual(shown.count("<tr>"), 11)
        self.assertIn(f"10 of {len(table)} rows", shown)
        self.assertIn("<th>metric</th>", shown)
        for page in (ts.run(self.scenario), ts.compare(self.scenario, VARY, runs=1)):
            self.assertIn("<iframe srcdoc=", page._repr_html_())


class Ports(Case):
    """The port of FlexW to Python makes the decisions of the Rust policy."""

    def setUp(self):
        super().setUp()
        spec = importlib.util.spec_from_file_location("flexw", REPOSITORY / "crates/python/examples/flexw.py")
        self.flexw = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.flexw)

    def same(self, scenario, **settings):
        """Checks that both make the same decisions; returns the number of decisions by reason."""
        rust = ts.run(scenario, decisions=True)
        python = ts.run(scenario, policy=self.flexw.FlexW(**settings), decisions=True)
        self.assertGreater(len(rust.decisions), 20)
        self.assertEqual(len(rust.decisions), len(python.decisions))
        reasons = {}
        for (host, theirs), (other, ours) in zip(rust.decisions, python.decisions):
            self.assertEqual(host, other)
            # Fractions in reasons are converted to text and back once more.
            numbers = [[decision.pop("because") for decision in decisions] for decisions in (theirs, ours)]
            self.assertEqual(theirs, ours)
            for their, our in zip(*numbers):
                self.assertEqual(their.keys(), our.keys())
                for key, value in their.items():
                    if isinstance(value, float):
                        self.assertAlmostEqual(our[key], value, delta=1e-9 * max(1.0, abs(value)))
                    else:
                        self.assertEqual(our[key], value)
                reasons[their["reason"]] = reasons.get(their["reason"], 0) + 1
        self.assertEqual(rust.json(), python.json())
        return reasons

    def test_the_unfair_host(self):
        scenario = ts.Scenario.from_file(REPOSITORY / "scenarios/flexw.toml").with_settings(duration="4s")
        self.assertGreater(self.same(scenario)["lag"], 10)

    def test_vms_that_come_and_sleep_and_others_that_never_do(self):
        vms = [
            Vm("pinned", 4, "burn", pins=["0", "1", "2", "3"]),
            Vm("heavy", 3, "burn", weight=3000, pins=["0", "1", "2"]),
            Vm("locks", 4, "mutex", weight=500),
            Vm("late", 2, "burn", starts="2s", pins="0-1"),
            Vm("free", 4, "burn"),
        ]
        scenario = ts.objects.scenario(
            Machine(4),
            vms,
            Host("cfs"),
            duration="6s",
            policies={"fair": {"fair_window": "1s", "gain": 0.5}, "period": "50ms"},
        )
        reasons = self.same(scenario, fair_window=1_000_000_000, gain=0.5)
        self.assertLessEqual({"lag", "keep-sum", "came"}, set(reasons))

    def test_a_port_that_differs_is_found(self):
        scenario = ts.Scenario.from_file(REPOSITORY / "scenarios/flexw.toml")
        with self.assertRaises(AssertionError):
            self.same(scenario, gain=0.31)


class Installed(Case):
    def test_licences_of_all_that_is_in_it_go_with_it(self):
        files = importlib.metadata.files("tandem-sched")
        texts = {file.name: file.read_text() for file in files if file.name.startswith("LICENSE-")}
        self.assertEqual(set(texts), {"LICENSE-APACHE", "LICENSE-MIT", "LICENSE-CRATES"})
        for crate in ("parquet", "pyo3"):
            listed = re.search(rf"^{crate} [0-9.]+: .*(MIT|Apache-2.0)", texts["LICENSE-CRATES"], re.MULTILINE)
            self.assertIsNotNone(listed, crate)

    def test_it_needs_no_other_library(self):
        program = (
            "import sys\n"
            "for name in ('numpy', 'pandas', 'pyarrow', 'polars', 'distributed', 'tqdm'): sys.modules[name] = None\n"
            f"import tandem_sched as ts\n"
            f"sweep = ts.sweep(ts.Scenario.from_file({str(self.file)!r}), {{'vm.a.vcpus': '1..3'}}, runs=1, progress=True)\n"
            "print(len(sweep.to_dict()['value']), len(sweep.picture(['received']).svg))\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(re.fullmatch(r"\d{2,} \d{4,}\n", done.stdout), done.stdout)


if __name__ == "__main__":
    sys.exit(like_libtest.run(sys.modules["__main__"]))
