// The CPU executor against the specification written down once more in plain loops and doubles,
// with explicit K and V, on small models of every kind.
//
// The norms' eps is as large as what it is added to. With the published 1e-6 the next norm cancels
// several factors (of the per-layer inputs, of the routing weights) and no logit would show that
// one is missing; here each does, and the last test proves it by making each mistake on purpose.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "executor/cpu/cpu_executor.h"
#include "model/presets.h"
#include "model/tensor_sources.h"

namespace lapidary::cpu {
namespace {

using Vec = std::vector<double>;

// Ways to get the model wrong, each a plausible slip.
enum class Mistake {
  kNone,
  kOnePlusNormWeight,
  kScaledAttention,
  kNoValueNorm,
  kNormAfterRope,
  kWindowTooLong,
  kWindowTooShort,
  kRopeDenominatorIsRotaryDims,
  kRopePairsNeighbours,
  kNoLayerScalar,
  kNoSoftcap,
  kNearestDonor,
  kPleNoSumScale,
  kPleNoProjectionScale,
  kPleNoTokenScale,
  kPleRawEmbedding,
  kPleNormOverWholeRow,
  kLayerScalarBeforePle,
  kMoeNoRenormalisation,
  kMoeScaleBeforeRenormalisation,
  kMoeNoPerExpertScale,
  kMoeNoRouterRootScale,
  kMoeRouterReadsNormed,
  kMoeGateUpSwapped,
  kMoeDenseAndExpertNormsSwapped,
};

class NaiveDecoder {
 public:
  NaiveDecoder(const ModelPlan& plan, const TensorSource& source, Mistake mistake)
      : plan_(plan), mistake_(mistake) {
    for (const TensorSpec& spec : RequiredTensors(plan)) {
      const std::vector<float> values = ToFloats(source.Get(spec).value());
      tensors_[spec.name] = Vec(values.begin(), values.end());
    }
  }

  // The logits of every position.
  std::vector<Vec> Run(const std::vector<int32_t>& tokens) {
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
        if (plan_.ple) PerLayerGate(ple[pos][layer.index], h[pos]);
        if (!Is(Mistake::kLayerScalarBeforePle)) h[pos] = Times(h[pos], scalar);
      }
    }
    std::vector<Vec> logits;
    for (const Vec& row : h) {
      logits.push_back(
          MatVec(tensors_.at("embed_tokens.weight"), Norm(row, &tensors_.at("norm.weight"))));
      for (double& z : logits.back()) {
        if (!Is(Mistake::kNoSoftcap)) z = plan_.logit_softcap * std::tanh(z / plan_.logit_softcap);
      }
    }
    return logits;
  }

 private:
  bool Is(Mistake mistake) const { return mistake_ == mistake; }
  const Vec& Layer(const std::string& name) const { return tensors_.at(prefix_ + name); }
  Vec Row(const std::string& name, int64_t row, int64_t columns) const {
    const Vec& table = tensors_.at(name);
    return Vec(table.begin() + row * columns, table.begin() + (row + 1) * columns);
  }

  static Vec Times(Vec x, double a) {
    for (double& value : x) value *= a;
    return x;
  }
  static Vec Plus(Vec x, const Vec& y) {
    for (size_t idx = 0; idx < x.size(); ++idx) x[idx] += y[idx];
    return x;
  }
  static Vec MatVec(const Vec& w, const Vec& x) {
    Vec y(w.size() / x.size());
    for (size_t row = 0; row < y.size(); ++row) {
      y[row] = std::inner_product(x.begin(), x.end(), w.begin() + row * x.size(), 0.0);
    }
    return y;
  }
  static double Gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  static Vec GeluMul(const Vec& gate, const Vec& up) {
    Vec y(gate.size());
    for (size_t idx = 0; idx < y.size(); ++idx) y[idx] = Gelu(gate[idx]) * up[idx];
    return y;
  }
  Vec Norm(Vec x, const Vec* weight) const {
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    const double inverse =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + double{plan_.rms_norm_eps});
    for (size_t idx = 0; idx < x.size(); ++idx) {
      x[idx] *= inverse;
      if (weight != nullptr) x[idx] *= (*weight)[idx] + (Is(Mistake::kOnePlusNormWeight) ? 1 : 0);
    }
    return x;
  }
  static Vec Slice(const Vec& x, int64_t idx, int64_t size) {
    return Vec(x.begin() + idx * size, x.begin() + (idx + 1) * size);
  }

  Vec Rope(const LayerPlan& layer, Vec x, size_t position) const {
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
  Vec NormRope(const LayerPlan& layer, const Vec& raw, const Vec& norm, size_t position) const {
    if (Is(Mistake::kNormAfterRope)) return Norm(Rope(layer, raw, position), &norm);
    return Rope(layer, Norm(raw, &norm), position);
  }

  std::vector<Vec> PerLayerInputs(int32_t token, const Vec& embedded) const {
    const int64_t width = plan_.ple->width;
    const int64_t columns = width * plan_.num_layers;
    const Vec table = Times(Row("embed_tokens_per_layer.weight", token, columns),
                            Is(Mistake::kPleNoTokenScale) ? 1.0 : std::sqrt(width));
    Vec projected = MatVec(tensors_.at("per_layer_model_projection.weight"), embedded);
    if (!Is(Mistake::kPleNoProjectionScale)) {
      projected = Times(projected, 1 / std::sqrt(plan_.hidden_size));
    }
    const Vec& norm = tensors_.at("per_layer_projection_norm.weight");
    if (Is(Mistake::kPleNormOverWholeRow)) projected = Norm(projected, nullptr);
    std::vector<Vec> inputs;
    for (int64_t layer = 0; layer < plan_.num_layers; ++layer) {
      const Vec slice = Slice(projected, layer, width);
      Vec normed = Norm(slice, &norm);
      if (Is(Mistake::kPleNormOverWholeRow)) {
        for (int64_t idx = 0; idx < width; ++idx) normed[idx] = slice[idx] * norm[idx];
      }
      inputs.push_back(Times(Plus(normed, Slice(table, layer, width)),
                             Is(Mistake::kPleNoSumScale) ? 1.0 : 1 / std::sqrt(2.0)));
    }
    return inputs;
  }

  void Attention(const LayerPlan& layer, std::vector<Vec>& h) {
    const int64_t dim = layer.head_dim;
    std::vector<Vec> u;
    for (const Vec& row : h) u.push_back(Norm(row, &Layer("input_layernorm.weight")));
    if (layer.owns_kv()) {
      for (size_t pos = 0; pos < h.size(); ++pos) {
        const Vec k_raw = MatVec(Layer("self_attn.k_proj.weight"), u[pos]);
        const Vec v_raw = layer.k_is_v ? k_raw : MatVec(Layer("self_attn.v_proj.weight"), u[pos]);
        for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
          const Vec v = Slice(v_raw, head, dim);
          keys_[{layer.index, pos, head}] =
              NormRope(layer, Slice(k_raw, head, dim), Layer("self_attn.k_norm.weight"), pos);
          values_[{layer.index, pos, head}] = Is(Mistake::kNoValueNorm) ? v : Norm(v, nullptr);
        }
      }
    }
    int source = layer.kv_layer;
    if (Is(Mistake::kNearestDonor) && !layer.owns_kv()) source = FirstOfKind(layer.kind);
    for (size_t pos = 0; pos < h.size(); ++pos) {
      const Vec q_raw = MatVec(Layer("self_attn.q_proj.weight"), u[pos]);
      Vec joined;
      for (int64_t head = 0; head < layer.num_heads; ++head) {
        const Vec q =
            NormRope(layer, Slice(q_raw, head, dim), Layer("self_attn.q_norm.weight"), pos);
        const Vec out =
            AttendHead(layer, source, q, pos, head * layer.num_kv_heads / layer.num_heads);
        joined.insert(joined.end(), out.begin(), out.end());
      }
      h[pos] = Plus(h[pos], Norm(MatVec(Layer("self_attn.o_proj.weight"), joined),
                                 &Layer("post_attention_layernorm.weight")));
    }
  }

  // A wrong donor of the right kind: the first one instead of the last.
  int FirstOfKind(AttentionKind kind) const {
    return plan_.kv_groups[KvGroupOf(kind)].layers.front();
  }

  Vec AttendHead(const LayerPlan& layer, int source, const Vec& q, size_t pos,
                 int64_t kv_head) const {
    int window = layer.window;
    if (window > 0 && Is(Mistake::kWindowTooLong)) ++window;
    if (window > 0 && Is(Mistake::kWindowTooShort)) --window;
    std::vector<double> weights;
    std::vector<const Vec*> values;
    for (size_t key = 0; key <= pos; ++key) {
      if (window > 0 && pos - key >= static_cast<size_t>(window)) continue;
      const Vec& k = keys_.at({source, key, kv_head});
      double score = std::inner_product(q.begin(), q.end(), k.begin(), 0.0);
      if (Is(Mistake::kScaledAttention)) score /= std::sqrt(layer.head_dim);
      weights.push_back(score);
      values.push_back(&values_.at({source, key, kv_head}));
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    Vec out(layer.head_dim, 0.0);
    for (size_t idx = 0; idx < weights.size(); ++idx) {
      out = Plus(out, Times(*values[idx], weights[idx] / sum));
    }
    return out;
  }

  void FeedForward(const LayerPlan& layer, Vec& h) const {
    const Vec n = Norm(h, &Layer("pre_feedforward_layernorm.weight"));
    Vec f = MatVec(Layer("mlp.down_proj.weight"), GeluMul(MatVec(Layer("mlp.gate_proj.weight"), n),
                                                          MatVec(Layer("mlp.up_proj.weight"), n)));
    if (layer.has_moe) {
      const bool is_swapped = Is(Mistake::kMoeDenseAndExpertNormsSwapped);
      const Vec& dense_norm = Layer(is_swapped ? "post_feedforward_layernorm_2.weight"
                                               : "post_feedforward_layernorm_1.weight");
      const Vec& expert_norm = Layer(is_swapped ? "post_feedforward_layernorm_1.weight"
                                                : "post_feedforward_layernorm_2.weight");
      f = Plus(Norm(f, &dense_norm), Norm(Experts(h), &expert_norm));
    }
    h = Plus(h, Norm(f, &Layer("post_feedforward_layernorm.weight")));
  }

  Vec Experts(const Vec& h) const {
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
      const Vec both =
          MatVec(Slice(Layer("experts.gate_up_proj"), expert, 2 * width * x.size()), x);
      const bool is_swapped = Is(Mistake::kMoeGateUpSwapped);
      const Vec active = GeluMul(Slice(both, is_swapped, width), Slice(both, !is_swapped, width));
      const Vec down = Slice(Layer("experts.down_proj"), expert, width * x.size());
      out = Plus(out, Times(MatVec(down, active), weight));
    }
    return out;
  }

  void PerLayerGate(const Vec& input, Vec& h) const {
    const Vec active = GeluMul(MatVec(Layer("per_layer_input_gate.weight"), h), input);
    h = Plus(h, Norm(MatVec(Layer("per_layer_projection.weight"), active),
                     &Layer("post_per_layer_input_norm.weight")));
  }

  const ModelPlan& plan_;
  const Mistake mistake_;
  std::map<std::string, Vec> tensors_;
  std::string prefix_;
  std::map<std::tuple<int, size_t, int64_t>, Vec> keys_, values_;  // layer, position, KV head
};

struct Model {
  ModelPlan plan;
  std::shared_ptr<const TensorSource> source;
};

Model MakeModel(const std::string& preset) {
  Json config = *PresetConfig(preset);
  config["head_dim"] = 16;
  config["global_head_dim"] = 32;
  config["sliding_window"] = 7;
  config["vocab_size"] = 64;
  config["vocab_size_per_layer_input"] = 64;
  config["rms_norm_eps"] = 0.3;
  Model model{MakeModelPlan(ParseModelConfig(config, preset).value()).value(), nullptr};
  ThreadPool threads(1);
  model.source = DummySource::Make(model.plan, 11, threads).value();
  return model;
}

std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens;
  for (int idx = 0; idx < 20; ++idx) tokens.push_back((idx * 37 + 5) % 64);
  return tokens;
}

// Logits of every position, from steps of `chunk` rows.
std::vector<float> RunExecutor(const Model& model, const std::vector<int32_t>& tokens,
                               int32_t chunk) {
  const KvLayout layout = MakeKvLayout(model.plan, 4, {4, 8});
  auto executor = CpuExecutor::Create(model.plan, model.source,
                                      {.num_threads = 2, .num_pages = 64, .kv_layout = layout})
                      .value();
  executor->kv_memory_for_test().Poison(layout, kScratchPage);
  PagePool pool(64);
  SequencePages pages(model.plan, layout, pool);
  std::vector<float> logits;
  while (pages.length() < static_cast<int32_t>(tokens.size())) {
    const int32_t rows = std::min<int32_t>(chunk, tokens.size() - pages.length());
    EXPECT_TRUE(pages.Reserve(rows));
    SequenceStep step;
    step.num_cached = pages.length();
    step.num_rows = rows;
    step.num_outputs = rows;
    StepBatch batch;
    pages.TakeTableChanges(step.slot, batch.table_entries);
    batch.token_ids.assign(tokens.begin() + pages.length(), tokens.begin() + pages.length() + rows);
    batch.sequences.push_back(step);
    batch.return_logits = true;
    const StepOutput output = executor->Run(std::move(batch));
    logits.insert(logits.end(), output.logits.begin(), output.logits.end());
    pages.Commit(rows);
  }
  return logits;
}

// Largest difference as a share of the largest logit.
double Distance(const std::vector<Vec>& expected, const std::vector<float>& logits) {
  double difference = 0, largest = 0;
  size_t at = 0;
  for (const Vec& row : expected) {
    for (const double value : row) {
      difference = std::max(difference, std::abs(value - double{logits[at++]}));
      largest = std::max(largest, std::abs(value));
    }
  }
  EXPECT_EQ(at, logits.size());
  return difference / largest;
}

// Every value is the end of some hundred f32 operations per layer, each good to 2^-24 = 6e-8, in at
// most nine layers.
constexpr double kAgreement = 9 * 100 * 0x1p-24;

constexpr const char* kModels[] = {"tiny-e", "tiny-moe", "tiny-dense"};

TEST(NaiveDecoder, AgreesWithTheExecutorForEveryKindOfModelAndChunk) {
  for (const char* preset : kModels) {
    const Model model = MakeModel(preset);
    const std::vector<Vec> expected =
        NaiveDecoder(model.plan, *model.source, Mistake::kNone).Run(Tokens());
    for (const int32_t chunk : {1, 3, 20}) {
      EXPECT_LT(Distance(expected, RunExecutor(model, Tokens(), chunk)), kAgreement)
          << preset << " in chunks of " << chunk;
    }
  }
}

TEST(NaiveDecoder, EveryMistakeShowsInTheLogits) {
  const std::map<std::string, std::vector<Mistake>> mistakes = {
      {"tiny-e",
       {Mistake::kOnePlusNormWeight, Mistake::kScaledAttention, Mistake::kNoValueNorm,
        Mistake::kNormAfterRope, Mistake::kWindowTooLong, Mistake::kWindowTooShort,
        Mistake::kRopeDenominatorIsRotaryDims, Mistake::kRopePairsNeighbours,
        Mistake::kNoLayerScalar, Mistake::kNoSoftcap, Mistake::kNearestDonor,
        Mistake::kPleNoSumScale, Mistake::kPleNoProjectionScale, Mistake::kPleNoTokenScale,
        Mistake::kPleRawEmbedding, Mistake::kPleNormOverWholeRow, Mistake::kLayerScalarBeforePle}},
      {"tiny-moe",
       {Mistake::kNoValueNorm, Mistake::kNormAfterRope, Mistake::kMoeNoRenormalisation,
        Mistake::kMoeScaleBeforeRenormalisation, Mistake::kMoeNoPerExpertScale,
        Mistake::kMoeNoRouterRootScale, Mistake::kMoeRouterReadsNormed, Mistake::kMoeGateUpSwapped,
        Mistake::kMoeDenseAndExpertNormsSwapped}},
      {"tiny-dense", {Mistake::kNoValueNorm, Mistake::kRopeDenominatorIsRotaryDims}}};
  for (const auto& [preset, wrongs] : mistakes) {
    const Model model = MakeModel(preset);
    const std::vector<float> logits = RunExecutor(model, Tokens(), 20);
    for (const Mistake mistake : wrongs) {
      const std::vector<Vec> wrong = NaiveDecoder(model.plan, *model.source, mistake).Run(Tokens());
      EXPECT_GT(Distance(wrong, logits), 10 * kAgreement)
          << preset << " with mistake " << static_cast<int>(mistake);
    }
  }
}

TEST(CpuExecutor, TakesEmptyBatchesAndSequencesWithoutOutput) {
  const Model model = MakeModel("tiny-e");
  const KvLayout layout = MakeKvLayout(model.plan, 4, {4, 8});
  auto executor = CpuExecutor::Create(model.plan, model.source,
                                      {.num_threads = 1, .num_pages = 64, .kv_layout = layout})
                      .value();
  EXPECT_TRUE(executor->Run({}).sequences.empty());
  PagePool pool(64);
  SequencePages pages(model.plan, layout, pool);
  ASSERT_TRUE(pages.Reserve(5));
  StepBatch batch;
  batch.return_logits = true;
  batch.sequences.resize(2);  // one without rows, one without output
  batch.token_ids = {1, 2, 3, 4, 5};
  batch.sequences[1].slot = 1;
  batch.sequences[1].num_rows = 5;
  pages.TakeTableChanges(/*slot=*/1, batch.table_entries);
  const StepOutput output = executor->Run(std::move(batch));
  EXPECT_EQ(output.sequences.size(), 2u);
  EXPECT_TRUE(output.logits.empty());
}

TEST(CpuExecutor, RefusesAPoolWithoutPages) {
  const Model model = MakeModel("tiny-dense");
  for (const int num_pages : {-1, 0, 1}) {
    CpuExecutorOptions options;
    options.num_pages = num_pages;
    const auto executor = CpuExecutor::Create(model.plan, model.source, options);
    ASSERT_FALSE(executor.ok());
    EXPECT_NE(executor.error().message.find("holds nothing"), std::string::npos);
  }
}

}  // namespace
}  // namespace lapidary::cpu
