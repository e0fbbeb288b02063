"""Tests of the installed wheel tandem-sched: results, tables, errors, progress, Ctrl-C.

Shared fixtures are in support.py; scripts/test-wheel runs the tests.
"""

import contextlib
import errno
import io
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import tandem_sched as ts
from support import ARGUMENTS, LONG, REPOSITORY, TEXT, VARY, Case, has, like_libtest


class Scenarios(Case):
    def test_text_dictionary_and_file_are_the_same(self):
        from_text = ts.Scenario.from_toml(TEXT, "s.toml")
        from_dict = ts.Scenario.from_dict(
            {
                "duration": "20ms",
                "warmup": "4ms",
                "machine": {"pcpus": 2},
                "vm": [
                    {"name": "a", "vcpus": 2, "workload": "mutex"},
                    {"name": "b", "vcpus": 2, "workload": "burn"},
                ],
            },
            "s.toml",
        )
        results = {ts.run(scenario).json() for scenario in (self.scenario, from_text, from_dict)}
        self.assertEqual(len(results), 1)

    def test_facts(self):
        self.assertEqual(self.scenario.name, "s")
        self.assertEqual((self.scenario.pcpus, self.scenario.seed), (2, 1))
        self.assertEqual((self.scenario.duration, self.scenario.warmup), (0.02, 0.004))
        self.assertEqual(self.scenario.vms, {"a": 2, "b": 2})
        self.assertIn("a (2 vCPUs)", repr(self.scenario))

    def test_settings_make_another_scenario(self):
        other = self.scenario.with_settings({"vm.*.vcpus": 1, "host.scheduler": "cfs"}, seed=7)
        self.assertEqual((other.vms, other.seed), ({"a": 1, "b": 1}, 7))
        self.assertEqual(self.scenario.vms, {"a": 2, "b": 2})
        pinned = self.scenario.with_settings({"vm.a.pins": ["0", "1"], "vm.b.pins": "0", "policies.fair": {"gain": 0.2}})
        self.assertNotEqual(ts.run(pinned).json(), ts.run(self.scenario).json())

    def test_what_is_wrong_names_file_and_line(self):
        with self.assertRaises(ts.ScenarioError) as raised:
            ts.Scenario.from_toml(TEXT.replace("warmup", "warmpu"), "mine.toml")
        error = raised.exception
        self.assertEqual((error.file, error.line), ("mine.toml", 3))
        self.assertIn("did you mean `warmup`?", str(error))
        self.assertIsInstance(error, ValueError)
        self.file.write_text(TEXT.replace("mutex", "mutx"))
        with self.assertRaises(ts.ScenarioError) as raised:
            ts.Scenario.from_file(self.file)
        self.assertEqual((raised.exception.file, raised.exception.line), (str(self.file), 9))
        with self.assertRaises(ts.ScenarioError) as raised:
            self.scenario.with_settings({"vm.c.vcpus": 1})
        self.assertIsNone(raised.exception.line)
        self.assertIn("vm.c.vcpus=1", str(raised.exception))
        with self.assertRaisesRegex(ValueError, "no form in TOML"):
            ts.Scenario.from_dict({"duration": None})
        with self.assertRaisesRegex(ts.ScenarioError, "duration"):
            ts.Scenario.from_dict({"machine": {"pcpus": 1}})

    def test_a_file_that_is_not_there_is_that(self):
        with self.assertRaises(FileNotFoundError) as raised:
            ts.Scenario.from_file(self.path / "gone.toml")
        self.assertIn("gone.toml", str(raised.exception))
        self.assertEqual(raised.exception.errno, errno.ENOENT)


class Results(Case):
    def test_a_run_is_the_commands_to_the_byte(self):
        command = self.tandem("run", "s.toml", "--seed", 5, "--json", "run.json")
        self.assertEqual(ts.run(self.scenario, seed=5).json().encode(), command)

    def test_release_and_debug_builds_give_the_same_bytes(self):
        # scripts/test-wheel builds the wheel in release mode; TANDEM is the debug build there.
        files = [file for file in sorted((REPOSITORY / "scenarios").glob("*.toml")) if not file.name.startswith("bench-")]
        self.assertGreaterEqual(len(files), 20)
        for file in files:
            command = self.tandem("run", file, "--json", "run.json")
            self.assertEqual(ts.run(ts.Scenario.from_file(file)).json().encode(), command, file.name)

    def test_a_comparison_is_the_commands_to_the_byte(self):
        command = self.tandem("compare", "s.toml", *ARGUMENTS, "--runs", 2, "--json", "c.json")
        comparison = ts.compare(self.scenario, VARY, runs=2, workers=3)
        self.assertEqual(comparison.json().encode(), command)
        self.assertEqual(comparison.to_dict()["schema"], 1)

    def test_a_sweep_is_the_commands_to_the_byte(self):
        for name in ("sweep.parquet", "sweep.csv"):
            more = ["--policies", "stock,aple", "--runs", 2, "--out", f"command-{name}"]
            command = self.tandem("sweep", "s.toml", *ARGUMENTS, *more)
            ts.sweep(self.scenario, VARY, ["stock", "aple"], runs=2, out=self.path / name)
            self.assertEqual((self.path / name).read_bytes(), command, name)

    def test_what_is_shown(self):
        run = ts.run(self.scenario)
        self.assertIn("| VM |", str(run))
        self.assertTrue(run.html().startswith("<!DOCTYPE html>"))
        self.assertEqual(run.to_dict()["schema"], 1)
        comparison = ts.compare(self.scenario, VARY, runs=2, waits=True)
        self.assertIn("work_rate", str(comparison))
        self.assertNotIn("work_rate", comparison.text(["received"]))
        self.assertIn("<polyline", comparison.svg(["received"]))
        self.assertIn("iframe", comparison._repr_html_())
        with self.assertRaisesRegex(ValueError, "no metric is called `x`"):
            comparison.text(["x"])

    def test_arguments_that_cannot_be(self):
        for wrong, said in (
            (dict(vary={"vm.a.vcpus": "3..1"}), "below the beginning"),
            (dict(vary={"vm.a.vcpus": [1, 1]}), "twice"),
            (dict(policies=["none"]), "aple"),
            (dict(runs=0), "1 … 1000"),
            (dict(workers=0), "1 … 1024"),
        ):
            with self.assertRaisesRegex(ValueError, re.escape(said)):
                ts.compare(self.scenario, **wrong)
        with self.assertRaisesRegex(ValueError, "0/3"):
            ts.sweep(self.scenario, VARY, shard="0/3")
        with self.assertRaises(ts.ScenarioError):
            ts.compare(self.scenario, {"vm.z.vcpus": [1, 2]})

    def test_values_of_python_are_written_as_toml(self):
        vary = {"host.apicv": [True, False], "vm.a.pins": ["0-1", ["0", "1"]], "vm.b.weight": [512, 1024]}
        table = ts.sweep(self.scenario, vary, runs=1)
        self.assertEqual(sorted(set(table.column("vm.b.weight"))), [512, 1024])
        self.assertEqual(set(table.column("host.apicv")), {"true", "false"})
        self.assertEqual(max(table.column("cell")), 7)

    def test_threads_may_run_at_once(self):
        results = []
        threads = [threading.Thread(target=lambda: results.append(ts.run(self.scenario).json())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(results), len(set(results))), (4, 1))


class Files(Case):
    def test_a_complete_file_is_read_and_nothing_runs(self):
        out = self.path / "s.parquet"
        told = []

        def sweep(**more):
            return ts.sweep(self.scenario, VARY, runs=2, out=out, progress=lambda *far: told.append(far), **more)

        first = sweep().to_dict()
        ran = len(told)
        self.assertGreater(ran, 0)
        self.assertEqual(sweep().to_dict(), first)
        self.assertEqual(len(told), ran)
        with self.assertRaisesRegex(OSError, "another|something else"):
            sweep(seed=9)
        self.assertNotEqual(sweep(seed=9, force=True).to_dict(), first)
        # A damaged file does not count as complete.
        whole = out.read_bytes()
        out.write_bytes(whole.replace(b"work_rate", b"work_rats", 1))
        with self.assertRaises(OSError):
            sweep(seed=9)
        sweep(seed=9, force=True)
        self.assertEqual(out.read_bytes(), whole)
        with self.assertRaises(FileNotFoundError) as raised:
            ts.sweep(self.scenario, VARY, runs=1, out=self.path / "no" / "x.parquet")
        self.assertEqual(raised.exception.errno, errno.ENOENT)
        with self.assertRaisesRegex(ValueError, "xlsx"):
            ts.sweep(self.scenario, VARY, runs=1, out=self.path / "x.xlsx")

    def test_seeds_have_no_sign(self):
        seed = 2**63 - 1
        sweep = ts.sweep(self.scenario, runs=2, seed=seed, out=self.path / "s.parquet")
        self.assertEqual(set(sweep.column("seed")), {seed, seed + 1})
        read = ts.sweep(self.scenario, runs=2, seed=seed, out=self.path / "s.parquet")
        self.assertEqual(read.to_dict(), sweep.to_dict())

    def test_shards_are_the_commands(self):
        for number in (1, 2):
            ts.sweep(self.scenario, VARY, runs=2, shard=f"{number}/2", out=self.path / f"{number}.parquet")
        ts.sweep(self.scenario, VARY, runs=2, out=self.path / "whole.parquet")
        self.tandem("sweep", "merge", "merged.parquet", "1.parquet", "2.parquet")
        merged = (self.path / "merged.parquet").read_bytes()
        self.assertEqual(merged, (self.path / "whole.parquet").read_bytes())


class Tables(Case):
    def setUp(self):
        super().setUp()
        self.comparison = ts.compare(self.scenario, {**VARY, "host.halt_poll": ["0us", "50us"]}, ["stock"], runs=2)
        self.table = self.comparison.table

    def test_columns(self):
        expected = "scenario combination policies host.scheduler vm.a.vcpus".split()
        expected += ["host.halt_poll [ns]", *"seed vm metric unit value".split()]
        self.assertEqual(self.table.columns, expected)
        columns = self.table.to_dict()
        self.assertTrue(all(len(column) == len(self.table) for column in columns.values()))
        self.assertEqual(set(columns["vm.a.vcpus"]), {1, 2, 3})
        self.assertEqual(set(columns["host.halt_poll [ns]"]), {0, 50_000})
        self.assertEqual(set(columns["policies"]), {"stock"})
        with self.assertRaisesRegex(KeyError, "there are scenario"):
            self.table.column("x")
        self.assertIn(f"{len(self.table)} rows", repr(self.table))

    @unittest.skipUnless(has("pyarrow"), "pyarrow is not installed")
    def test_pyarrow_takes_it(self):
        import pyarrow

        table = pyarrow.table(self.table)
        self.assertEqual(table.num_rows, len(self.table))
        self.assertEqual(table.schema.field("vm.a.vcpus").type, pyarrow.int64())
        self.assertEqual(table.to_pydict(), self.table.to_dict())
        self.assertEqual(pyarrow.schema(self.table), table.schema)
        # Each capsule is independent, and outlives the table.
        other = pyarrow.table(ts.run(self.scenario).table)
        self.assertEqual(other.column("scenario")[0].as_py(), "s")

    @unittest.skipUnless(has("pyarrow"), "pyarrow is not installed")
    def test_the_same_figures_are_in_the_file(self):
        import pyarrow.parquet

        out = self.path / "s.parquet"
        table = ts.sweep(self.scenario, VARY, runs=2, out=out)
        read = pyarrow.parquet.read_table(out)
        self.assertEqual(read.column_names, table.columns)
        self.assertEqual(read.to_pydict(), table.to_dict())

    @unittest.skipUnless(has("pandas"), "pandas is not installed")
    def test_pandas_takes_it(self):
        frame = self.table.to_pandas()
        self.assertEqual(list(frame.columns), self.table.columns)
        work = frame[(frame.metric == "work_rate") & (frame.vm == "a")]
        means = work.groupby(["host.scheduler", "vm.a.vcpus"])["value"].mean()
        self.assertEqual(len(means), 6)
        self.assertTrue((means > 0).all())

    @unittest.skipUnless(has("polars"), "polars is not installed")
    def test_polars_takes_it(self):
        frame = self.table.to_polars()
        self.assertEqual(frame.columns, self.table.columns)
        self.assertEqual(frame["value"].to_list(), self.table.column("value"))


class Policies(Case):
    def received(self, run):
        results = run.to_dict()
        return [vm["received"] / results["measured"] for vm in results["vms"]]

    def setUp(self):
        super().setUp()
        vm = {"vcpus": 1, "workload": "burn"}
        vms = [{"name": "a", **vm}, {"name": "b", **vm}]
        scenario = {"duration": "3s", "warmup": "1s", "machine": {"pcpus": 1}, "vm": vms}
        self.scenario = ts.Scenario.from_dict(scenario)

    def test_a_function_decides(self):
        seen = []

        def four_to_one(host):
            seen.append(host)
            return [ts.policy.set_weight(vm, 4096.2 if vm["vm"] == 0 else 1024) for vm in host["vms"]]

        run = ts.run(self.scenario, policy=four_to_one, decisions=True)
        shares = self.received(run)
        self.assertAlmostEqual(shares[0], 0.8, delta=0.03)
        self.assertAlmostEqual(shares[1], 0.2, delta=0.03)
        self.assertEqual(self.received(ts.run(self.scenario))[0] > 0.6, False)
        # One call per period of 100 ms; the decided weight is rounded and then applied.
        self.assertIn(len(seen), (29, 30))
        self.assertEqual([host for host, _ in run.decisions], seen)
        decided = [decision for _, decisions in run.decisions for decision in decisions]
        self.assertEqual([(one["target"], one["weight"]) for one in decided], [({"vm": 0}, 4096.0)])
        self.assertEqual(seen[3]["vms"][0]["in_force"]["weight"], 4096.0)
        self.assertEqual(seen[0]["period"], 100_000_000)

    def test_the_decisions_of_a_built_in_policy_do_the_same_from_python(self):
        pinned = {"machine.pcpus": 2, "vm.a.vcpus": 2, "vm.a.pins": ["0", "1"], "vm.b.pins": "0"}
        fair = self.scenario.with_settings({**pinned, "policies.fair": True, "duration": "6s"})
        own = ts.run(fair, decisions=True)
        recorded = iter(own.decisions)

        def replay(host):
            observed, decisions = next(recorded)
            self.assertEqual(observed, host)
            return decisions

        self.assertGreater(sum(len(decisions) for _, decisions in own.decisions), 3)
        self.assertEqual(ts.run(fair, policy=replay).json(), own.json())

    def test_other_knobs(self):
        def policy(host):
            for vm in host["vms"]:
                for vcpu in vm["vcpus"]:
                    yield ts.policy.set_nice(vm, vcpu, 5 if vm["vm"] == 1 else 0)
                    yield ts.policy.set_slice(vm, vcpu, 4_000_000)
                    yield ts.policy.set_affinity(vm, vcpu, "0")
            yield ts.policy.set_idle(1, True)

        run = ts.run(self.scenario, policy=policy, decisions=True)
        self.assertGreater(self.received(run)[0], 0.95)
        actions = {decision["action"] for _, decisions in run.decisions for decision in decisions}
        self.assertLessEqual({"set-nice", "set-slice", "set-idle"}, actions)

    def test_what_a_policy_raises_is_raised(self):
        def wrong(host):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            ts.run(self.scenario, policy=wrong, duration="4000s")
        with self.assertRaisesRegex(ValueError, "decisions of a policy cannot be read.*set-weihgt"):
            ts.run(self.scenario, policy=lambda host: [{"action": "set-weihgt"}])
        self.assertIsNotNone(ts.run(self.scenario, policy=lambda host: None).json())

    def test_pcpus_that_the_host_has_not_are_refused(self):
        def nowhere(host):
            yield ts.policy.set_affinity(host["vms"][0], host["vms"][0]["vcpus"][0], "7")

        with self.assertRaisesRegex(ValueError, "'7', none of which the host has"):
            ts.run(self.scenario, policy=nowhere)


    def test_vms_and_vcpus_that_there_are_not_are_refused(self):
        strange = {
            "VM 99": lambda host: [ts.policy.set_weight({"vm": 99}, 5)],
            "vCPU 77": lambda host: [ts.policy.set_nice(host["vms"][0], {"vcpu": 77}, 5)],
        }
        for name, decide in strange.items():
            with self.assertRaisesRegex(ValueError, name):
                ts.run(self.scenario, policy=decide)


class Watching(Case):
    def test_progress_is_told(self):
        told = []
        ts.compare(self.scenario, VARY, runs=3, duration="300ms", progress=lambda *far: told.append(far))
        done, total, what = told[-1]
        self.assertEqual((round(done, 6), round(total, 6), what), (5.4, 5.4, "18 runs"))
        self.assertEqual([far[0] for far in told], sorted(far[0] for far in told))

    def test_an_exception_of_the_listener_ends_the_work(self):
        def listener(done, total, what):
            raise KeyError("enough")

        began = time.monotonic()
        with self.assertRaisesRegex(KeyError, "enough"):
            ts.run(ts.Scenario.from_toml(LONG), progress=listener)
        self.assertLess(time.monotonic() - began, 30)

    def test_ctrl_c_ends_the_work(self):
        program = f"import sys, tandem_sched as ts\nprint('go', flush=True)\nts.compare(ts.Scenario.from_toml({LONG!r}), runs=4)"
        # Background jobs of a shell ignore SIGINT; this child must not.
        listen = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process = subprocess.Popen([sys.executable, "-c", program], preexec_fn=listen, **pipes)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "go\n")
        time.sleep(0.5)
        self.assertIsNone(process.poll(), "it should be running")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", said)

    def test_ctrl_c_ends_a_policy_that_does_not_return(self):
        program = (
            "import sys, tandem_sched as ts\n"
            "def stuck(host):\n"
            "    print('asked', flush=True)\n"
            "    while True: pass\n"
            "ts.run(ts.Scenario.from_toml(sys.argv[1]), policy=stuck, duration='3s')\n"
        )
        listen = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        command = [sys.executable, "-c", program, TEXT]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as process:
            self.assertEqual(process.stdout.readline(), "asked\n")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1]
        self.assertIn("KeyboardInterrupt", said)

    def test_a_bar_draws_nothing_where_there_is_no_terminal(self):
        program = f"import tandem_sched as ts\nts.run(ts.Scenario.from_toml({TEXT!r}), progress=True)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        if not has("tqdm"):
            self.assertEqual((done.stdout, done.stderr), ("", ""))


class Documents(Case):
    def test_the_examples_of_the_readme_run(self):
        text = (REPOSITORY / "crates/python/README.md").read_text()
        examples = [part.split("```")[0] for part in text.split("```python\n")[1:]]
        found = {}
        with contextlib.chdir(self.path), contextlib.redirect_stdout(io.StringIO()) as said:
            for number, example in enumerate(examples):
                if "Client(" in example:
                    continue
                if not has("pandas"):
                    example = example.replace(".to_pandas()", ".to_dict()")
                exec(compile(example, f"README.md, example {number}", "exec"), found)
            self.assertIn("vm.locks.vcpus", list(found["frame"]))
            self.assertTrue((self.path / "locks.svg").read_text().startswith("<svg"))
            self.assertGreater((self.path / "locks.parquet").stat().st_size, 1000)
        self.assertIn("against first", said.getvalue())

    def test_ten_lines_give_a_frame_and_a_plot(self):
        text = (REPOSITORY / "crates/python/README.md").read_text()
        first = text.split("```python\n")[1].split("```")[0]
        statements = [line for line in first.splitlines() if line.strip()]
        self.assertLessEqual(len(statements), 10)

    @unittest.skipUnless(has("mypy"), "mypy is not installed")
    def test_types_hold(self):
        package = Path(ts.__file__).parent
        self.assertTrue((package / "py.typed").exists() and (package / "_native.pyi").exists())
        program = self.path / "typed.py"
        program.write_text(
            "import tandem_sched as ts\n"
            "scenario: ts.Scenario = ts.Scenario.from_file('s.toml')\n"
            "rows: int = len(ts.compare(scenario, {'vm.0.vcpus': [1, 2]}, runs=2).table)\n"
            "svg: str = ts.sweep(scenario, {'vm.0.vcpus': '1..4'}, out='s.parquet').picture(['work']).svg\n"
            "from tandem_sched.objects import Machine, Vm, scenario as made\n"
            "other: ts.Scenario = made(Machine(2), [Vm('a', 1, 'burn')], duration='1s')\n"
        )
        # The package as well; only some other libraries have types. mypy accepts either files or packages.
        strict = [sys.executable, "-m", "mypy", "--strict", "--disable-error-code=import-untyped"]
        for what in ([str(program)], ["-p", "tandem_sched"]):
            self.typed([*strict, *what])

    def typed(self, command):
        done = subprocess.run(command, cwd=self.path, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_everything_is_documented(self):
        things = {name: getattr(ts, name) for name in ts.__all__}
        for module in (ts.objects, ts.policy):
            things.update({name: getattr(module, name) for name in module.__all__})
        for name, thing in things.items():
            self.assertTrue(thing.__doc__, name)
            members = vars(thing).items() if isinstance(thing, type) else ()
            for member, value in members:
                if not member.startswith("_") and (callable(value) or isinstance(value, (property, classmethod))):
                    self.assertTrue(value.__doc__, f"{name}.{member}")


if __name__ == "__main__":
    sys.exit(like_libtest.run(sys.modules["__main__"]))
