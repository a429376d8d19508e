"""Gemma 4's text decoder in plain torch, with transformers' parameter names.

Two ways through it: `forward` for packed training rows (several documents in a row, told apart by `doc`), and `cached`
for generation. Both compute what transformers' Gemma4ForCausalLM computes; evaluate.py checks that on the saved file.
"""
import torch
import torch.nn.functional as fn
from torch import nn

from configs import F, S


class Norm(nn.Module):
    def __init__(self, width, eps, start=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), start))
        self.eps = eps

    def forward(self, x):
        return normed(x, self.eps, self.weight)


def normed(x, eps, weight=None):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


class Linear(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outer, inner) * inner ** -0.5)

    def forward(self, x):
        return fn.linear(x, self.weight.to(x.dtype))


class Table(nn.Module):
    def __init__(self, rows, width, spread):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, width) * spread)


def rope_table(kind, dim, positions):
    """[positions, dim / 2] cosines and sines; a full layer turns only its first quarter of pairs."""
    pairs = torch.arange(dim // 2, dtype=torch.float64)
    rates = 10000.0 ** (-2 * pairs / dim) if kind == S else 1000000.0 ** (-2 * pairs / dim) * (pairs < dim // 8)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return angles.cos().float(), angles.sin().float()


def rope(x, turn):
    """x [B, T, heads, d]; turn = (cos, sin), each [B, T, d / 2]."""
    cos, sin = turn[0][:, :, None], turn[1][:, :, None]
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def attend(q, k, v, mask):
    """q [B, T, heads, d], k and v [B, S, kv heads, d], mask [B, T, S] true where allowed -> [B, T, heads * d]."""
    b, t, heads, d = q.shape
    s, groups = k.shape[1], k.shape[2]
    q = q.view(b, t, groups, heads // groups, d).permute(0, 2, 3, 1, 4).reshape(b * groups, -1, d)
    k, v = (x.transpose(1, 2).reshape(b * groups, s, d) for x in (k, v))
    score = torch.bmm(q, k.transpose(1, 2)).view(b, groups, heads // groups, t, s).float()
    score = score.masked_fill(~mask[:, None, None], -1e30)
    share = torch.softmax(score, -1).to(v.dtype).view(b * groups, -1, s)
    out = torch.bmm(share, v).view(b, groups, heads // groups, t, d)
    return out.permute(0, 3, 1, 2, 4).reshape(b, t, heads * d)


def blocks(x, width):
    """[B, T, ...] -> [B * T / width, 2 * width, ...]: each block of rows with the block before it (zeros before the first)."""
    b, t = x.shape[:2]
    zeros = torch.zeros_like(x[:, :width])
    padded = torch.cat((zeros, x), 1)
    shape = (b, t // width, width, *x.shape[2:])
    return torch.cat((padded[:, :t].view(shape), x.reshape(shape)), 2).flatten(0, 1)


class Masks:
    """Who may look at whom in packed rows. doc [B, T] counts from 1; with strict, a row does not see itself."""

    def __init__(self, doc, window, strict=False):
        t = doc.shape[1]
        at = torch.arange(t, device=doc.device)
        self.window = window if t > window and t % window == 0 else 0
        ahead = 1 if strict else 0
        near = at[None] <= at[:, None] - ahead
        same = doc[:, :, None] == doc[:, None, :]
        self.full = same & near
        if self.window:  # sliding layers in blocks: a row of block i sees blocks i - 1 and i only
            r, c = at[:window, None], torch.arange(2 * window, device=doc.device)[None]
            band = (c > r) & (c <= r + window - ahead)
            self.band = band & (doc.view(-1, window)[:, :, None] == blocks(doc, window)[:, None, :])
        else:
            self.band = self.full & (at[None] > at[:, None] - window)

    def attend(self, kind, q, k, v):
        if kind == F or not self.window:
            return attend(q, k, v, self.full if kind == F else self.band)
        b, t = q.shape[:2]
        q = q.reshape(-1, self.window, *q.shape[2:])
        return attend(q, blocks(k, self.window), blocks(v, self.window), self.band).view(b, t, -1)


class Attention(nn.Module):
    def __init__(self, config, layer, reads=False):
        super().__init__()
        self.kind, self.dim, self.heads, self.kv = config.layers[layer], config.dim(layer), config.heads, config.kv(layer)
        self.eps = config.eps
        self.shared = reads or layer >= config.first_shared
        start = self.dim ** -0.25  # scores have spread 1 at the start: the scale of Gemma 4's attention is 1
        self.q_proj = Linear(config.hidden, self.heads * self.dim)
        self.q_norm = Norm(self.dim, self.eps, start)
        self.o_proj = Linear(self.heads * self.dim, config.hidden)
        if not self.shared:
            self.k_proj = Linear(config.hidden, self.kv * self.dim)
            self.k_norm = Norm(self.dim, self.eps, start)
            if not (config.k_eq_v and self.kind == F):
                self.v_proj = Linear(config.hidden, self.kv * self.dim)

    def query(self, x, turn):
        q = self.q_proj(x).view(*x.shape[:2], self.heads, self.dim)
        return rope(self.q_norm(q), turn)

    def key_value(self, x, turn):
        k = self.k_proj(x).view(*x.shape[:2], self.kv, self.dim)
        v = self.v_proj(x).view(*x.shape[:2], self.kv, self.dim) if hasattr(self, "v_proj") else k
        return rope(self.k_norm(k), turn), normed(v, self.eps)


class MLP(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = Linear(hidden, inner), Linear(hidden, inner), Linear(inner, hidden)

    def forward(self, x):
        return self.down_proj(fn.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = Linear(config.hidden, config.experts)
        self.scale = nn.Parameter(torch.ones(config.hidden))
        self.per_expert_scale = nn.Parameter(torch.ones(config.experts))
        self.top_k, self.eps, self.root = config.top_k, config.eps, config.hidden ** -0.5

    def forward(self, x):
        """[N, experts] weights, zero where not chosen, and the balance loss."""
        y = (normed(x, self.eps) * self.scale.to(x.dtype) * self.root).to(x.dtype)
        odds = torch.softmax(self.proj(y).float(), -1)
        top, index = odds.topk(self.top_k, -1)
        top = top / top.sum(-1, keepdim=True) * self.per_expert_scale[index]
        weights = torch.zeros_like(odds).scatter(-1, index, top)
        balance = (odds.mean(0) * (weights > 0).float().mean(0)).sum() * odds.shape[-1] / self.top_k
        return weights, balance


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        e, h, i = config.experts, config.hidden, config.expert_inner
        self.gate_up_proj = nn.Parameter(torch.randn(e, 2 * i, h) * h ** -0.5)
        self.down_proj = nn.Parameter(torch.randn(e, h, i) * i ** -0.5)

    def forward(self, x, weights):
        """Every expert on every row, the unchosen ones weighted zero: few and small experts need no gathering."""
        rows = x[None].expand(len(self.down_proj), -1, -1)
        gate, up = torch.bmm(rows, self.gate_up_proj.to(x.dtype).transpose(1, 2)).chunk(2, -1)
        out = torch.bmm(fn.gelu(gate, approximate="tanh") * up, self.down_proj.to(x.dtype).transpose(1, 2))
        return (out.float() * weights.t()[:, :, None]).sum(0).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, config, layer, reads=False):
        super().__init__()
        hidden, eps, branch = config.hidden, config.eps, 0.5  # what a branch adds at the start
        self.self_attn = Attention(config, layer, reads)
        self.mlp = MLP(hidden, config.width(layer))
        self.input_layernorm, self.pre_feedforward_layernorm = Norm(hidden, eps), Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps, branch)
        self.post_feedforward_layernorm = Norm(hidden, eps, branch)
        self.layer_scalar = nn.Parameter(torch.ones(1))
        if config.ple:
            self.per_layer_input_gate = Linear(hidden, config.ple)
            self.per_layer_projection = Linear(config.ple, hidden)
            self.post_per_layer_input_norm = Norm(hidden, eps, branch)
        if config.experts:
            self.router, self.experts = Router(config), Experts(config)
            self.post_feedforward_layernorm_1, self.post_feedforward_layernorm_2 = Norm(hidden, eps), Norm(hidden, eps)
            self.pre_feedforward_layernorm_2 = Norm(hidden, eps)

    def forward(self, h, attention, ple=None, extra=None):
        """attention: a function of the normed input. extra: a list the balance losses are added to."""
        h = h + self.post_attention_layernorm(self.self_attn.o_proj(attention(self.input_layernorm(h))))
        f = self.mlp(self.pre_feedforward_layernorm(h))
        if hasattr(self, "experts"):
            flat = h.flatten(0, -2)
            weights, balance = self.router(flat)
            if extra is not None:
                extra.append(balance)
            routed = self.experts(self.pre_feedforward_layernorm_2(flat), weights).view_as(h)
            f = self.post_feedforward_layernorm_1(f) + self.post_feedforward_layernorm_2(routed)
        h = h + self.post_feedforward_layernorm(f)
        if ple is not None:
            gate = fn.gelu(self.per_layer_input_gate(h), approximate="tanh")
            h = h + self.post_per_layer_input_norm(self.per_layer_projection(gate * ple))
        return h * self.layer_scalar.to(h.dtype)


class Body(nn.Module):
    """What transformers calls `model`."""

    def __init__(self, config):
        super().__init__()
        self.config, hidden, count = config, config.hidden, len(config.layers)
        self.embed_tokens = Table(config.vocab, hidden, hidden ** -0.5)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(count))
        self.norm = Norm(hidden, config.eps)
        if config.ple:
            self.embed_tokens_per_layer = Table(config.vocab, count * config.ple, config.ple ** -0.5)
            self.per_layer_model_projection = Linear(hidden, count * config.ple)
            self.per_layer_projection_norm = Norm(config.ple, config.eps)


class Pebble(nn.Module):
    def __init__(self, config, dtype=torch.bfloat16):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model = Body(config)
        for kind, dim in ((S, config.head_dim), (F, config.full_head_dim)):
            cos, sin = rope_table(kind, dim, config.max_positions)
            self.register_buffer(f"cos_{kind}", cos, persistent=False)
            self.register_buffer(f"sin_{kind}", sin, persistent=False)

    def turns(self, pos):
        return {kind: (getattr(self, f"cos_{kind}")[pos], getattr(self, f"sin_{kind}")[pos]) for kind in (S, F)}

    def embed(self, ids):
        """The scaled embedding: the decoder's input, and the first half of the assistant's."""
        return (fn.embedding(ids, self.model.embed_tokens.weight) * self.config.hidden ** 0.5).to(self.dtype)

    def per_layer(self, ids, h):
        """[B, T, layers, width] or None."""
        c, m = self.config, self.model
        if not c.ple:
            return None
        shape = (*ids.shape, len(c.layers), c.ple)
        token = (fn.embedding(ids, m.embed_tokens_per_layer.weight) * c.ple ** 0.5).to(self.dtype).view(shape)
        context = m.per_layer_projection_norm((m.per_layer_model_projection(h) * c.hidden ** -0.5).view(shape))
        return (context + token) * 2 ** -0.5

    def _run(self, ids, pos, keys_values, extra=None, soft=None):
        """keys_values(layer, q, k, v) does the attention; k and v are None for a layer that shares.

        soft: (first, rows [B, n, hidden]), which stand for the tokens from `first` on; those have the padding id.
        """
        h = self.embed(ids)
        if soft is not None:
            first, rows = soft
            h = torch.cat((h[:, :first], rows.to(h.dtype), h[:, first + rows.shape[1]:]), 1)
        ple, turns = self.per_layer(ids, h), self.turns(pos)
        for i, layer in enumerate(self.model.layers):
            attn = layer.self_attn

            def attention(x, i=i, attn=attn):
                turn = turns[attn.kind]
                k, v = (None, None) if attn.shared else attn.key_value(x, turn)
                return keys_values(i, attn.query(x, turn), k, v)
            h = layer(h, attention, None if ple is None else ple[:, :, i], extra)
        return self.model.norm(h)

    def forward(self, ids, pos, doc, extra=None):
        """Packed rows -> (normed hidden [B, T, H], {layer type: donor's (k, v)})."""
        masks, donors = Masks(doc, self.config.window), {}

        def keys_values(i, q, k, v):
            kind = self.config.layers[i]
            if k is not None:
                donors[kind] = (k, v)
            return masks.attend(kind, q, *donors[kind])
        return self._run(ids, pos, keys_values, extra), donors

    def seeing(self, ids, soft, both_ways):
        """Rows that all have their media at one place -> normed hidden [B, T, H]; at most a window long.

        both_ways: in sliding layers the soft tokens see each other.
        """
        (first, rows), donors = soft, {}
        at = torch.arange(ids.shape[1], device=ids.device)
        causal = at[None] <= at[:, None]
        inside = (at >= first) & (at < first + rows.shape[1])
        masks = {F: causal[None], S: (causal | inside & inside[:, None] if both_ways else causal)[None]}

        def keys_values(i, q, k, v):
            kind = self.config.layers[i]
            if k is not None:
                donors[kind] = (k, v)
            return attend(q, *donors[kind], masks[kind])
        return self._run(ids, at[None].expand(len(ids), -1), keys_values, soft=soft)

    def logits(self, y):
        z = fn.linear(y, self.model.embed_tokens.weight.to(y.dtype)).float()
        return z if self.config.softcap is None else self.config.softcap * torch.tanh(z / self.config.softcap)

    def new_cache(self, rows, length):
        c = self.config
        return [[torch.zeros(rows, length, c.kv(i), c.dim(i), dtype=self.dtype, device=self.cos_full_attention.device)
                 for _ in "kv"] for i in range(c.first_shared)]

    @torch.no_grad()
    def cached(self, ids, pos, cache):
        """ids and pos [B, T] -> normed hidden [B, T, H]. Writes the new rows at their positions."""
        at = torch.arange(cache[0][0].shape[1], device=ids.device)
        full = at[None, None] <= pos[:, :, None]
        masks = {F: full, S: full & (at[None, None] > pos[:, :, None] - self.config.window)}
        rows = torch.arange(len(ids), device=ids.device)[:, None]

        def keys_values(i, q, k, v):
            kind = self.config.layers[i]
            if k is not None:
                cache[i][0][rows, pos], cache[i][1][rows, pos] = k, v
            held = cache[i if k is not None else self.config.donor(kind)]
            return attend(q, held[0], held[1], masks[kind])
        return self._run(ids, pos, keys_values)


class Assistant(nn.Module):
    """The drafter: query-only layers over the target's keys and values."""

    def __init__(self, config, dtype=torch.bfloat16):
        super().__init__()
        self.config, self.dtype, stack = config, dtype, config.stack()
        body = nn.Module()
        body.embed_tokens = Table(stack.vocab, config.hidden, config.hidden ** -0.5)
        body.layers = nn.ModuleList(Layer(stack, i, reads=True) for i in range(len(stack.layers)))
        body.norm = Norm(config.hidden, stack.eps)
        self.model = body
        self.pre_projection = Linear(2 * config.target.hidden, config.hidden)
        self.post_projection = Linear(config.hidden, config.target.hidden)
        if config.centroids:
            self.masked_embedding = nn.Module()
            self.masked_embedding.centroids = Linear(config.hidden, config.centroids)
            self.masked_embedding.register_buffer("token_ordering", torch.arange(stack.vocab))

    def step(self, embedded, g, turns, attend_donor):
        """One draft step -> (normed hidden [B, T, h], feedback [B, T, H of the target])."""
        z = self.pre_projection(torch.cat((embedded, g), -1))
        for layer in self.model.layers:
            attn = layer.self_attn
            z = layer(z, lambda x, attn=attn: attend_donor(attn.kind, attn.query(x, turns[attn.kind])))
        y = self.model.norm(z)
        return y, self.post_projection(y)

    def logits(self, y):
        """The dense head, over all tokens."""
        return fn.linear(y, self.model.embed_tokens.weight.to(y.dtype)).float()

    def draft_logits(self, y):
        """What drafting uses: with centroids, only the tokens of the best ones count."""
        z = self.logits(y)
        if not self.config.centroids:
            return z
        c = self.masked_embedding.centroids(y).float()
        best = c.topk(self.config.centroid_top_k, -1).indices
        cluster = torch.empty_like(self.masked_embedding.token_ordering)
        size = len(cluster) // self.config.centroids
        cluster[self.masked_embedding.token_ordering] = torch.arange(len(cluster), device=y.device) // size
        chosen = torch.zeros_like(c, dtype=torch.bool).scatter(-1, best, True)
        return z.masked_fill(~chosen[..., cluster], -1e30)
