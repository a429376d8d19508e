"""Batches made ahead by worker processes, straight into memory they share with the trainer.

Plain slots instead of a queue of pickled arrays: nothing is copied through a pipe, and a batch is a view.
"""
import mmap
import multiprocessing
import os
import time

import numpy as np

FIELDS = ("ids", "pos", "doc", "weight")


class Feeder:
    """Gives batches `first`, `first` + 1, ... below `last` in order: {name: int16 [4, rows, length]}, fields as FIELDS.

    Slot n % slots holds the n-th batch; `ready` says which one it holds, `taken` how many the trainer is done with.
    """

    def __init__(self, batches, first, last, workers=12, slots=192):
        self.batches, self.first, self.last, self.workers, self.slots = batches, first, last, workers, slots
        self.sizes = {name: (len(FIELDS), *shape) for name, shape in batches.shapes.items() if shape[0]}
        self.data = {name: self._shared(slots * int(np.prod(size)), np.int16).reshape(slots, *size)
                     for name, size in self.sizes.items()}
        self.ready, self.taken = self._shared(slots, np.int64), self._shared(1, np.int64)
        context = multiprocessing.get_context("fork")
        for worker in range(workers):
            context.Process(target=self._work, args=(worker,), daemon=True).start()

    @staticmethod
    def _shared(count, kind):
        return np.frombuffer(mmap.mmap(-1, count * np.dtype(kind).itemsize), dtype=kind)

    def _work(self, worker):
        os.nice(10)  # the thread that feeds the GPU comes first
        for n in range(worker, self.last - self.first, self.workers):
            while n - self.taken[0] >= self.slots:
                time.sleep(0.01)
            slot = n % self.slots
            for name, rows in self.batches[self.first + n].items():
                for field, key in enumerate(FIELDS):
                    self.data[name][slot, field] = rows[key]
            self.ready[slot] = n + 1

    def __iter__(self):
        for n in range(self.last - self.first):
            slot = n % self.slots
            while self.ready[slot] != n + 1:
                time.sleep(0.001)
            yield {name: self.data[name][slot] for name in self.data if self.batches.has(name, self.first + n)}
            self.taken[0] = n + 1
