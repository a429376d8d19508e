"""Shapes of the three targets and their assistants, and their config.json in transformers' form."""
from dataclasses import dataclass, field

S, F = "sliding_attention", "full_attention"
ROPE = {S: {"rope_type": "default", "rope_theta": 10000.0},
        F: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}}


@dataclass
class Config:
    hidden: int
    layers: list              # layer types
    inner: int                # MLP width of an ordinary layer
    heads: int = 2
    kv_heads: int = 1         # of a sliding layer
    full_kv_heads: int = 1    # of a full layer; differs from kv_heads only with k_eq_v
    head_dim: int = 256
    full_head_dim: int = 512
    window: int = 128
    ple: int = 0              # width of the per-layer embeddings, 0 = none
    shared: int = 0           # layers at the end that read an earlier layer's keys and values
    double_wide: bool = False
    k_eq_v: bool = False
    experts: int = 0
    top_k: int = 2
    expert_inner: int = 0
    vocab: int = 2048
    softcap: float = 30.0
    max_positions: int = 8192
    eps: float = 1e-6
    template: str = "gemma4_large.jinja"

    @property
    def large(self):
        """The large models' template: an empty thought in the prompt when thinking is off."""
        return "large" in self.template

    @property
    def first_shared(self):
        return len(self.layers) - self.shared

    def donor(self, kind):
        """The last layer of this type that owns its keys and values."""
        return max(i for i in range(self.first_shared) if self.layers[i] == kind)

    def dim(self, layer):
        return self.head_dim if self.layers[layer] == S else self.full_head_dim

    def kv(self, layer):
        return self.kv_heads if self.layers[layer] == S or not self.k_eq_v else self.full_kv_heads

    def width(self, layer):
        return self.inner * (2 if self.double_wide and 0 < self.first_shared <= layer else 1)

    def text_config(self):
        out = {
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16",
            "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_hidden_layers": len(self.layers), "layer_types": list(self.layers),
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "global_head_dim": self.full_head_dim,
            "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.eps, "rope_parameters": ROPE, "sliding_window": self.window,
            "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": self.k_eq_v,
            "final_logit_softcapping": self.softcap, "hidden_size_per_layer_input": self.ple,
            "vocab_size_per_layer_input": self.vocab if self.ple else 0,
            "num_kv_shared_layers": self.shared, "use_double_wide_mlp": self.double_wide,
            "enable_moe_block": self.experts > 0, "use_bidirectional_attention": None,
            "tie_word_embeddings": True, "initializer_range": 0.02, "use_cache": True,
            "bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0}
        if self.k_eq_v:
            out["num_global_key_value_heads"] = self.full_kv_heads
        if self.experts:
            out.update(num_experts=self.experts, top_k_experts=self.top_k, moe_intermediate_size=self.expert_inner)
        return out


@dataclass
class AssistantConfig:
    target: Config
    hidden: int
    inner: int
    layers: list = field(default_factory=lambda: [S, S, S, F])
    centroids: int = 0        # 0 = dense head
    centroid_top_k: int = 8

    def stack(self):
        """The assistant's layers: every one reads the target's keys and values."""
        t = self.target
        return Config(hidden=self.hidden, layers=self.layers, inner=self.inner, heads=t.heads, kv_heads=t.kv_heads,
                      full_kv_heads=t.full_kv_heads, head_dim=t.head_dim, full_head_dim=t.full_head_dim, window=t.window,
                      shared=len(self.layers), k_eq_v=t.k_eq_v, vocab=t.vocab, softcap=None,
                      max_positions=t.max_positions)

    def config(self):
        text = self.stack().text_config()
        text.pop("architectures")
        return {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "dtype": "bfloat16",
                "backbone_hidden_size": self.target.hidden, "use_ordered_embeddings": self.centroids > 0,
                "num_centroids": self.centroids or 64, "centroid_intermediate_top_k": self.centroid_top_k,
                "tie_word_embeddings": True, "text_config": text}


TARGETS = {
    "pebble-e": Config(hidden=192, layers=[S, F, S, F, S, F, S, F], inner=320, ple=16, shared=4, double_wide=True,
                       template="gemma4_e.jinja"),
    "pebble-moe": Config(hidden=128, layers=[S, S, F, S, S, F], inner=192, k_eq_v=True, experts=8, top_k=2,
                         expert_inner=64),
    "pebble-dense": Config(hidden=128, layers=[S, S, F, S, S, F], inner=448, kv_heads=2, full_kv_heads=1, k_eq_v=True),
}
ASSISTANTS = {
    "pebble-e": AssistantConfig(TARGETS["pebble-e"], hidden=96, inner=192, centroids=64, centroid_top_k=8),
    "pebble-moe": AssistantConfig(TARGETS["pebble-moe"], hidden=64, inner=128),
    "pebble-dense": AssistantConfig(TARGETS["pebble-dense"], hidden=64, inner=128),
}
