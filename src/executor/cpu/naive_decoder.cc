#include "executor/cpu/naive_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "model/tensor_specs.h"
#include "tensor/decode.h"
#include "tensor/dtype.h"

namespace lapidary {
namespace {

using Vec = NaiveDecoder::Vec;

Vec Times(Vec x, double a) {
  for (double& value : x) value *= a;
  return x;
}

Vec Plus(Vec x, const Vec& y) {
  for (size_t idx = 0; idx < x.size(); ++idx) x[idx] += y[idx];
  return x;
}

Vec Slice(const Vec& x, int64_t idx, int64_t size) {
  return Vec(x.begin() + idx * size, x.begin() + (idx + 1) * size);
}

// Some sums at once: one would wait for itself.
double Dot(const double* a, const double* b, size_t count) {
  constexpr size_t kSums = 8;
  std::array<double, kSums> sums = {};
  size_t at = 0;
  for (; at + kSums <= count; at += kSums) {
    for (size_t idx = 0; idx < kSums; ++idx) sums[idx] += a[at + idx] * b[at + idx];
  }
  return std::inner_product(a + at, a + count, b + at,
                            std::accumulate(sums.begin(), sums.end(), 0.0));
}

Vec MatVec(const Vec& w, const Vec& x) {
  Vec y(w.size() / x.size());
  for (size_t row = 0; row < y.size(); ++row) {
    y[row] = Dot(w.data() + row * x.size(), x.data(), x.size());
  }
  return y;
}

}  // namespace

std::vector<Mistake> CommonMistakes(const ModelPlan& plan) {
  std::vector<Mistake> mistakes = {Mistake::kOnePlusNormWeight,
                                   Mistake::kScaledAttention,
                                   Mistake::kNoValueNorm,
                                   Mistake::kNoQueryNormWeight,
                                   Mistake::kNormAfterRope,
                                   Mistake::kKeyNormOfAnotherLayer,
                                   Mistake::kWindowTooLong,
                                   Mistake::kWindowTooShort,
                                   Mistake::kFirstKeyLost,
                                   Mistake::kPreviousKeyLost,
                                   Mistake::kOwnKeyLost,
                                   Mistake::kWrongKvHead,
                                   Mistake::kRopeDenominatorIsRotaryDims,
                                   Mistake::kRopePairsNeighbours,
                                   Mistake::kQueryRopeOneAhead,
                                   Mistake::kNoPostAttentionNormWeight,
                                   Mistake::kNoPostMlpNormWeight,
                                   Mistake::kPostNormsSwapped,
                                   Mistake::kMlpGateUpSwapped,
                                   Mistake::kNoLayerScalar,
                                   Mistake::kNoSoftcap};
  if (plan.has_kv_sharing()) mistakes.push_back(Mistake::kNearestDonor);
  if (plan.ple) {
    mistakes.insert(
        mistakes.end(),
        {Mistake::kPleNoSumScale, Mistake::kPleNoProjectionScale, Mistake::kPleNoTokenScale,
         Mistake::kPleRawEmbedding, Mistake::kPleOfPreviousLayer, Mistake::kPleReadsNormed,
         Mistake::kNoPlePostNormWeight, Mistake::kNoPle, Mistake::kLayerScalarBeforePle});
  }
  if (plan.moe) {
    // Of missing renormalisation the norm behind the experts leaves next to nothing.
    mistakes.insert(mistakes.end(),
                    {Mistake::kMoeScaleBeforeRenormalisation, Mistake::kMoeNoPerExpertScale,
                     Mistake::kMoeNoRouterRootScale, Mistake::kMoeRouterReadsNormed,
                     Mistake::kMoeGateUpSwapped, Mistake::kMoeDenseAndExpertNormsSwapped});
  }
  return mistakes;
}

NaiveTensors LoadNaiveTensors(const std::vector<TensorSpec>& specs, const TensorSource& source) {
  NaiveTensors tensors;
  for (const TensorSpec& spec : specs) {
    std::vector<float> values;
    if (spec.shape.size() < 2) {
      values = ToFloats(source.Get(spec).value());
    } else {
      const std::vector<MatrixRef> parts = source.GetStored(spec).value();
      for (const MatrixRef& part : parts) {
        const std::vector<float> rows = DecodeMatrix(part);
        values.insert(values.end(), rows.begin(), rows.end());
      }
    }
    tensors[spec.name] = std::make_shared<const Vec>(values.begin(), values.end());
  }
  return tensors;
}

NaiveDecoder::NaiveDecoder(const ModelPlan& plan, NaiveTensors tensors, Mistake mistake,
                           Rounding rounding)
    : plan_(plan), mistake_(mistake), rounding_(rounding), tensors_(std::move(tensors)) {}

std::vector<Vec> NaiveDecoder::Run(const std::vector<int32_t>& tokens) {
  const size_t count = tokens.size();
  std::vector<Vec> h(count);
  std::vector<std::vector<Vec>> ple(count);
  for (size_t pos = 0; pos < count; ++pos) {
    const Vec raw = Row("embed_tokens.weight", tokens[pos], plan_.hidden_size);
    h[pos] = Times(raw, std::sqrt(plan_.hidden_size));
    if (plan_.ple) {
      ple[pos] = PerLayerInputs(tokens[pos], Is(Mistake::kPleRawEmbedding) ? raw : h[pos]);
    }
  }
  for (const LayerPlan& layer : plan_.layers) {
    prefix_ = fmt::format("layers.{}.", layer.index);
    Attention(layer, h);
    for (size_t pos = 0; pos < count; ++pos) {
      FeedForward(layer, h[pos]);
      const double scalar = Is(Mistake::kNoLayerScalar) ? 1.0 : Layer("layer_scalar")[0];
      if (Is(Mistake::kLayerScalarBeforePle)) h[pos] = Times(h[pos], scalar);
      if (plan_.ple && !Is(Mistake::kNoPle)) PerLayerGate(ple[pos], layer.index, h[pos]);
      if (!Is(Mistake::kLayerScalarBeforePle)) h[pos] = Times(h[pos], scalar);
    }
  }
  std::vector<Vec> logits;
  head_inputs_.clear();
  for (const Vec& row : h) {
    head_inputs_.push_back(Stored(Norm(row, &Tensor("norm.weight"))));
    logits.push_back(MatVec(Tensor("embed_tokens.weight"), head_inputs_.back()));
    for (double& z : logits.back()) {
      if (!Is(Mistake::kNoSoftcap)) z = plan_.logit_softcap * std::tanh(z / plan_.logit_softcap);
    }
  }
  return logits;
}

Vec NaiveDecoder::Row(const std::string& name, int64_t row, int64_t columns) const {
  return Slice(Tensor(name), row, columns);
}

Vec NaiveDecoder::Stored(Vec x) const {
  if (rounding_ == Rounding::kBf16) {
    for (double& value : x) value = Bf16ToFloat(FloatToBf16(static_cast<float>(value)));
  }
  return x;
}

double NaiveDecoder::Gelu(double x) const {
  if (Is(Mistake::kGeluByErf)) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

Vec NaiveDecoder::GeluMul(const Vec& gate, const Vec& up) const {
  Vec y(gate.size());
  for (size_t idx = 0; idx < y.size(); ++idx) y[idx] = Gelu(gate[idx]) * up[idx];
  return Stored(y);
}

Vec NaiveDecoder::Norm(Vec x, const Vec* weight) const {
  const double squares = Dot(x.data(), x.data(), x.size());
  const double inverse =
      1 / std::sqrt(squares / static_cast<double>(x.size()) + double{plan_.rms_norm_eps});
  for (size_t idx = 0; idx < x.size(); ++idx) {
    x[idx] *= inverse;
    if (weight != nullptr) x[idx] *= (*weight)[idx] + (Is(Mistake::kOnePlusNormWeight) ? 1 : 0);
  }
  return x;
}

Vec NaiveDecoder::Rope(const LayerPlan& layer, Vec x, size_t position) const {
  const int dim = layer.head_dim;
  const int pairs = layer.kind == AttentionKind::kFull ? dim / 8 : dim / 2;
  const double theta = layer.kind == AttentionKind::kFull ? 1e6 : 1e4;
  const double denominator = Is(Mistake::kRopeDenominatorIsRotaryDims) ? 2 * pairs : dim;
  for (int j = 0; j < pairs; ++j) {
    const double angle = static_cast<double>(position) * std::pow(theta, -2 * j / denominator);
    double& low = Is(Mistake::kRopePairsNeighbours) ? x[2 * j] : x[j];
    double& high = Is(Mistake::kRopePairsNeighbours) ? x[2 * j + 1] : x[j + dim / 2];
    const double a = low, b = high;
    low = a * std::cos(angle) - b * std::sin(angle);
    high = b * std::cos(angle) + a * std::sin(angle);
  }
  return x;
}

Vec NaiveDecoder::NormRope(const LayerPlan& layer, const Vec& raw, const Vec* norm,
                           size_t position) const {
  if (Is(Mistake::kNormAfterRope)) return Stored(Norm(Rope(layer, raw, position), norm));
  return Stored(Rope(layer, Norm(raw, norm), position));
}

std::vector<Vec> NaiveDecoder::PerLayerInputs(int32_t token, const Vec& embedded) const {
  const int64_t width = plan_.ple->width;
  const int64_t columns = width * plan_.num_layers;
  const Vec table = Times(Row("embed_tokens_per_layer.weight", token, columns),
                          Is(Mistake::kPleNoTokenScale) ? 1.0 : std::sqrt(width));
  Vec projected = Stored(MatVec(Tensor("per_layer_model_projection.weight"), Stored(embedded)));
  if (!Is(Mistake::kPleNoProjectionScale)) {
    projected = Times(projected, 1 / std::sqrt(plan_.hidden_size));
  }
  const Vec& norm = Tensor("per_layer_projection_norm.weight");
  if (Is(Mistake::kPleNormOverWholeRow)) projected = Norm(projected, nullptr);
  std::vector<Vec> inputs;
  for (int64_t layer = 0; layer < plan_.num_layers; ++layer) {
    const Vec slice = Slice(projected, layer, width);
    Vec normed = Norm(slice, &norm);
    if (Is(Mistake::kPleNormOverWholeRow)) {
      for (int64_t idx = 0; idx < width; ++idx) normed[idx] = slice[idx] * norm[idx];
    }
    inputs.push_back(Stored(Times(Plus(normed, Slice(table, layer, width)),
                                  Is(Mistake::kPleNoSumScale) ? 1.0 : 1 / std::sqrt(2.0))));
  }
  return inputs;
}

void NaiveDecoder::MakeKeysAndValues(const LayerPlan& layer, const std::vector<Vec>& u) {
  const int64_t dim = layer.head_dim;
  const int norm_layer = Is(Mistake::kKeyNormOfAnotherLayer) ? AnotherOwner(layer) : layer.index;
  const Vec& k_norm = Tensor(fmt::format("layers.{}.self_attn.k_norm.weight", norm_layer));
  for (size_t pos = 0; pos < u.size(); ++pos) {
    const Vec k_raw = Stored(MatVec(Layer("self_attn.k_proj.weight"), u[pos]));
    const Vec v_raw =
        layer.k_is_v ? k_raw : Stored(MatVec(Layer("self_attn.v_proj.weight"), u[pos]));
    for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
      const Vec v = Slice(v_raw, head, dim);
      keys_[{layer.index, pos, head}] = NormRope(layer, Slice(k_raw, head, dim), &k_norm, pos);
      values_[{layer.index, pos, head}] = Stored(Is(Mistake::kNoValueNorm) ? v : Norm(v, nullptr));
    }
  }
}

void NaiveDecoder::Attention(const LayerPlan& layer, std::vector<Vec>& h) {
  const int64_t dim = layer.head_dim;
  std::vector<Vec> u;
  for (const Vec& row : h) u.push_back(Stored(Norm(row, &Layer("input_layernorm.weight"))));
  if (layer.owns_kv()) MakeKeysAndValues(layer, u);
  int source = layer.kv_layer;
  // A wrong donor of the right kind: the first one instead of the last.
  if (Is(Mistake::kNearestDonor) && !layer.owns_kv()) {
    source = plan_.kv_groups[KvGroupOf(layer.kind)].layers.front();
  }
  const Vec* q_norm = Is(Mistake::kNoQueryNormWeight) ? nullptr : &Layer("self_attn.q_norm.weight");
  const Vec& post_norm = Layer(Is(Mistake::kPostNormsSwapped) ? "post_feedforward_layernorm.weight"
                                                              : "post_attention_layernorm.weight");
  for (size_t pos = 0; pos < h.size(); ++pos) {
    const Vec q_raw = Stored(MatVec(Layer("self_attn.q_proj.weight"), u[pos]));
    Vec joined;
    for (int64_t head = 0; head < layer.num_heads; ++head) {
      const Vec q = NormRope(layer, Slice(q_raw, head, dim), q_norm,
                             Is(Mistake::kQueryRopeOneAhead) ? pos + 1 : pos);
      const int64_t kv_head = Is(Mistake::kWrongKvHead)
                                  ? head % layer.num_kv_heads
                                  : head * layer.num_kv_heads / layer.num_heads;
      const Vec out = AttendHead(layer, source, q, pos, kv_head);
      joined.insert(joined.end(), out.begin(), out.end());
    }
    h[pos] = Plus(h[pos], Norm(Stored(MatVec(Layer("self_attn.o_proj.weight"), Stored(joined))),
                               Is(Mistake::kNoPostAttentionNormWeight) ? nullptr : &post_norm));
  }
}

int NaiveDecoder::AnotherOwner(const LayerPlan& layer) const {
  const std::vector<int>& owners = plan_.kv_groups[KvGroupOf(layer.kind)].layers;
  return owners.front() == layer.index ? owners.back() : owners.front();
}

bool NaiveDecoder::IsVisible(const LayerPlan& layer, size_t key, size_t pos) const {
  if (key == pos) return !Is(Mistake::kOwnKeyLost) || pos == 0;
  if (Is(Mistake::kPreviousKeyLost) && key + 1 == pos) return false;
  if (layer.window == 0) return !Is(Mistake::kFirstKeyLost) || key > 0;
  int window = layer.window;
  if (Is(Mistake::kWindowTooLong)) ++window;
  if (Is(Mistake::kWindowTooShort)) --window;
  return pos - key < static_cast<size_t>(window);
}

Vec NaiveDecoder::AttendHead(const LayerPlan& layer, int source, const Vec& q, size_t pos,
                             int64_t kv_head) const {
  Vec weights;
  std::vector<const Vec*> values;
  for (size_t key = 0; key <= pos; ++key) {
    if (!IsVisible(layer, key, pos)) continue;
    double score = Dot(q.data(), keys_.at({source, key, kv_head}).data(), q.size());
    if (Is(Mistake::kScaledAttention)) score /= std::sqrt(layer.head_dim);
    weights.push_back(score);
    values.push_back(&values_.at({source, key, kv_head}));
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - max);
  weights = Stored(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  Vec out(layer.head_dim, 0.0);
  for (size_t idx = 0; idx < weights.size(); ++idx) {
    out = Plus(out, Times(*values[idx], weights[idx] / sum));
  }
  return out;
}

void NaiveDecoder::FeedForward(const LayerPlan& layer, Vec& h) const {
  const Vec n = Stored(Norm(h, &Layer("pre_feedforward_layernorm.weight")));
  const Vec gate = MatVec(Layer("mlp.gate_proj.weight"), n);
  const Vec up = MatVec(Layer("mlp.up_proj.weight"), n);
  const Vec active = Is(Mistake::kMlpGateUpSwapped) ? GeluMul(up, gate) : GeluMul(gate, up);
  Vec f = Stored(MatVec(Layer("mlp.down_proj.weight"), active));
  if (layer.has_moe) {
    const bool is_swapped = Is(Mistake::kMoeDenseAndExpertNormsSwapped);
    const Vec& dense_norm = Layer(is_swapped ? "post_feedforward_layernorm_2.weight"
                                             : "post_feedforward_layernorm_1.weight");
    const Vec& expert_norm = Layer(is_swapped ? "post_feedforward_layernorm_1.weight"
                                              : "post_feedforward_layernorm_2.weight");
    f = Plus(Norm(f, &dense_norm), Norm(Experts(h), &expert_norm));
  }
  const Vec& post_norm =
      Layer(Is(Mistake::kPostNormsSwapped) ? "post_attention_layernorm.weight"
                                           : "post_feedforward_layernorm.weight");
  h = Plus(h, Norm(f, Is(Mistake::kNoPostMlpNormWeight) ? nullptr : &post_norm));
}

Vec NaiveDecoder::Experts(const Vec& h) const {
  const Vec x = Norm(h, &Layer("pre_feedforward_layernorm_2.weight"));
  Vec r = Norm(Is(Mistake::kMoeRouterReadsNormed) ? x : h, nullptr);
  for (size_t idx = 0; idx < r.size(); ++idx) r[idx] *= Layer("router.scale")[idx];
  if (!Is(Mistake::kMoeNoRouterRootScale)) r = Times(r, 1 / std::sqrt(plan_.hidden_size));
  Vec p = MatVec(Layer("router.proj.weight"), r);
  double sum = 0;
  const double max = *std::max_element(p.begin(), p.end());
  for (double& value : p) sum += value = std::exp(value - max);
  p = Times(p, 1 / sum);
  std::vector<int> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
  order.resize(plan_.moe->top_k);
  const Vec& scale = Layer("router.per_expert_scale");
  double chosen = 0;
  for (const int expert : order) {
    chosen += p[expert] * (Is(Mistake::kMoeScaleBeforeRenormalisation) ? scale[expert] : 1.0);
  }
  Vec out(plan_.hidden_size, 0.0);
  const int64_t width = plan_.moe->expert_width;
  for (const int expert : order) {
    double weight = p[expert];
    if (!Is(Mistake::kMoeNoRenormalisation)) weight /= chosen;
    if (!Is(Mistake::kMoeNoPerExpertScale)) weight *= scale[expert];
    const Vec both = MatVec(Slice(Layer("experts.gate_up_proj"), expert, 2 * width * x.size()), x);
    const bool is_swapped = Is(Mistake::kMoeGateUpSwapped);
    const Vec active = GeluMul(Slice(both, is_swapped, width), Slice(both, !is_swapped, width));
    const Vec down = Slice(Layer("experts.down_proj"), expert, width * x.size());
    out = Plus(out, Times(MatVec(down, active), weight));
  }
  return out;
}

void NaiveDecoder::PerLayerGate(const std::vector<Vec>& inputs, int layer_idx, Vec& h) const {
  const bool is_previous = Is(Mistake::kPleOfPreviousLayer) && layer_idx > 0;
  const Vec& input = inputs[is_previous ? layer_idx - 1 : layer_idx];
  const Vec x = Stored(Is(Mistake::kPleReadsNormed) ? Norm(h, nullptr) : h);
  const Vec active = GeluMul(MatVec(Layer("per_layer_input_gate.weight"), x), input);
  h = Plus(h, Norm(Stored(MatVec(Layer("per_layer_projection.weight"), active)),
                   Is(Mistake::kNoPlePostNormWeight) ? nullptr
                                                     : &Layer("post_per_layer_input_norm.weight")));
}

}  // namespace lapidary
