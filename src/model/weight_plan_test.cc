#include "model/weight_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config.h"
#include "model/presets.h"
#include "tensor/random_matrix.h"
#include "tensor/repack.h"
#include "tensor/weight_tiles.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

// One matrix that is stored in some way.
class OneMatrix : public TensorSource {
 public:
  explicit OneMatrix(std::vector<MatrixRef> parts) : parts_(std::move(parts)) {}
  Result<TensorView> Get(const TensorSpec&) const override { return MakeError("no values"); }
  Result<std::vector<MatrixRef>> GetStored(const TensorSpec&) const override { return parts_; }

 private:
  const std::vector<MatrixRef> parts_;
};

constexpr auto kMlp = TensorComponent::kMlp;
constexpr auto kMatrix = TensorRole::kMatrix;

TensorSpec Spec(std::vector<int64_t> shape, TensorComponent component = kMlp,
                TensorRole role = kMatrix) {
  return {"name", std::move(shape), component, role, /*layer=*/0};
}

WeightFormat Loaded(const MatrixRef& stored, const WeightRequest& request) {
  const TensorSpec spec = Spec({stored.rows, stored.cols});
  const OneMatrix source({stored});
  return WeightPlan::Make({spec}, &source, request).value().Of(spec).loaded;
}

TEST(WeightPlan, TheCpuHasEveryStoredFormat) {
  for (const WeightFormat& format : StoredFormats()) {
    const RandomMatrix random(format, 130, 256, 1);
    const WeightFormat loaded = Loaded(random.matrix(), {});
    if (format.has_dtype() || format.is_float_codes()) {
      EXPECT_EQ(loaded, format);
    } else if (CodeBits(format.code) == 4) {
      const bool has_points = format.offset == OffsetType::kZeroPoint;
      EXPECT_EQ(loaded, FormatOf(has_points ? DType::kQ5_0 : DType::kQ4_0)) << FormatName(format);
    } else {
      // Codes may be as far as 255 from a zero of their own.
      const bool is_wide = format.offset == OffsetType::kZeroPoint;
      EXPECT_EQ(loaded, FormatOf(is_wide ? DType::kF32 : DType::kQ8_0)) << FormatName(format);
    }
  }
}

TEST(WeightPlan, Fp8AndNvfp4KeepTheirBytesOnTheCpuAndAreRoundedWhereNothingReadsThem) {
  constexpr int kRows = 128, kCols = 256;
  constexpr int64_t kBf16Bytes = 2 * kRows * kCols;
  for (const WeightFormat& format : StoredFormats()) {
    if (!format.is_float_codes()) continue;
    const RandomMatrix random(format, kRows, kCols, 1);
    const TensorSpec spec = Spec({kRows, kCols});
    const OneMatrix source({random.matrix()});
    const auto plan = [&](const WeightRequest& request) {
      return WeightPlan::Make({spec}, &source, request).value();
    };
    const bool is_fp8 = format.code == CodeType::kE4M3;
    EXPECT_FALSE(plan({}).converts_any());
    EXPECT_TRUE(plan({}).is_quantised());
    EXPECT_EQ(plan({}).loaded_bytes(), random.matrix().bytes().total());
    EXPECT_LT(plan({}).loaded_bytes(), kBf16Bytes * (is_fp8 ? 0.51 : 0.29)) << FormatName(format);
    const WeightRequest integers{.reader = WeightReader::kCpuIntegers};
    EXPECT_EQ(plan(integers).Of(spec).loaded, format);
    const WeightRequest tiles{.reader = WeightReader::kCpuIntegers, .rounds_float_codes = true};
    EXPECT_EQ(plan(tiles).Of(spec).loaded, FormatOf(DType::kBF16));
    const WeightRequest file{.reader = WeightReader::kGgufFile};
    EXPECT_EQ(plan(file).Of(spec).loaded, FormatOf(DType::kBF16));
    // Those of experts, which become one matrix.
    const OneMatrix experts({random.matrix(), random.matrix()});
    const TensorSpec both = Spec({2, kRows, kCols}, TensorComponent::kExperts);
    const WeightPlan stack = WeightPlan::Make({both}, &experts, {}).value();
    EXPECT_TRUE(stack.converts_any());
    EXPECT_TRUE(stack.Of(both).loaded.is_float_codes());
    EXPECT_EQ(stack.loaded_bytes(), 2 * random.matrix().bytes().total()) << FormatName(format);
  }
}

TEST(WeightPlan, RoundingToFp8HalvesTheBytes) {
  const TensorSpec spec = Spec({16, 256});
  const WeightPlan plan = WeightPlan::Make({spec}, nullptr, {.rounding = DType::kF8E4M3}).value();
  EXPECT_EQ(plan.Of(spec).loaded, kRoundedFloat8);
  EXPECT_EQ(plan.loaded_bytes(), 16 * 256 + 16 * 2);
  EXPECT_TRUE(plan.is_quantised());
}

TEST(WeightPlan, TheHeadTakesTheBitsThatAreAskedFor) {
  const TensorSpec matrix{"m", {16, 256}, kMlp, kMatrix, /*layer=*/0};
  const TensorSpec table{"e", {16, 256}, TensorComponent::kEmbedding, TensorRole::kTable, -1};
  const TensorSpec head{"h", {16, 256}, TensorComponent::kHead, TensorRole::kMatrix, -1};
  const auto loaded = [&](const TensorSpec& spec, std::vector<TensorSpec> specs,
                          std::optional<DType> rounding, int head_bits) {
    return WeightPlan::Make(specs, nullptr, {.rounding = rounding, .head_bits = head_bits})
        .value()
        .Of(spec)
        .loaded;
  };
  const std::vector<TensorSpec> tied = {matrix, table};
  EXPECT_EQ(loaded(table, tied, std::nullopt, 0), FormatOf(DType::kBF16));
  EXPECT_EQ(loaded(table, tied, DType::kQ4_0, 0), FormatOf(DType::kQ8_0));
  EXPECT_EQ(loaded(table, tied, DType::kF8E4M3, 0), FormatOf(DType::kBF16));
  for (const auto rounding : {std::optional<DType>(), std::optional(DType::kQ4_0)}) {
    EXPECT_EQ(loaded(table, tied, rounding, 4), FormatOf(DType::kQ4_0));
    EXPECT_EQ(loaded(table, tied, rounding, 6), FormatOf(DType::kQ6_K));
    EXPECT_EQ(loaded(table, tied, rounding, 8), FormatOf(DType::kQ8_0));
    EXPECT_EQ(loaded(table, tied, rounding, 16), FormatOf(DType::kBF16));
    EXPECT_EQ(loaded(matrix, tied, rounding, 6), FormatOf(rounding.value_or(DType::kBF16)));
  }
  EXPECT_EQ(loaded(table, tied, DType::kQ4_K, 4), FormatOf(DType::kQ4_K));
  // Beside a head of its own the embeddings are a table alone.
  const std::vector<TensorSpec> own = {matrix, table, head};
  EXPECT_EQ(loaded(head, own, DType::kQ4_0, 6), FormatOf(DType::kQ6_K));
  EXPECT_EQ(loaded(table, own, DType::kQ4_0, 6), FormatOf(DType::kQ8_0));
  const WeightRequest gpu{.reader = WeightReader::kGpu, .head_bits = 8};
  EXPECT_EQ(WeightPlan::Make(tied, nullptr, gpu).value().Of(table).loaded,
            TileFormatFor(FormatOf(DType::kQ8_0)));
}

TEST(WeightPlan, AHeadThatCannotTakeTheBitsIsRefused) {
  const auto problem = [](const WeightFormat& stored, int cols, const WeightRequest& request) {
    const RandomMatrix random(stored, 16, cols, 1);
    const OneMatrix source({random.matrix()});
    const TensorSpec table = Spec({16, cols}, TensorComponent::kEmbedding, TensorRole::kTable);
    const auto plan = WeightPlan::Make({table}, &source, request);
    return plan.ok() ? std::string("none") : plan.error().message;
  };
  const WeightFormat bf16 = FormatOf(DType::kBF16);
  EXPECT_EQ(problem(bf16, 256, {.head_bits = 6}), "none");
  EXPECT_EQ(problem(FormatOf(DType::kQ6_K), 256, {}), "none");
  EXPECT_EQ(problem(FormatOf(DType::kQ6_K), 256, {.head_bits = 4}),
            "--head-bits 4: the head is stored as Q6_K, and only one in floats is rounded");
  EXPECT_EQ(problem(bf16, 96, {.head_bits = 6}),
            "--head-bits 6: rows of 96 are no whole blocks of Q6_K, which have 256");
  EXPECT_EQ(problem(bf16, 256, {.reader = WeightReader::kGpu, .head_bits = 6}),
            "--head-bits 6: on the GPU it may be 4, 8 or 16");
}

TEST(WeightPlan, PartsThatDisagreeBecomeFloats) {
  const RandomMatrix first(
      RowMajorFormat(CodeType::kU4, {1, 32}, ScaleType::kBF16, OffsetType::kMiddle), 8, 64, 1);
  const RandomMatrix second(RowMajorFormat(CodeType::kE4M3, {1, 0}, ScaleType::kBF16), 8, 64, 2);
  const TensorSpec spec = Spec({16, 64});
  const OneMatrix same({first.matrix(), first.matrix()});
  EXPECT_EQ(WeightPlan::Make({spec}, &same, {}).value().Of(spec).loaded, FormatOf(DType::kQ4_0));
  const OneMatrix mixed({first.matrix(), second.matrix()});
  EXPECT_EQ(WeightPlan::Make({spec}, &mixed, {}).value().Of(spec).loaded, FormatOf(DType::kF32));
}

TEST(WeightPlan, TheGpuKeepsFormatsThatItsKernelsHaveAndTheRestBecomesBf16) {
  for (const WeightFormat& format : StoredFormats()) {
    SCOPED_TRACE(FormatName(format));
    const RandomMatrix random(format, 16, 256, 1);
    const OneMatrix source({random.matrix()});
    const TensorSpec spec = Spec({16, 256}, TensorComponent::kMlp);
    const auto plan = WeightPlan::Make({spec}, &source, {.reader = WeightReader::kGpu});
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    const std::optional<WeightFormat> tiles = TileFormatFor(format);
    const bool has_kernels =
        tiles && (tiles->scale == ScaleType::kF16 || tiles->scale == ScaleType::kBF16) &&
        (tiles->offset == OffsetType::kNone || tiles->offset == OffsetType::kMiddle);
    EXPECT_EQ(plan->Of(spec).loaded, has_kernels ? *tiles : FormatOf(DType::kBF16));
    // A router, whatever its format.
    const TensorSpec other = Spec({16, 256}, TensorComponent::kLayerOther);
    EXPECT_EQ(
        WeightPlan::Make({other}, &source, {.reader = WeightReader::kGpu}).value().Of(other).loaded,
        FormatOf(DType::kBF16));
    const WeightRequest drafter{.reader = WeightReader::kGpu, .keeps_formats = false};
    EXPECT_EQ(WeightPlan::Make({spec}, &source, drafter).value().Of(spec).loaded,
              FormatOf(DType::kBF16));
  }
  const TensorSpec spec = Spec({16, 256}, TensorComponent::kMlp);
  const WeightRequest rounded{.reader = WeightReader::kGpu, .rounding = DType::kQ4_0};
  EXPECT_EQ(WeightPlan::Make({spec}, nullptr, rounded).value().Of(spec).loaded,
            TileFormatFor(FormatOf(DType::kQ4_0)));
  const auto refused =
      WeightPlan::Make({spec}, nullptr, {.reader = WeightReader::kGpu, .rounding = DType::kQ4_K});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "--quantization Q4_K: on the GPU it may be q4_0 or q8_0");
}

TEST(WeightPlan, TheGpuGathersPerLayerEmbeddingsAsTheyAreStored) {
  const TensorSpec table = Spec({16, 256}, TensorComponent::kPerLayerEmbedding, TensorRole::kTable);
  const auto loaded = [&](const WeightFormat& stored, std::optional<DType> rounding) {
    const RandomMatrix random(stored, 16, 256, 1);
    const OneMatrix source({random.matrix()});
    const WeightRequest request{.reader = WeightReader::kGpu, .rounding = rounding};
    return WeightPlan::Make({table}, &source, request).value().Of(table).loaded;
  };
  for (const WeightFormat& format : StoredFormats()) {
    SCOPED_TRACE(FormatName(format));
    const WeightFormat kept = loaded(format, std::nullopt);
    if (format.layout == WeightLayout::kBlocks) {
      EXPECT_EQ(kept, format);
    } else {
      EXPECT_TRUE(kept == FormatOf(DType::kBF16) || kept.layout == WeightLayout::kBlocks);
    }
  }
  EXPECT_EQ(loaded(FormatOf(DType::kBF16), DType::kQ4_0), FormatOf(DType::kQ8_0));
  EXPECT_EQ(loaded(FormatOf(DType::kQ6_K), DType::kQ4_0), FormatOf(DType::kQ6_K));
  const WeightRequest dummy{.reader = WeightReader::kGpu, .rounding = DType::kQ4_0};
  EXPECT_EQ(WeightPlan::Make({table}, nullptr, dummy).value().Of(table).loaded,
            FormatOf(DType::kQ8_0));
}

TEST(WeightPlan, ADrafterTakesEightBitsWhereItsTargetIsQuantised) {
  const TensorSpec matrix = Spec({16, 256});
  const auto target = [&](std::optional<DType> rounding) {
    return WeightPlan::Make({matrix}, nullptr, {.reader = WeightReader::kGpu, .rounding = rounding})
        .value();
  };
  const auto loaded = [&](const AssistantPlan& assistant, std::optional<DType> rounding,
                          const TensorSource* source) {
    return WeightPlan::Make({matrix}, source, RequestOfDrafter(assistant, target(rounding)))
        .value()
        .Of(matrix)
        .loaded;
  };
  const WeightFormat q8 = TileFormatFor(FormatOf(DType::kQ8_0)).value();
  const WeightFormat q4 = TileFormatFor(FormatOf(DType::kQ4_0)).value();
  const RandomMatrix stored(FormatOf(DType::kQ4_0), 16, 256, 1);
  const OneMatrix file({stored.matrix()});
  const AssistantPlan dense;
  EXPECT_EQ(loaded(dense, std::nullopt, nullptr), FormatOf(DType::kBF16));
  EXPECT_EQ(loaded(dense, DType::kQ4_0, nullptr), q8);
  EXPECT_EQ(loaded(dense, DType::kQ4_0, &file), q4);
  EXPECT_EQ(loaded(dense, std::nullopt, &file), q4);
  AssistantPlan ordered;
  ordered.ordered_head.emplace();
  EXPECT_EQ(loaded(ordered, DType::kQ4_0, nullptr), FormatOf(DType::kBF16));
  EXPECT_EQ(loaded(ordered, std::nullopt, &file), FormatOf(DType::kBF16));
}

TEST(WeightPlan, OnTheGpuMatricesThatAreReadAsOneHaveOneFormat) {
  // As in a file whose v_proj has more bits than its q_proj and k_proj.
  class TwoFormats : public TensorSource {
   public:
    Result<TensorView> Get(const TensorSpec&) const override { return MakeError("no vectors"); }
    Result<std::vector<MatrixRef>> GetStored(const TensorSpec& spec) const override {
      return std::vector<MatrixRef>{spec.name == "v" ? more_.matrix() : few_.matrix()};
    }

   private:
    const RandomMatrix few_{FormatOf(DType::kQ4_0), 16, 256, 1};
    const RandomMatrix more_{FormatOf(DType::kQ8_0), 16, 256, 2};
  };
  const auto named = [](const char* name, int layer) {
    TensorSpec spec = Spec({16, 256}, TensorComponent::kAttention);
    spec.name = name;
    spec.layer = layer;
    return spec;
  };
  const std::vector<TensorSpec> specs = {named("q", 0), named("v", 0), named("other", 1)};
  const TwoFormats source;
  const WeightPlan plan = WeightPlan::Make(specs, &source, {.reader = WeightReader::kGpu}).value();
  EXPECT_EQ(plan.Of(specs[0]).loaded, FormatOf(DType::kBF16));
  EXPECT_EQ(plan.Of(specs[1]).loaded, FormatOf(DType::kBF16));
  EXPECT_EQ(plan.Of(specs[2]).loaded, TileFormatFor(FormatOf(DType::kQ4_0)));
  EXPECT_EQ(plan.Summary(),
            "0.00 GB as BF16 (0.00 GB of it stored as Q4_0, 0.00 GB of it stored as Q8_0), 0.00 "
            "GB as W4 F16/32");
}

TEST(WeightPlan, RoutersTablesByRowAndOddRowsAreNotRounded) {
  const auto type = [](std::vector<int64_t> shape, TensorComponent component, TensorRole role,
                       DType stored, DType to = DType::kQ4_0) {
    const int64_t rows = shape.size() > 1 ? shape[0] : 1;
    const RandomMatrix random(FormatOf(stored), static_cast<int>(rows),
                              static_cast<int>(shape.back()), 1);
    const TensorSpec spec = Spec(std::move(shape), component, role);
    const OneMatrix source({random.matrix()});
    return WeightPlan::Make({spec}, &source, {.rounding = to}).value().Of(spec).loaded.unit;
  };
  EXPECT_EQ(type({8, 64}, kMlp, kMatrix, DType::kBF16), DType::kQ4_0);
  EXPECT_EQ(type({8, 48}, kMlp, kMatrix, DType::kBF16), DType::kBF16);
  EXPECT_EQ(type({8, 64}, kMlp, kMatrix, DType::kF32, DType::kQ4_K), DType::kQ5_0);
  EXPECT_EQ(type({8, 64}, TensorComponent::kLayerOther, TensorRole::kRouter, DType::kF16),
            DType::kF16);
  EXPECT_EQ(type({8, 64}, TensorComponent::kPerLayerEmbedding, TensorRole::kTable, DType::kBF16),
            DType::kBF16);
  EXPECT_EQ(type({8, 64}, TensorComponent::kEmbedding, TensorRole::kTable, DType::kBF16),
            DType::kQ8_0);
  EXPECT_EQ(type({8, 256}, kMlp, kMatrix, DType::kQ6_K), DType::kQ6_K);
}

TEST(WeightPlan, PanelsAreMadeOfMatricesOfLayersAndOfTheHead) {
  const auto unit = [](const TensorSpec& spec, bool has_own_head) {
    std::vector<TensorSpec> specs = {spec};
    const RandomMatrix random(FormatOf(DType::kQ4_0), static_cast<int>(spec.shape[0]),
                              static_cast<int>(spec.shape.back()), 1);
    if (has_own_head) {
      specs.push_back({kHeadName, {spec.shape}, TensorComponent::kHead, TensorRole::kTable});
    }
    const OneMatrix source({random.matrix()});
    const auto plan =
        WeightPlan::Make(specs, &source, {.reader = WeightReader::kCpuIntegers}).value();
    return plan.Of(spec).loaded.unit;
  };
  EXPECT_EQ(unit(Spec({32, 64}), false), DType::kPanel4);
  EXPECT_EQ(unit(Spec({24, 64}), false), DType::kQ4_0);
  const TensorSpec table = Spec({32, 64}, TensorComponent::kEmbedding, TensorRole::kTable);
  EXPECT_EQ(unit(table, false), DType::kPanel4);
  EXPECT_EQ(unit(table, true), DType::kQ4_0);
  EXPECT_EQ(unit(Spec({32, 64}, TensorComponent::kLayerOther, TensorRole::kRouter), false),
            DType::kQ4_0);
  EXPECT_EQ(unit(Spec({32, 64}, TensorComponent::kPerLayerEmbedding, TensorRole::kTable), false),
            DType::kQ4_0);
}

// 8 bits in a file mean 8 bits in memory: nothing is counted as bf16.
TEST(WeightPlan, BytesAreThoseOfTheFormats) {
  const ModelPlan model =
      MakeModelPlan(ParseModelConfig(*PresetConfig("e2b"), "e2b").value()).value();
  const std::vector<TensorSpec> specs = RequiredTensors(model);
  int64_t parameters = 0, vectors = 0;
  for (const TensorSpec& spec : specs) {
    parameters += spec.num_elements();
    if (spec.shape.size() < 2) vectors += spec.num_elements();
  }
  const WeightPlan on_cpu = WeightPlan::OfDummies(specs, WeightReader::kCpu);
  EXPECT_EQ(on_cpu.loaded_bytes(), 2 * parameters);
  EXPECT_FALSE(on_cpu.converts_any());
  EXPECT_EQ(WeightPlan::OfDummies(specs, WeightReader::kGpu).loaded_bytes(),
            2 * parameters + 2 * vectors);
  const WeightPlan file =
      WeightPlan::Make(specs, nullptr,
                       {.reader = WeightReader::kGgufFile, .rounding = DType::kQ8_0})
          .value();
  EXPECT_LT(file.loaded_bytes(), parameters * 34 / 32 + parameters / 10);
}

}  // namespace
}  // namespace lapidary
