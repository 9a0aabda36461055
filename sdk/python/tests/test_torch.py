"""PyTorch's loaders over a real server: each row once, over ranks, workers and
interruptions. torch is Debian's, so scripts/test.sh runs these by themselves, in
an environment of their own."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import unittest
import warnings
from collections.abc import Iterable
from typing import Any
from unittest import mock

import falaj
from tests.test_dataset import ROWS, Server, put, started

HAVE_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "pyarrow", "numpy"))


def imported(answers: Any) -> None:
    answers.put([name for name in ("torch", "torch.utils.data", "pyarrow.flight", "numpy") if name in sys.modules])


@unittest.skipUnless(HAVE_TORCH, "torch is not installed beside pyarrow")
class WorkersTest(unittest.TestCase):
    def test_workers_begin_with_what_takes_long(self) -> None:
        """A worker imports neither torch nor pyarrow itself, wherever this package is."""
        from falaj._torch import _forkserver

        context = _forkserver()
        answers = context.SimpleQueue()
        worker = context.Process(target=imported, args=(answers,))
        worker.start()
        self.assertEqual(answers.get(), ["torch", "torch.utils.data", "pyarrow.flight", "numpy"])
        worker.join()


@unittest.skipUnless(HAVE_TORCH, "torch is not installed beside pyarrow: make engines, and .tmp/venv/sdk-torch/bin/python")
class TorchTest(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = started(cls)
        cls.data = falaj.dataset("numbers@1", cls.server.client)
        warnings.filterwarnings("ignore", message=".*number of workers?.*")

    def numbers(self, batches: Iterable[dict[str, Any]]) -> list[int]:
        return [n for batch in batches for n in batch["n"].tolist()]

    def test_tensors(self) -> None:
        import torch

        first = next(iter(self.data.torch(batch_size=8)))
        self.assertEqual((first["n"].dtype, first["half"].dtype, first["even"].dtype), (torch.int64, torch.float64, torch.bool))
        self.assertTrue(first["half"][7].isnan() and first["half"][6] == 3)
        self.assertEqual((first["word"][3], first["at"][1].item(), first["day"][0].item()), ("w3", 1356998401000000, 15706))

    def test_ranks(self) -> None:
        """The ranks' rows are all rows, none twice, alike many."""
        parts = [self.numbers(self.data.torch(["n"], 500, rank=r, world_size=3)) for r in range(3)]
        self.assertEqual(sorted(sum(parts, [])), list(range(ROWS)))
        self.assertLessEqual(max(map(len, parts)) - min(map(len, parts)), 1)
        even = [self.numbers(self.data.torch(["n"], 500, rank=r, world_size=3, even=True)) for r in range(3)]
        self.assertEqual([len(part) for part in even], [ROWS // 3] * 3)
        for wrong in ({"rank": 3, "world_size": 3}, {"rank": 1}, {"shuffle": -1}):
            with self.assertRaises(falaj.Error):
                self.data.torch(["n"], **wrong)  # type: ignore[arg-type]

    def test_workers_and_interruptions(self) -> None:
        """Whenever it is stopped, with or without workers, in order or mixed, what is
        given before and after is what an uninterrupted run gives, in its order."""
        dice = random.Random(7)
        for workers, shuffle, ranks in ((0, 0, 1), (0, 7_000, 2), (2, 0, 1), (2, 3_000, 2), (3, 9_000, 1)):
            with self.subTest(workers=workers, shuffle=shuffle):
                def loader() -> Any:
                    return self.data.torch(["n"], 700, rank=ranks - 1, world_size=ranks, shuffle=shuffle, seed=3).loader(workers)

                whole = self.numbers(loader())
                expected = range(ROWS * (ranks - 1) // ranks, ROWS)
                self.assertEqual(sorted(whole), list(expected))
                if shuffle:
                    self.assertNotEqual(whole, self.numbers(self.data.torch(["n"], 700, rank=ranks - 1, world_size=ranks).loader(workers)))
                seen: list[int] = []
                state: Any = None
                while len(seen) < len(whole):
                    again = loader()
                    if state is not None:
                        again.load_state_dict(json.loads(json.dumps(state)))
                        self.assertEqual(again.state_dict(), state)
                    for _, batch in zip(range(dice.randint(1, 25)), again):
                        seen += batch["n"].tolist()
                        state = again.state_dict()
                self.assertEqual(seen, whole)

    def test_wide_rows(self) -> None:
        """Rows of several row groups, which a file has by their bytes: each comes whole and
        once, whoever reads the group where two workers' rows meet."""
        rows, width = 3_000, 12_000
        put(self.server.client, "wide", {}, "n,x\n" + "".join(f"{i},{i:05}{chr(97 + i % 26) * width}\n" for i in range(rows)))
        wide = falaj.dataset("wide@1", self.server.client)
        for workers, shuffle in ((0, 0), (2, 0), (0, 400), (2, 400)):
            with self.subTest(workers=workers, shuffle=shuffle):
                given = [(n, x) for b in wide.torch(batch_size=100, shuffle=shuffle).loader(workers) for n, x in zip(b["n"].tolist(), b["x"])]
                self.assertEqual(sorted(n for n, _ in given), list(range(rows)))
                self.assertEqual([n for n, x in given if x != f"{n:05}{chr(97 + n % 26) * width}"], [])

    def test_row_groups_are_read_once(self) -> None:
        """However rows are mixed, a worker reads each row group in one piece, and blocks are
        no larger than the rows to be mixed unless one group is."""
        rows, width = 4_000, 24_000
        put(self.server.client, "groups", {}, "n,x\n" + "".join(f"{i},{i:05}{chr(97 + i % 26) * width}\n" for i in range(rows)))
        data = falaj.dataset("groups@1", self.server.client)
        starts = data._groups
        self.assertGreater(len(starts), 4)
        ends = [*starts[1:], rows]
        largest = max(end - start for start, end in zip(starts, ends))
        for shuffle in (10, largest, 2 * largest + 7, rows):
            for lanes in (1, 2, 3):
                with self.subTest(shuffle=shuffle, lanes=lanes):
                    given: list[int] = []
                    for lane in range(lanes):
                        reads: list[range] = []
                        read = data.batches

                        def batches(columns: Any = None, batch_size: Any = None, *, shard: tuple[int, int], skip: int, take: int) -> Any:
                            first = rows * shard[0] // shard[1] + skip
                            reads.append(range(first, first + take))
                            return read(columns, batch_size, shard=shard, skip=skip, take=take)

                        with mock.patch.object(data, "batches", batches):
                            given += [n for b in data.torch(["n"], 100, shuffle=shuffle)._batches(lane, lanes, 0) for n in b.column("n").to_pylist()]
                        touched = [[i for i, (start, end) in enumerate(zip(starts, ends)) if start < r.stop and r.start < end] for r in reads]
                        self.assertEqual(len(sum(touched, [])), len(set(sum(touched, []))), touched)
                        self.assertEqual([r for r, groups in zip(reads, touched) if len(groups) > 1 and len(r) > shuffle], [])
                    self.assertEqual(sorted(given), list(range(rows)))
                    self.assertNotEqual(given, list(range(rows)))

    def test_epochs(self) -> None:
        """Each round is an epoch with an order of its own, the same for the same seed."""
        rows = self.data.torch(["n"], 5_000, shuffle=10_000, seed=1)
        first, second = self.numbers(rows), self.numbers(rows)
        self.assertEqual((sorted(first), sorted(second), rows.epoch), (list(range(ROWS)), list(range(ROWS)), 2))
        self.assertNotEqual(first, second)
        rows.set_epoch(0)
        self.assertEqual(self.numbers(rows), first)
        self.assertNotEqual(self.numbers(self.data.torch(["n"], 5_000, shuffle=10_000, seed=2)), first)
        loader = self.data.torch(["n"], 5_000, shuffle=10_000, seed=1).loader(2)
        self.assertNotEqual(self.numbers(loader), self.numbers(loader))
        self.assertEqual(loader.state_dict()["epoch"], 2)

    def test_begun_again(self) -> None:
        """A round that was broken off is not gone on with, unless a state says so."""
        rows = self.data.torch(["n"], 10)
        next(iter(rows))
        self.assertEqual(next(iter(rows))["n"].tolist(), list(range(10)))

    def test_states_of_others(self) -> None:
        import torch

        rows = self.data.torch(["n"], 100)
        next(iter(rows))
        state = rows.state_dict()
        for other in (self.data.torch(["n"], 100, seed=1), self.data.torch(["n"], 100, rank=0, world_size=2)):
            with self.assertRaises(falaj.Error):
                other.load_state_dict(state)
        with self.assertRaises(falaj.Error):
            self.data.torch(["n"], 100).loader(2).load_state_dict(state)
        # A plain DataLoader with workers: who counts is not here.
        next(iter(torch.utils.data.DataLoader(rows, batch_size=None, num_workers=1, multiprocessing_context="forkserver")))
        with self.assertRaises(falaj.Error) as caught:
            rows.state_dict()
        self.assertIn("loader(num_workers)", caught.exception.hint)

    def test_nulls(self) -> None:
        put(self.server.client, "holes", {}, "i,b\n1,true\n,\n")
        holes = falaj.dataset("holes", self.server.client)
        with self.assertRaises(falaj.Error) as caught:
            next(iter(holes.torch()))
        self.assertIn("fill=", caught.exception.hint)
        batch = next(iter(holes.torch(fill={"i": -1, "b": False})))
        self.assertEqual((batch["i"].tolist(), batch["b"].tolist()), ([1, -1], [True, False]))

    def test_forked_workers(self) -> None:
        """A worker that was forked from a reader is told so; it does not wait for ever."""
        with self.assertRaises(RuntimeError) as caught:  # DataLoader's, with the worker's traceback
            next(iter(self.data.torch(["n"], 4_000).loader(1, multiprocessing_context="fork")))
        self.assertIn("gRPC does not outlive a fork", str(caught.exception))

    def test_spawned_workers(self) -> None:
        loader = self.data.torch(["n"], 4_000).loader(1, multiprocessing_context="spawn")
        self.assertEqual(self.numbers(loader), list(range(ROWS)))
