"""A training step as one CUDA graph: a small model spends its time launching kernels, a replay is one launch.

Why: on an H200 machine pebble-e's step took 70 ms, forward and backward of its short rows 18 ms alone. Captured,
pebble-dense made 40 steps a second alone, and three trainings beside each other keep the GPU at 100 %. Each set of
inputs (short rows alone, short and long rows) gets a graph of its own at its first use.
"""
import torch


class Step:
    """losses(batch) computes, runs backward and gives {name: loss}; optimizer.update() then moves the weights."""

    def __init__(self, net, optimizer, losses, graph):
        self.net, self.optimizer, self.losses, self.graph, self.held = net, optimizer, losses, graph, {}

    def _run(self, batch):
        self.net.zero_grad(set_to_none=True)
        out = self.losses(batch)
        self.optimizer.update()
        return out

    def _capture(self, batch):
        """Three tries at learning rate zero to compile and allocate, then the capture."""
        inputs = {name: tuple(x.clone() for x in part) for name, part in batch.items()}
        self.optimizer.set_scale(0.0)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._run(inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self._run(inputs)
        return graph, inputs, out

    def __call__(self, batch, step):
        """{name: loss} of this step, valid until the next one."""
        if not self.graph:
            self.optimizer.set_scale(self.optimizer.scale(step))
            return self._run(batch)
        key = tuple(sorted(batch))
        if key not in self.held:
            self.held[key] = self._capture(batch)
        graph, inputs, out = self.held[key]
        for name, part in batch.items():
            for to, x in zip(inputs[name], part):
                to.copy_(x)
        self.optimizer.set_scale(self.optimizer.scale(step))
        graph.replay()
        return out
