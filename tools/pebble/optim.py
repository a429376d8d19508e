"""Muon for the matrices of the layers, Adam for embeddings, norms and scalars.

Muon: momentum, then the update's singular values are all brought near 1 by five Newton-Schulz steps. Matrices of one
shape are handled as one stack, so a step is a few dozen batched products.
"""
import torch


def orthogonal(g):
    """[n, r, c] -> the nearest thing to orthogonal rows or columns."""
    x = g.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.transpose(1, 2) if tall else x


class Muon:
    def __init__(self, params, momentum=0.95, decay=0.01):
        self.momentum, self.decay, self.groups, self.state = momentum, decay, {}, {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        for shape, group in self.groups.items():
            count = sum(p.numel() for p in group) // (shape[0] * shape[1])
            self.state[shape] = torch.zeros(count, *shape, device=group[0].device)

    @torch.no_grad()
    def step(self, lr):
        """lr: a tensor without dimensions on the device, so that a captured step can be replayed with another one."""
        for (r, c), group in self.groups.items():
            g = torch.cat([p.grad.reshape(-1, r, c) for p in group])
            held = self.state[r, c]
            held.mul_(self.momentum).add_(g)
            update = orthogonal(g.add(held, alpha=self.momentum)).float() * (lr * -max(1.0, r / c) ** 0.5)
            parts = update.split([p.numel() // (r * c) for p in group])
            torch._foreach_mul_(group, 1 - lr * self.decay)
            torch._foreach_add_(group, [part.reshape(p.shape) for part, p in zip(parts, group)])


class Optimizer:
    """Both, under one schedule: warm-up, flat, then linear to zero over the last `cool` part of `steps`.

    With steps 0 the end is open until `settle` fixes it; the rate is flat so far, so the run is the one that this number
    of steps, given at the start, would have been.
    """

    def __init__(self, net, steps, muon_lr=0.02, adam_lr=2e-3, warm=100, cool=0.4):
        matrices, rest = [], []
        for name, p in net.named_parameters():
            inside = p.ndim >= 2 and "embed_tokens" not in name and "router" not in name
            (matrices if inside else rest).append(p)
        self.muon = Muon(matrices)
        self.rates = [torch.zeros((), device=rest[0].device) for _ in range(2)]  # Muon's and Adam's, as they are now
        self.adam = torch.optim.Adam(rest, lr=self.rates[1], betas=(0.9, 0.98), fused=True, capturable=True)
        self.adam.param_groups[0]["lr"] = self.rates[1]  # this very tensor, whatever the constructor made of it
        self.steps, self.full, self.warm, self.cool = steps, (muon_lr, adam_lr), warm, cool

    def scale(self, step):
        down = max(0.0, (self.steps - step) / (self.cool * self.steps)) if self.steps else 1.0
        return min(1.0, (step + 1) / self.warm, down)

    def settle(self, step, rate, seconds, between=100):
        """Asked every `between` steps: at this rate (steps a second), does the cooling begin before the next time?"""
        total = step + int(rate * seconds)
        if not self.steps and step + between > (1 - self.cool) * total:
            self.steps = total

    def set_scale(self, scale):
        for rate, full in zip(self.rates, self.full):
            rate.fill_(full * scale)

    def update(self):
        self.muon.step(self.rates[0])
        self.adam.step()

    def save(self):
        return {"muon": {shape: held.bfloat16() for shape, held in self.muon.state.items()}, "adam": self.adam.state_dict()}

    def load(self, state):
        for shape, held in state["muon"].items():
            self.muon.state[shape].copy_(held)
        self.adam.load_state_dict(state["adam"])
        self.adam.param_groups[0].update(lr=self.rates[1], capturable=True)
