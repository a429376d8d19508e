// Programs of steps, without a GPU: followed on paper, all of them do the same to the stream.
#include "executor/cuda/decoder_program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "executor/cuda/memory_needs.h"
#include "executor/cuda/test_device_weights.h"
#include "model/presets.h"
#include "ops/cuda/resident/resident_limits.h"

namespace lapidary::cuda {
namespace {

ModelPlan PlanOf(const std::string& preset) {
  return MakeModelPlan(ParseModelConfig(PresetConfig(preset).value(), preset).value()).value();
}

// One reading of the stream: by which matrix, normed by what, and what had been added until then.
struct Reading {
  const void* matrix = nullptr;
  const float* norm = nullptr;
  std::vector<std::string> added;
  bool operator==(const Reading&) const = default;
};

// Follows a program. Its two copies of the stream are lists of what was added to them.
class Follower {
 public:
  std::vector<Reading> Follow(const DecoderProgram& program) {
    for (const DecoderPhase& phase : program) {
      std::visit([&](const auto& known) { Run(known); }, phase);
    }
    return readings_;
  }

 private:
  void Update(const ResidualRead& read) {
    copies_[read.to] = copies_[read.from];
    if (read.post_norm == nullptr) return;
    EXPECT_NE(block_out_, nullptr) << "something is added twice, or before it is made";
    copies_[read.to].push_back(fmt::format("({} normed by {}) times {}", block_out_,
                                           static_cast<const void*>(read.post_norm), read.scale));
    block_out_ = nullptr;
    normed_ = nullptr;
  }
  void Run(const ProductPhase& phase) {
    if (phase.adds_to_stream()) {
      EXPECT_EQ(block_out_, nullptr) << "something is never added";
      block_out_ = phase.weight.data;
      return;
    }
    if (phase.input == ProductInput::kResidual) {
      EXPECT_NE(phase.residual.from, phase.residual.to);
      Update(phase.residual);
      current_ = phase.residual.to;
    } else {
      EXPECT_EQ(normed_, phase.residual.pre_norm) << "another norm has been taken";
    }
    readings_.push_back({phase.weight.data, phase.residual.pre_norm, copies_[current_]});
  }
  void Run(const ExpertsPhase& phase) {
    EXPECT_EQ(phase.stream, current_);
    readings_.push_back({phase.router.data, nullptr, copies_[phase.stream]});
  }
  void Run(const PerLayerBlockPhase& phase) {
    Run(phase.gate);
    block_out_ = phase.projection.data;
    EXPECT_EQ(phase.next.from, current_);
    EXPECT_EQ(phase.next.to, current_);
    Update(phase.next);
    normed_ = phase.next.pre_norm;
  }
  void Run(const KeepOutputRowsPhase& phase) {
    EXPECT_EQ(phase.from, current_);
    copies_[phase.to] = copies_[phase.from];
    if (phase.from != phase.to) copies_[phase.from].clear();
    current_ = phase.to;
    EXPECT_TRUE(phase.is_pending || block_out_ == nullptr) << "what is pending loses its rows";
  }
  void Run(const StoreEntriesPhase&) {}

  std::array<std::vector<std::string>, 2> copies_;
  int current_ = 0;
  const void* block_out_ = nullptr;
  const float* normed_ = nullptr;
  std::vector<Reading> readings_;
};

class DecoderProgramTest : public testing::TestWithParam<std::string> {
 protected:
  DecoderProgram Make(const DecoderProgramOptions& options) const {
    DecoderInputs inputs;
    inputs.layers = InputsFromOwnKv(plan_, weights_, MakeKvLayout(plan_, KvFormat::kBF16));
    return MakeDecoderProgram(plan_, weights_, inputs, options);
  }

  const ModelPlan plan_ = PlanOf(GetParam());
  const DeviceWeights weights_ = MakeAddressesOfWeights(plan_);
};

TEST_P(DecoderProgramTest, EveryReaderFindsAllThatTheBlocksBeforeHaveMade) {
  const std::vector<Reading> readings = Follower().Follow(Make({}));
  size_t at = 0;
  size_t num_added = 0;
  for (const LayerPlan& layer : plan_.layers) {
    const auto& own = weights_.layers[layer.index];
    const auto expect = [&](const MatrixRef& matrix, const float* norm) {
      ASSERT_LT(at, readings.size());
      EXPECT_EQ(readings[at].matrix, matrix.data);
      EXPECT_EQ(readings[at].norm, norm);
      EXPECT_EQ(readings[at].added.size(), num_added);
      ++at;
    };
    const auto expect_added = [&](const MatrixRef& matrix, const float* norm, float scale) {
      ASSERT_LT(at, readings.size());
      ASSERT_EQ(readings[at].added.size(), ++num_added);
      EXPECT_EQ(readings[at].added.back(), fmt::format("({} normed by {}) times {}", matrix.data,
                                                       static_cast<const void*>(norm), scale));
    };
    expect(own.attention.qkv_proj, own.input_norm);
    expect_added(own.attention.o_proj, own.post_attention_norm, 1.0f);
    expect(own.mlp.gate_up_proj, own.pre_mlp_norm);
    if (layer.has_moe) expect(own.moe.router_proj, nullptr);
    expect_added(own.mlp.down_proj, own.post_mlp_norm, plan_.ple ? 1.0f : own.layer_scalar);
    if (!plan_.ple) continue;
    expect(own.ple.gate, nullptr);
    expect_added(own.ple.projection, own.ple.post_norm, own.layer_scalar);
  }
  ASSERT_EQ(at + 1, readings.size());
  EXPECT_EQ(readings.back().matrix, weights_.embedding.data);
  EXPECT_EQ(readings.back().norm, weights_.final_norm);
}

TEST_P(DecoderProgramTest, SpansAndDroppedRowsChangeNothingForAReader) {
  for (const bool skip : {false, true}) {
    const std::vector<Reading> plain = Follower().Follow(Make({.skip_unneeded_rows = skip}));
    for (const bool drops : {false, true}) {
      for (const bool fuses : {false, true}) {
        for (const bool fuses_outputs : {false, true}) {
          const DecoderProgram program = Make({.skip_unneeded_rows = skip,
                                               .drops_rows = drops,
                                               .fuses_per_layer = fuses,
                                               .fuses_per_layer_of_outputs = fuses_outputs});
          EXPECT_TRUE(Follower().Follow(program) == plain)
              << skip << drops << fuses << fuses_outputs;
        }
      }
    }
  }
}

// Nothing but experts comes between the products that may run beside them and their end.
TEST_P(DecoderProgramTest, BesideExpertsAreTheTwoProductsOfTheirDenseBranch) {
  std::vector<const void*> beside;
  const DecoderProgram program = Make({});
  for (size_t at = 0; at < program.size(); ++at) {
    const auto* product = std::get_if<ProductPhase>(&program[at]);
    if (product == nullptr || !product->is_beside_experts) continue;
    beside.push_back(product->weight.data);
    const size_t experts = at + (product->reads_stream() ? 2 : 1);
    ASSERT_LT(experts, program.size());
    EXPECT_TRUE(std::holds_alternative<ExpertsPhase>(program[experts]));
  }
  std::vector<const void*> expected;
  for (const LayerPlan& layer : plan_.layers) {
    const auto& mlp = weights_.layers[layer.index].mlp;
    if (layer.has_moe) expected.insert(expected.end(), {mlp.gate_up_proj.data, mlp.down_proj.data});
  }
  EXPECT_EQ(beside, expected);
}

TEST_P(DecoderProgramTest, EveryOwnerOfKvIsStoredOnce) {
  std::vector<int> stored;
  int num_last = 0;
  for (const DecoderPhase& phase : Make({})) {
    if (const auto* store = std::get_if<StoreEntriesPhase>(&phase)) {
      stored.push_back(store->layer);
      num_last += store->is_last;
    }
  }
  std::vector<int> owners;
  for (const LayerPlan& layer : plan_.layers) {
    if (layer.owns_kv()) owners.push_back(layer.index);
  }
  std::sort(stored.begin(), stored.end());
  EXPECT_EQ(stored, owners);
  EXPECT_EQ(num_last, 1);
}

INSTANTIATE_TEST_SUITE_P(Presets, DecoderProgramTest,
                         testing::Values("tiny-e", "tiny-dense", "tiny-moe"),
                         [](const auto& test) { return test.param.substr(5); });

int NumSpans(const DecoderProgram& program) {
  return static_cast<int>(std::count_if(
      program.begin(), program.end(),
      [](const DecoderPhase& phase) { return std::holds_alternative<PerLayerBlockPhase>(phase); }));
}

// What `lapidary plan` says of one-token steps is what their program comes to.
TEST(ResidentExchangesTest, ArePlannedAsTheProgramHasThem) {
  for (const char* preset :
       {"e2b", "e4b", "12b", "26b-a4b", "31b", "tiny-e", "tiny-dense", "tiny-moe"}) {
    const ModelPlan plan = PlanOf(preset);
    const DeviceWeights weights = MakeAddressesOfWeights(plan);
    DecoderInputs inputs;
    inputs.layers = InputsFromOwnKv(plan, weights, MakeKvLayout(plan, KvFormat::kBF16));
    const DecoderProgram program = MakeDecoderProgram(plan, weights, inputs, {});
    EXPECT_EQ(PlanExchanges(plan), ExchangesOf(program)) << preset;
  }
}

TEST(DecoderProgramSpanTest, NoSpanReachesAcrossTheChangeOfRows) {
  const ModelPlan plan = PlanOf("tiny-e");
  ASSERT_TRUE(plan.ple && plan.has_kv_sharing());
  const DeviceWeights weights = MakeAddressesOfWeights(plan);
  DecoderInputs inputs;
  inputs.layers = InputsFromOwnKv(plan, weights, MakeKvLayout(plan, KvFormat::kBF16));
  const auto make = [&](DecoderProgramOptions options) {
    return MakeDecoderProgram(plan, weights, inputs, options);
  };
  EXPECT_EQ(NumSpans(make({.fuses_per_layer = true})), plan.num_layers);
  EXPECT_EQ(NumSpans(make({.drops_rows = true, .fuses_per_layer = true})),
            plan.first_kv_shared_layer - 1);
  EXPECT_EQ(NumSpans(make({.drops_rows = true, .fuses_per_layer_of_outputs = true})),
            plan.num_layers - plan.first_kv_shared_layer);
}

}  // namespace
}  // namespace lapidary::cuda
