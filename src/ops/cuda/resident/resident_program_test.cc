// What the host decides about a resident step, without a GPU.
#include <gtest/gtest.h>

#include "device/test_devices.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/resident/resident_limits.h"

namespace lapidary::cuda {
namespace {

constexpr int kHidden = 1536;
constexpr int kMlpWidth = 6144;
constexpr int kPleWidth = 256;
constexpr int kHeads = 8;

struct Layer {
  int group = 0;
  int head_dim = 0;
  int num_kv_heads = 0;
  int window = 0;
};
constexpr Layer kSliding = {0, 256, 1, 512};
constexpr Layer kFull = {1, 512, 1, 0};

// Of E2B's dimensions.
DecoderProgram MakeProgram(const std::vector<Layer>& layers, int hidden = kHidden) {
  DecoderProgram program;
  const auto product = [&](DecoderBlock block, ProductInput input, int rows, int cols) {
    ProductPhase phase;
    phase.block = block;
    phase.input = input;
    phase.weight = Bf16Matrix(nullptr, rows, cols);
    return phase;
  };
  int index = 0;
  for (const Layer& layer : layers) {
    LayerAttention attention;
    attention.layer = attention.kv_layer = index++;
    attention.num_heads = kHeads;
    attention.num_kv_heads = layer.num_kv_heads;
    attention.head_dim = layer.head_dim;
    attention.window = layer.window;
    attention.group = layer.group;
    attention.entry = {.value_len = layer.head_dim,
                       .key_offset = layer.head_dim,
                       .key_len = layer.head_dim,
                       .entry_len = 2 * layer.head_dim};
    program.push_back(product(DecoderBlock::kAttention, ProductInput::kResidual,
                              (kHeads + 2 * layer.num_kv_heads) * layer.head_dim, hidden));
    ProductPhase output = product(DecoderBlock::kAttention, ProductInput::kAttention, hidden,
                                  kHeads * layer.head_dim);
    output.attention = attention;
    program.push_back(output);
    program.push_back(product(DecoderBlock::kMlp, ProductInput::kResidual, 2 * kMlpWidth, hidden));
    program.push_back(product(DecoderBlock::kMlp, ProductInput::kLastProduct, hidden, kMlpWidth));
    program.push_back(product(DecoderBlock::kPerLayer, ProductInput::kResidual, kPleWidth, hidden));
    program.push_back(
        product(DecoderBlock::kPerLayer, ProductInput::kLastProduct, hidden, kPleWidth));
  }
  program.push_back(product(DecoderBlock::kHead, ProductInput::kResidual, 262144, hidden));
  return program;
}

TEST(ResidentProgramTest, GroupsMayDifferButNotTheLayersOfOne) {
  EXPECT_TRUE(GroupsAreUniform(MakeProgram({kSliding, kSliding, kFull, kSliding})));
  Layer other = kSliding;
  other.num_kv_heads = 4;
  EXPECT_FALSE(GroupsAreUniform(MakeProgram({kSliding, kSliding, kFull, other})));
  other = kSliding;
  other.window = 256;
  EXPECT_FALSE(GroupsAreUniform(MakeProgram({kSliding, other, kFull, kSliding})));
  other = kFull;  // whose entries come in runs
  other.window = 256;
  EXPECT_FALSE(GroupsAreUniform(MakeProgram({kSliding, other})));
}

TEST(ResidentProgramTest, EveryWeightMustBeOfAFormatWithKernels) {
  const DecoderProgram program = MakeProgram({kSliding, kFull});
  EXPECT_TRUE(WeightsAreResident(program));
  for (size_t idx = 0; idx < program.size(); ++idx) {
    for (const WeightFormat& format :
         {FormatOf(DType::kQ4_0),
          RowMajorFormat(CodeType::kE4M3, {1, 0}, ScaleType::kF32, OffsetType::kNone)}) {
      DecoderProgram other = program;
      std::get<ProductPhase>(other[idx]).weight.format = format;
      EXPECT_FALSE(WeightsAreResident(other));
    }
  }
}

TEST(ResidentProgramTest, SpansAreNotForIt) {
  DecoderProgram program = MakeProgram({kSliding, kFull});
  program.push_back(KeepOutputRowsPhase{});
  program.push_back(StoreEntriesPhase{});
  EXPECT_TRUE(ResidentStepSupports(TestH200(), program));
  program.push_back(PerLayerBlockPhase{});
  EXPECT_FALSE(ResidentStepSupports(TestH200(), program));
}

struct ExpertShape {
  int num_experts = 128;
  int top_k = 8;
  int width = 704;
};

// Of 26B-A4B's dimensions.
DecoderProgram MakeExpertProgram(const ExpertShape& shape, int hidden = 2816) {
  DecoderProgram dense = MakeProgram({kSliding, kFull}, hidden);
  DecoderProgram program;
  for (DecoderPhase& phase : dense) {
    const auto& product = std::get<ProductPhase>(phase);
    if (product.block == DecoderBlock::kPerLayer) continue;
    program.push_back(product);
    if (product.block == DecoderBlock::kMlp && product.adds_to_stream()) {
      program.push_back(
          ExpertsPhase{.top_k = shape.top_k,
                       .router = Bf16Matrix(nullptr, shape.num_experts, hidden),
                       .gate_up = Bf16Matrix(nullptr, shape.num_experts * 2 * shape.width, hidden),
                       .down = Bf16Matrix(nullptr, shape.num_experts * hidden, shape.width)});
    }
  }
  return program;
}

TEST(ResidentProgramTest, ExpertsFitIfBlocksAndSlotsDo) {
  EXPECT_TRUE(ResidentStepSupports(TestH200(), MakeExpertProgram({})));
  DeviceInfo fewer = TestH200();
  fewer.num_sms = 114;
  EXPECT_FALSE(ResidentStepSupports(fewer, MakeExpertProgram({})))
      << "each expert's logit needs a block";
  EXPECT_TRUE(ResidentStepSupports(fewer, MakeExpertProgram({.num_experts = 64})));
  EXPECT_FALSE(ResidentStepSupports(TestH200(), MakeExpertProgram({.num_experts = 129})));
  EXPECT_FALSE(ResidentStepSupports(TestH200(), MakeExpertProgram({.top_k = 9})));
  EXPECT_FALSE(ResidentStepSupports(TestH200(), MakeExpertProgram({.width = 720})));
  EXPECT_FALSE(ResidentStepSupports(TestH200(), MakeExpertProgram({}, 3840)));
}

TEST(ResidentProgramTest, ExpertsAreTheSameInAllLayersAndBf16) {
  const DecoderProgram program = MakeExpertProgram({});
  EXPECT_TRUE(ExpertsAreUniform(program) && WeightsAreResident(program));
  for (size_t idx = 0; idx < program.size(); ++idx) {
    if (!std::holds_alternative<ExpertsPhase>(program[idx])) continue;
    DecoderProgram other = program;
    auto& experts = std::get<ExpertsPhase>(other[idx]);
    experts.top_k = 4;
    EXPECT_FALSE(ExpertsAreUniform(other));
    experts.top_k = 8;
    experts.down.format = FormatOf(DType::kQ4_0);
    EXPECT_FALSE(WeightsAreResident(other));
  }
}

TEST(ResidentProgramTest, ExpertsAreTwoMorePhasesOfALayer) {
  const ResidentExchanges exchanges = ExchangesOf(MakeExpertProgram({}));
  EXPECT_EQ(exchanges.num_phases, 2 * 6 + 1);
  EXPECT_EQ(exchanges.num_experts, 128);
  EXPECT_EQ(exchanges.expert_values, 8 * 704);
  EXPECT_EQ(ResidentWidths(MakeExpertProgram({})).widest_input, kMlpWidth);
  EXPECT_EQ(ResidentWidths(MakeExpertProgram({.width = 1024})).widest_input, 8 * 1024);
}

TEST(ResidentProgramTest, WidthsAreThoseOfTheWidestLayer) {
  const ResidentWidths widths(MakeProgram({kSliding, kFull}));
  EXPECT_EQ(widths.hidden, kHidden);
  EXPECT_EQ(widths.vocab_size, 262144);
  EXPECT_EQ(widths.ple_width, kPleWidth);
  EXPECT_EQ(widths.max_qkv_rows, 10 * 512);
  EXPECT_EQ(widths.max_attended, 8 * 512);
  EXPECT_EQ(widths.min_mlp_width, kMlpWidth);
  EXPECT_EQ(widths.widest_input, kMlpWidth);
}

TEST(ResidentProgramTest, EverySmOfACardHasABlockUnlessTheModelIsNarrower) {
  const DecoderProgram program = MakeProgram({kSliding, kFull});
  EXPECT_EQ(ResidentBlocks(TestH200(), ResidentWidths(program)), 132);
  EXPECT_EQ(ResidentBlocks(TestSmallerCard(), ResidentWidths(program)), 108);
  EXPECT_GT(ResidentScratchBytes(TestH200(), program),
            ResidentScratchBytes(TestSmallerCard(), program))
      << "splits of attention have a place for each block";
  EXPECT_EQ(ResidentBlocks(TestH200(), ResidentWidths(MakeProgram({kSliding}, 128))), 64);
}

TEST(ResidentProgramTest, ACardNeedsSharedMemoryForTheRing) {
  const DecoderProgram program = MakeProgram({kSliding, kFull});
  EXPECT_TRUE(ResidentStepSupports(TestH200(), program));
  EXPECT_TRUE(ResidentStepSupports(TestSmallerCard(), program));
  DeviceInfo tight = TestSmallerCard();
  tight.shared_bytes_per_block = 64 * 1024;
  EXPECT_FALSE(ResidentStepSupports(tight, program));
}

}  // namespace
}  // namespace lapidary::cuda
