#include "tests/resident_mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr int kWindow = 7;
constexpr int kNumTokens = 24;
constexpr int kNumWideTokens = 12;  // which have more values each
constexpr uint64_t kSeed = 11;

// What a block may lose: a slot of its ring of 20 KiB.
constexpr int64_t kLostRows = 16;
constexpr int64_t kLostColumns = 640;

std::vector<PossibleMistake> PossibleMistakes(const ModelPlan& plan) {
  std::vector<PossibleMistake> mistakes;
  for (const Mistake slip : CommonMistakes(plan)) mistakes.push_back({.slip = slip});
  mistakes.push_back({.lost = "embed_tokens.weight"});  // which is the head's too
  // A phase of each kind, of a sliding and of a full layer that own their KV.
  for (const KvGroupPlan& group : plan.kv_groups) {
    const LayerPlan& layer = plan.layers[group.layers.back()];
    std::vector<std::string> matrices = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj",
                                         "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    if (!layer.k_is_v) matrices.push_back("self_attn.v_proj");
    if (plan.moe) matrices.push_back("router.proj");
    if (plan.ple) {
      matrices.insert(matrices.end(), {"per_layer_input_gate", "per_layer_projection"});
    }
    for (const std::string& matrix : matrices) {
      mistakes.push_back({.lost = fmt::format("layers.{}.{}.weight", layer.index, matrix)});
    }
  }
  return mistakes;
}

// Zeros where a block would have left out a part of a matrix.
class SpoiltSource : public TensorSource {
 public:
  SpoiltSource(std::shared_ptr<const TensorSource> source, std::string lost)
      : source_(std::move(source)), lost_(std::move(lost)) {}

  Result<TensorView> Get(const TensorSpec& spec) const override {
    ASSIGN_OR_RETURN(TensorView tensor, source_->Get(spec));
    if (spec.name != lost_) return tensor;
    CHECK(tensor.dtype == DType::kBF16);
    spoilt_.assign(tensor.As<uint16_t>(), tensor.As<uint16_t>() + tensor.num_elements());
    const int64_t columns = spec.shape.back();
    const int64_t rows = static_cast<int64_t>(spoilt_.size()) / columns;
    for (int64_t row = 0; row < std::min(rows, kLostRows); ++row) {
      std::fill_n(spoilt_.begin() + row * columns, std::min(columns, kLostColumns), 0);
    }
    tensor.data = reinterpret_cast<const std::byte*>(spoilt_.data());
    return tensor;
  }

 private:
  const std::shared_ptr<const TensorSource> source_;
  const std::string lost_;
  mutable std::vector<uint16_t> spoilt_;
};

double Dot(const Logits& a, const Logits& b) {
  CHECK_EQ(a.size(), b.size());
  double sum = 0.0;
  for (size_t idx = 0; idx < a.size(); ++idx) sum += double{a[idx]} * b[idx];
  return sum;
}

Logits Minus(Logits a, const Logits& b) {
  CHECK_EQ(a.size(), b.size());
  for (size_t idx = 0; idx < a.size(); ++idx) a[idx] -= b[idx];
  return a;
}

}  // namespace

std::string MistakeModel::Name() const {
  std::string name = fmt::format("{}_{}", preset, hidden);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<MistakeModel> MistakeModels() {
  return {{"tiny-e"},       {"tiny-dense"},     {"tiny-moe"},         {"tiny-e", 1536},
          {"tiny-e", 2560}, {"tiny-moe", 2816}, {"tiny-dense", 3840}, {"tiny-dense", 5376}};
}

// Few layers, for errors grow from one to the next: two sliding ones and a full one, twice. With
// shared KV the last two own none.
ModelPlan MakeMistakePlan(const MistakeModel& model) {
  const std::vector<std::string> kinds = {"sliding_attention", "sliding_attention",
                                          "full_attention",    "sliding_attention",
                                          "sliding_attention", "full_attention"};
  Json changes = {{"num_hidden_layers", kinds.size()},
                  {"layer_types", kinds},
                  {"sliding_window", kWindow},
                  {"hidden_size", model.hidden},
                  // As large as what it is added to: no norm hides a factor before it.
                  {"rms_norm_eps", 0.3}};
  if (model.preset == "tiny-e") changes["num_kv_shared_layers"] = 2;
  if (model.preset == "tiny-moe") {
    changes["moe_intermediate_size"] = 64;
    // All but the weakest are chosen: rounding that chooses another one moves little.
    changes["num_experts"] = 8;
    changes["top_k_experts"] = 7;
  }
  if (model.is_wide()) changes["intermediate_size"] = 512;
  return TestPlan(model.preset, changes);
}

std::string PossibleMistake::Name() const {
  return lost.empty() ? fmt::format("slip {}", static_cast<int>(slip)) : "a part lost of " + lost;
}

MistakeFinder::MistakeFinder(const MistakeModel& model)
    : plan_(MakeMistakePlan(model)),
      tokens_(RandomTokens(plan_, 3, model.is_wide() ? kNumWideTokens : kNumTokens)),
      mistakes_(PossibleMistakes(plan_)) {
  ThreadPool threads(0);
  source_ = DummySource::Make(plan_, kSeed, threads).value();
  tensors_ = LoadNaiveTensors(RequiredTensors(plan_), *source_);
  exact_ = Run({}, NaiveDecoder::Rounding::kNone);
  ways_.resize(mistakes_.size());
  threads.ParallelFor(static_cast<int64_t>(ways_.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t idx = begin; idx < end; ++idx) {
      ways_[idx] = Minus(Run(mistakes_[idx], NaiveDecoder::Rounding::kNone), exact_);
    }
  });
}

Logits MistakeFinder::Run(const PossibleMistake& mistake, NaiveDecoder::Rounding rounding) const {
  NaiveTensors tensors = tensors_;
  for (const TensorSpec& spec : RequiredTensors(plan_)) {
    if (spec.name != mistake.lost) continue;
    tensors[spec.name] = LoadNaiveTensors({spec}, *SourceWithout(mistake.lost)).at(spec.name);
  }
  Logits logits;
  for (const auto& row :
       NaiveDecoder(plan_, std::move(tensors), mistake.slip, rounding).Run(tokens_)) {
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

std::shared_ptr<const TensorSource> MistakeFinder::SourceWithout(const std::string& lost) const {
  return std::make_shared<SpoiltSource>(source_, lost);
}

double MistakeFinder::Distance(const Logits& logits) const {
  const Logits error = Minus(logits, exact_);
  return std::sqrt(Dot(error, error) / Dot(exact_, exact_));
}

std::vector<double> MistakeFinder::Shares(const Logits& logits) const {
  const Logits error = Minus(logits, exact_);
  std::vector<double> shares;
  for (const Logits& way : ways_) shares.push_back(Dot(error, way) / Dot(way, way));
  return shares;
}

}  // namespace lapidary
