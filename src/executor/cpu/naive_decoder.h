// The specification written down once more for tests: plain loops, doubles, explicit K and V. Every
// slip that an implementation could make can be made here on purpose.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "model/plan.h"
#include "model/weights.h"

namespace lapidary {

// Ways to get the model wrong, each a plausible slip.
enum class Mistake {
  kNone,
  kOnePlusNormWeight,
  kScaledAttention,
  kNoValueNorm,
  kNoQueryNormWeight,
  kNormAfterRope,
  kKeyNormOfAnotherLayer,
  kWindowTooLong,
  kWindowTooShort,
  kFirstKeyLost,
  kPreviousKeyLost,
  kOwnKeyLost,
  kWrongKvHead,
  kRopeDenominatorIsRotaryDims,
  kRopePairsNeighbours,
  kQueryRopeOneAhead,
  kNoPostAttentionNormWeight,
  kNoPostMlpNormWeight,
  kPostNormsSwapped,
  kMlpGateUpSwapped,
  kGeluByErf,
  kNoLayerScalar,
  kNoSoftcap,
  kNearestDonor,
  kPleNoSumScale,
  kPleNoProjectionScale,
  kPleNoTokenScale,
  kPleRawEmbedding,
  kPleNormOverWholeRow,
  kPleOfPreviousLayer,
  kPleReadsNormed,
  kNoPlePostNormWeight,
  kNoPle,
  kLayerScalarBeforePle,
  kMoeNoRenormalisation,
  kMoeScaleBeforeRenormalisation,
  kMoeNoPerExpertScale,
  kMoeNoRouterRootScale,
  kMoeRouterReadsNormed,
  kMoeGateUpSwapped,
  kMoeDenseAndExpertNormsSwapped,
};

// That any model of the plan's kind can make and that more than rounding tells apart, but for those
// of experts.
std::vector<Mistake> CommonMistakes(const ModelPlan& plan);

// By name, to be shared between decoders.
using NaiveTensors = std::map<std::string, std::shared_ptr<const std::vector<double>>>;
NaiveTensors LoadNaiveTensors(const std::vector<TensorSpec>& specs, const TensorSource& source);

class NaiveDecoder {
 public:
  using Vec = std::vector<double>;

  // Where values are rounded: nowhere, or to bf16 where the GPU stores activations as such. The
  // residual stream and all sums stay as they are.
  enum class Rounding { kNone, kBf16 };

  NaiveDecoder(const ModelPlan& plan, NaiveTensors tensors, Mistake mistake = Mistake::kNone,
               Rounding rounding = Rounding::kNone);

  // The logits of every position.
  std::vector<Vec> Run(const std::vector<int32_t>& tokens);

  // Of the last run: what the head read, by position, and what a layer that owns KV cached.
  const std::vector<Vec>& head_inputs() const { return head_inputs_; }
  const Vec& Key(int layer, size_t position, int64_t kv_head) const {
    return keys_.at({layer, position, kv_head});
  }
  const Vec& Value(int layer, size_t position, int64_t kv_head) const {
    return values_.at({layer, position, kv_head});
  }

 private:
  bool Is(Mistake mistake) const { return mistake_ == mistake; }
  const Vec& Tensor(const std::string& name) const { return *tensors_.at(name); }
  const Vec& Layer(const std::string& name) const { return Tensor(prefix_ + name); }
  Vec Row(const std::string& name, int64_t row, int64_t columns) const;
  Vec Stored(Vec x) const;  // rounded
  double Gelu(double x) const;
  Vec GeluMul(const Vec& gate, const Vec& up) const;
  Vec Norm(Vec x, const Vec* weight) const;
  Vec Rope(const LayerPlan& layer, Vec x, size_t position) const;
  Vec NormRope(const LayerPlan& layer, const Vec& raw, const Vec* norm, size_t position) const;

  std::vector<Vec> PerLayerInputs(int32_t token, const Vec& embedded) const;
  void Attention(const LayerPlan& layer, std::vector<Vec>& h);
  void MakeKeysAndValues(const LayerPlan& layer, const std::vector<Vec>& u);
  bool IsVisible(const LayerPlan& layer, size_t key, size_t pos) const;
  Vec AttendHead(const LayerPlan& layer, int source, const Vec& q, size_t pos,
                 int64_t kv_head) const;
  void FeedForward(const LayerPlan& layer, Vec& h) const;
  Vec Experts(const Vec& h) const;
  void PerLayerGate(const std::vector<Vec>& inputs, int layer_idx, Vec& h) const;
  // Another owner of KV of the layer's kind, where there is one.
  int AnotherOwner(const LayerPlan& layer) const;

  const ModelPlan& plan_;
  const Mistake mistake_;
  const Rounding rounding_;
  const NaiveTensors tensors_;
  std::string prefix_;  // of the layer's tensors
  std::vector<Vec> head_inputs_;
  std::map<std::tuple<int, size_t, int64_t>, Vec> keys_, values_;  // layer, position, KV head
};

}  // namespace lapidary
