"""Gemma 4's towers in plain torch, with the names of its files: pictures and sounds to soft tokens.

Every class takes what the engine's decoders give (patches in [0, 1], log-mel frames, samples) and returns
[B, tokens, text hidden]. All clips of a batch have one length. train_towers.py checks them against transformers.
"""
import math

import torch
import torch.nn.functional as fn
from torch import nn

from model import Linear, Norm, normed
from tower_shapes import PATCH, POOL, AudioConfig, CellConfig, VisionConfig, WaveConfig

BOUND = 64.0  # of every clipped product, in and out


class Clipped(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = Linear(inner, outer)
        for name in ("input_min", "input_max", "output_min", "output_max"):
            self.register_buffer(name, torch.tensor(-BOUND if name.endswith("min") else BOUND))

    def forward(self, x):
        return self.linear(x.clamp(-BOUND, BOUND)).clamp(-BOUND, BOUND)


class Projection(nn.Module):
    """The last step of every kind: a bare norm, then into the text model."""

    def __init__(self, inner, hidden):
        super().__init__()
        self.embedding_projection = Linear(inner, hidden)

    def forward(self, x):
        return self.embedding_projection(normed(x, 1e-6))


def patches(pictures, side):
    """[B, h, w, 3] -> [B, h * w / side^2, side * side * 3], row by row."""
    b, h, w, _ = pictures.shape
    cut = pictures.view(b, h // side, side, w // side, side, 3).permute(0, 1, 3, 2, 4, 5)
    return cut.reshape(b, -1, side * side * 3)


def places(rows, columns, device):
    """(x, y) of every patch, row by row."""
    at = torch.arange(rows * columns, device=device)
    return at % columns, at // columns


def turn2d(x, place, theta=100.0):
    """x [B, n, heads, d]: its first half is turned by the column, its second by the row."""
    s = x.shape[-1] // 2
    rates = theta ** (-torch.arange(0, s, 2, device=x.device, dtype=torch.float32) / s)
    out = []
    for half, at in zip(x.chunk(2, -1), place):
        angle = at[:, None, None].float() * rates
        a, b = half.chunk(2, -1)
        out += [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
    return torch.cat(out, -1)


class VisionAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, dim = heads, hidden // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (Clipped(hidden, hidden) for _ in range(4))
        self.q_norm, self.k_norm = Norm(dim, 1e-6, dim ** -0.25), Norm(dim, 1e-6, dim ** -0.25)

    def forward(self, x, place):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = turn2d(self.q_norm(q), place), turn2d(self.k_norm(k), place), normed(v, 1e-6)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return self.o_proj(fn.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))


class VisionLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, branch = config.hidden, 0.5
        self.self_attn = VisionAttention(hidden, config.heads)
        self.mlp = nn.Module()
        self.mlp.gate_proj, self.mlp.up_proj = Clipped(hidden, config.inner), Clipped(hidden, config.inner)
        self.mlp.down_proj = Clipped(config.inner, hidden)
        self.input_layernorm, self.pre_feedforward_layernorm = Norm(hidden, 1e-6), Norm(hidden, 1e-6)
        self.post_attention_layernorm = Norm(hidden, 1e-6, branch)
        self.post_feedforward_layernorm = Norm(hidden, 1e-6, branch)

    def forward(self, h, place):
        h = h + self.post_attention_layernorm(self.self_attn(self.input_layernorm(h), place))
        m = self.pre_feedforward_layernorm(h)
        m = self.mlp.down_proj(fn.gelu(self.mlp.gate_proj(m), approximate="tanh") * self.mlp.up_proj(m))
        return h + self.post_feedforward_layernorm(m)


class Vision(nn.Module):
    """The S kind: vision_tower and embed_vision."""

    def __init__(self, config, hidden):
        super().__init__()
        self.vision_tower = tower = nn.Module()
        tower.patch_embedder = nn.Module()
        tower.patch_embedder.input_proj = Linear(3 * PATCH * PATCH, config.hidden)
        tower.patch_embedder.position_embedding_table = nn.Parameter(torch.randn(2, config.positions, config.hidden) * 0.1)
        tower.encoder = nn.Module()
        tower.encoder.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.layers))
        self.embed_vision = Projection(config.hidden, hidden)

    def forward(self, pictures):
        """[B, h, w, 3] in [0, 1]."""
        rows, columns = pictures.shape[1] // PATCH, pictures.shape[2] // PATCH
        x, y = places(rows, columns, pictures.device)
        embedder = self.vision_tower.patch_embedder
        table = embedder.position_embedding_table
        h = embedder.input_proj(2 * patches(pictures, PATCH) - 1) + table[0, x] + table[1, y]
        for layer in self.vision_tower.encoder.layers:
            h = layer(h, (x, y))
        h = h.view(len(h), rows // POOL, POOL, columns // POOL, POOL, -1).mean((2, 4)).flatten(1, 2)
        return self.embed_vision(h * h.shape[-1] ** 0.5)


class Cells(nn.Module):
    """The unified kind: vision_embedder and embed_vision."""

    def __init__(self, config, hidden):
        super().__init__()
        size = 3 * (PATCH * POOL) ** 2
        self.vision_embedder = part = nn.Module()
        part.patch_ln1, part.patch_ln2, part.pos_norm = (nn.LayerNorm(n, eps=1e-5)
                                                         for n in (size, config.hidden, config.hidden))
        part.patch_dense = nn.Linear(size, config.hidden)
        part.pos_embedding = nn.Parameter(torch.randn(config.positions, 2, config.hidden) * 0.1)
        self.embed_vision = Projection(config.hidden, hidden)

    def forward(self, pictures):
        side = PATCH * POOL
        x, y = places(pictures.shape[1] // side, pictures.shape[2] // side, pictures.device)
        part = self.vision_embedder
        u = part.patch_ln2(part.patch_dense(part.patch_ln1(patches(pictures, side))))
        return self.embed_vision(part.pos_norm(u + part.pos_embedding[x, 0] + part.pos_embedding[y, 1]))


class FeedForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.pre_layer_norm, self.post_layer_norm = Norm(hidden, 1e-6), Norm(hidden, 1e-6)
        self.ffw_layer_1, self.ffw_layer_2 = Clipped(hidden, 4 * hidden), Clipped(4 * hidden, hidden)

    def forward(self, x):
        return x + 0.5 * self.post_layer_norm(self.ffw_layer_2(fn.silu(self.ffw_layer_1(self.pre_layer_norm(x)))))


class AudioAttention(nn.Module):
    """Of a query and the 11 rows before it, with a logit for how far back."""
    KEYS, CAP = 12, 50.0

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.dim = heads, hidden // heads
        self.q_proj, self.k_proj, self.v_proj, self.post = (Clipped(hidden, hidden) for _ in range(4))
        self.relative_k_proj = Linear(hidden, hidden)
        self.per_dim_scale = nn.Parameter(torch.zeros(self.dim))

    def forward(self, x):
        b, n, hidden = x.shape
        q, k, v = (p(x).view(b, n, self.heads, self.dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q = q * (self.dim ** -0.5 / math.log(2)) * fn.softplus(self.per_dim_scale)
        k = k * (math.log(1 + math.e) / math.log(2))
        half = hidden // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / (half - 1)))
        angle = torch.arange(self.KEYS, device=x.device)[:, None] * rates
        back = self.relative_k_proj(torch.cat((angle.sin(), angle.cos()), -1)).view(self.KEYS, self.heads, self.dim)
        far = torch.einsum("bhnd,khd->bhnk", q, back)
        at = torch.arange(n, device=x.device)
        steps = at[:, None] - at[None]
        seen = (steps >= 0) & (steps < self.KEYS)
        index = steps.clamp(0, self.KEYS - 1).expand(b, self.heads, n, n)
        score = self.CAP * torch.tanh((q @ k.transpose(2, 3) + far.gather(3, index)) / self.CAP)
        share = torch.softmax(score.masked_fill(~seen, -1e9), -1)
        return self.post((share @ v).transpose(1, 2).flatten(2))


class LightConv(nn.Module):
    KERNEL = 5

    def __init__(self, hidden):
        super().__init__()
        self.pre_layer_norm, self.conv_norm = Norm(hidden, 1e-6), Norm(hidden, 1e-6)
        self.linear_start, self.linear_end = Clipped(hidden, 2 * hidden), Clipped(hidden, hidden)
        self.depthwise_conv1d = nn.Conv1d(hidden, hidden, self.KERNEL, groups=hidden, bias=False)

    def forward(self, x):
        y = fn.glu(self.linear_start(self.pre_layer_norm(x)), -1).transpose(1, 2)
        y = self.depthwise_conv1d(fn.pad(y, (self.KERNEL - 1, 0))).transpose(1, 2)
        return self.linear_end(fn.silu(self.conv_norm(y)))


class AudioLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config.hidden
        self.feed_forward1, self.feed_forward2 = FeedForward(hidden), FeedForward(hidden)
        self.self_attn, self.lconv1d = AudioAttention(hidden, config.heads), LightConv(hidden)
        self.norm_pre_attn, self.norm_post_attn, self.norm_out = (Norm(hidden, 1e-6) for _ in range(3))

    def forward(self, x):
        x = self.feed_forward1(x)
        x = x + self.norm_post_attn(self.self_attn(self.norm_pre_attn(x)))
        x = x + self.lconv1d(x)
        return self.norm_out(self.feed_forward2(x))


class Subsample(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False)
        self.norm = nn.LayerNorm(outer, eps=1e-6, bias=False)

    def forward(self, x):
        return fn.relu(self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class Audio(nn.Module):
    """The conformer: audio_tower and embed_audio."""

    def __init__(self, config, hidden):
        super().__init__()
        self.audio_tower = tower = nn.Module()
        tower.subsample_conv_projection = start = nn.Module()
        start.layer0, start.layer1 = Subsample(1, 128), Subsample(128, config.channels)
        start.input_proj_linear = Linear(32 * config.channels, config.hidden)
        tower.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.layers))
        tower.output_proj = nn.Linear(config.hidden, config.output)
        self.embed_audio = Projection(config.output, hidden)

    def forward(self, mel):
        """[B, frames, 128]."""
        tower = self.audio_tower
        start = tower.subsample_conv_projection
        x = start.layer1(start.layer0(mel[:, None])).permute(0, 2, 3, 1).flatten(2)
        x = start.input_proj_linear(x)
        for layer in tower.layers:
            x = layer(x)
        return self.embed_audio(tower.output_proj(x))


class Waves(nn.Module):
    """The unified kind: embed_audio alone."""

    def __init__(self, config, hidden):
        super().__init__()
        self.samples = config.samples
        self.embed_audio = Projection(config.samples, hidden)

    def forward(self, samples):
        """[B, n], n a multiple of 640."""
        return self.embed_audio(samples.view(len(samples), -1, self.samples))


class LogMel(nn.Module):
    """Samples at 16 kHz -> [B, frames, 128], as Gemma 4's feature extractor makes them."""

    def __init__(self):
        super().__init__()
        mel = 2595 * math.log10(1 + 8000 / 700)
        points = 700 * (10 ** (torch.arange(130, dtype=torch.float64) * mel / 129 / 2595) - 1)
        bins = torch.arange(257, dtype=torch.float64)[:, None] * 31.25
        up = (bins - points[:-2]) / (points[1:-1] - points[:-2])
        down = (points[2:] - bins) / (points[2:] - points[1:-1])
        self.register_buffer("filters", torch.minimum(up, down).clamp(min=0).float(), persistent=False)
        at = torch.arange(320, dtype=torch.float64)
        self.register_buffer("window", (0.5 - 0.5 * torch.cos(2 * math.pi * at / 320)).float(), persistent=False)

    def forward(self, samples):
        frames = fn.pad(samples, (160, 0)).unfold(1, 321, 160)[:, :, :320]
        return torch.log(torch.fft.rfft(frames * self.window, 512).abs() @ self.filters + 0.001)


KINDS = {VisionConfig: Vision, AudioConfig: Audio, CellConfig: Cells, WaveConfig: Waves}


def make(config, hidden):
    return KINDS[type(config)](config, hidden)
