"""Tests of sweeps on a Dask cluster of two local workers: equal output, a killed worker, an interrupted sweep.

Shared fixtures are in support.py; scripts/test-wheel runs the tests.
"""

import os
import signal
import sys
import unittest

import tandem_sched as ts
from support import Case, has, like_libtest

#: Cells long enough for a worker to be killed within one.
VARY = {"vm.a.vcpus": "1..4", "host.scheduler": ["cfs", "eevdf"]}
SETTINGS = {"duration": "400ms"}


@unittest.skipUnless(has("distributed"), "dask's distributed is not installed")
class Cluster(Case):
    @classmethod
    def setUpClass(cls):
        from distributed import Client, LocalCluster

        # Without a dashboard on a port, and only on this host.
        cls.cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1", silence_logs=50
        )
        cls.addClassCleanup(cls.cluster.close)
        cls.client = Client(cls.cluster)
        cls.addClassCleanup(cls.client.close)

    def setUp(self):
        super().setUp()
        self.long = self.scenario.with_settings(SETTINGS)
        self.whole = self.path / "whole.parquet"
        self.out = self.path / "all.parquet"

    def test_the_bytes_are_those_of_one_machine(self):
        arguments = ["--vary", "vm.a.vcpus=1..4", "--policies", "stock,aple", "--runs", 2, "--out", "command.parquet"]
        command = self.tandem("sweep", "s.toml", *arguments)
        told = []
        sweep = ts.sweep(
            self.scenario,
            {"vm.a.vcpus": "1..4"},
            "stock,aple",
            runs=2,
            out=self.out,
            client=self.client,
            shards=5,
            progress=lambda *far: told.append(far),
        )
        self.assertEqual(self.out.read_bytes(), command)
        self.assertEqual(told[0], (0.0, 5.0, "shards"))
        self.assertEqual(told[-1], (5.0, 5.0, "shards"))
        self.assertEqual(max(sweep.column("cell")), 15)
        # No other files remain, and nothing runs again.
        names = {name for name in os.listdir(self.path) if name.startswith("all")}
        self.assertEqual(names, {"all.parquet"})
        # For each of two VMs, a line with and one without the policy.
        self.assertEqual(sweep.picture(["work"]).svg.count("<polyline"), 4)

    def test_without_a_file_and_as_csv(self):
        vary = {"vm.a.vcpus": [1, 2]}
        here = ts.sweep(self.scenario, vary, runs=1, out=self.path / "here.csv")
        there = ts.sweep(self.scenario, vary, runs=1, client=self.client)
        self.assertEqual(there.to_dict(), here.to_dict())
        ts.sweep(self.scenario, vary, runs=1, client=self.client, out=self.path / "there.csv")
        self.assertEqual((self.path / "there.csv").read_bytes(), (self.path / "here.csv").read_bytes())

    def test_a_worker_that_is_killed_changes_nothing(self):
        workers = self.client.run(os.getpid)
        self.assertEqual(len(workers), 2)
        killed = []

        def kill_one(done, total, what):
            if done >= 3 and not killed:
                killed.append(next(iter(workers.values())))
                os.kill(killed[0], signal.SIGKILL)

        ts.sweep(self.long, VARY, runs=3, out=self.out, client=self.client, shards=24, progress=kill_one)
        self.assertEqual(len(killed), 1)
        ts.sweep(self.long, VARY, runs=3, out=self.whole)
        self.assertEqual(self.out.read_bytes(), self.whole.read_bytes())

    def test_a_sweep_that_broke_off_goes_on(self):
        def enough(done, total, what):
            if done >= 4:
                raise KeyboardInterrupt

        arguments = dict(vary=VARY, runs=2, out=self.out, client=self.client)
        with self.assertRaises(KeyboardInterrupt):
            ts.sweep(self.scenario, **arguments, shards=8, progress=enough)
        folder = self.path / "all.parquet.shards"
        self.assertEqual(len(list(folder.glob("*.parquet"))), 4)
        self.assertFalse(self.out.exists())
        # Another sweep rejects these shards.
        with self.assertRaisesRegex(OSError, "another sweep"):
            ts.sweep(self.scenario, **arguments, seed=9)
        told = []
        # The existing shards determine the division.
        ts.sweep(self.scenario, **arguments, progress=lambda *far: told.append(far))
        self.assertEqual(told[0], (4.0, 8.0, "shards"))
        ts.sweep(self.scenario, VARY, runs=2, out=self.whole)
        self.assertEqual(self.out.read_bytes(), self.whole.read_bytes())
        self.assertFalse(folder.exists())

    def test_force_removes_what_is_in_the_way_and_nothing_else(self):
        folder = self.path / "all.parquet.shards"
        folder.mkdir()
        for name in ("notes.txt", "mine.parquet", "0001-of-0003.parquet"):
            (folder / name).write_text("mine")
        ts.sweep(self.scenario, {"vm.a.vcpus": "1..3"}, runs=1, shard="2/3", out=folder / "0002-of-0003.parquet")
        told = []
        arguments = dict(vary={"vm.a.vcpus": "1..3"}, runs=1, out=self.out, client=self.client, shards=3)
        with self.assertRaisesRegex(OSError, "0001-of-0003.parquet is among the shards"):
            ts.sweep(self.scenario, **arguments)
        ts.sweep(self.scenario, **arguments, force=True, progress=lambda *far: told.append(far))
        self.assertEqual(told[0], (1.0, 3.0, "shards"))
        self.assertEqual(sorted(os.listdir(folder)), ["mine.parquet", "notes.txt"])

    def test_what_arrives_is_checked(self):
        from tandem_sched import _dask, _native

        asked = (self.scenario, [], ["vm.a.vcpus=1,2"], 1)
        grid = _native.Grid(self.scenario._native, *asked[1:])
        content, digest = _dask.shard(asked, "1/2", grid.fingerprint)
        place = self.path / "0001-of-0002.parquet"
        with self.assertRaisesRegex(RuntimeError, "damaged on its way"):
            _dask.keep(grid, content[:-1] + b"x", digest, place, "1/2")
        with self.assertRaisesRegex(OSError, "something else"):
            _dask.keep(grid, content, digest, place, "2/2")
        self.assertEqual([name for name in os.listdir(self.path) if "0001" in name], [])
        _dask.keep(grid, content, digest, place, "1/2")
        self.assertEqual(place.read_bytes(), content)
        with self.assertRaisesRegex(RuntimeError, "this worker has another sweep"):
            _dask.shard(asked, "1/2", "0.0.0 none")

    def test_arguments_that_cannot_be(self):
        for wrong, said in (
            (dict(client=self.client, shard="1/2"), "leave out shard"),
            (dict(client=self.client, workers=2), "leave out shard"),
            (dict(client=self.client, shards=0), "0 shards"),
            (dict(shards=2), "give a client"),
        ):
            with self.assertRaisesRegex(ValueError, said):
                ts.sweep(self.scenario, VARY, runs=1, **wrong)


if __name__ == "__main__":
    sys.exit(like_libtest.run(sys.modules["__main__"]))
