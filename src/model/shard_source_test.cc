// The tensors of a rank: the values of its ranges, without a copy where rows lie together.
#include "model/shard_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/presets.h"
#include "model/tensor_sources.h"
#include "tensor/decode.h"
#include "tensor/random_matrix.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

ModelPlan PlanOf(const std::string& preset) {
  return MakeModelPlan(ParseModelConfig(PresetConfig(preset).value(), preset).value()).value();
}

TEST(ShardSource, HasTheValuesOfItsRangesAndCopiesNoRowsThatLieTogether) {
  ThreadPool threads(2);
  for (const char* preset : {"tiny-e", "tiny-moe", "tiny-dense"}) {
    const ModelPlan plan = PlanOf(preset);
    const std::shared_ptr<const TensorSource> whole = DummySource::Make(plan, 1, threads).value();
    for (int rank = 0; rank < 4; ++rank) {
      const Shard shard = ShardOf(plan, rank, 4).value();
      const auto source = ShardSource::Make(shard.tensors, whole, threads).value();
      const std::vector<TensorSpec> specs = RequiredTensors(shard.plan);
      int64_t copied = 0;
      for (size_t idx = 0; idx < specs.size(); ++idx) {
        const TensorCut& cut = shard.tensors[idx];
        const TensorView got = source->Get(specs[idx]).value();
        const TensorView all = whole->Get(cut.whole).value();
        ASSERT_EQ(got.shape, specs[idx].shape) << specs[idx].name;
        const std::vector<float> values = ToFloats(got), of_all = ToFloats(all);
        size_t at = 0;
        for (const IndexRange& rows : cut.rows) {
          for (int64_t row = rows.begin; row < rows.end; ++row) {
            for (int64_t col = cut.cols.begin; col < cut.cols.end; ++col) {
              ASSERT_EQ(values[at++], of_all[row * cut.whole.shape.back() + col])
                  << specs[idx].name;
            }
          }
        }
        ASSERT_EQ(at, values.size());
        const bool is_view = got.data >= all.data && got.data < all.data + all.num_bytes();
        EXPECT_EQ(is_view, cut.rows.size() == 1 && cut.has_all_cols()) << specs[idx].name;
        if (!is_view) copied += got.num_bytes();
      }
      EXPECT_EQ(source->copied_bytes(), copied);
    }
  }
}

// Experts that are stored one by one, gate and up apart, each with a scale of its own.
class ExpertSource : public TensorSource {
 public:
  ExpertSource(const WeightFormat& format, int num_experts, int width, int hidden)
      : format_(format) {
    for (int idx = 0; idx < 2 * num_experts; ++idx) {
      matrices_.push_back(
          std::make_unique<RandomMatrix>(format, width, hidden, static_cast<uint32_t>(idx + 1)));
    }
  }
  Result<TensorView> Get(const TensorSpec& spec) const override {
    return MakeError("{} has no values", spec.name);
  }
  Result<std::vector<MatrixRef>> GetStored(const TensorSpec&) const override {
    std::vector<MatrixRef> parts;
    for (const auto& matrix : matrices_) parts.push_back(matrix->matrix());
    return parts;
  }

 private:
  const WeightFormat format_;
  std::vector<std::unique_ptr<RandomMatrix>> matrices_;
};

std::vector<float> ValuesOf(const std::vector<MatrixRef>& parts) {
  std::vector<float> values;
  for (const MatrixRef& part : parts) {
    const std::vector<float> more = DecodeMatrix(part);
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

TEST(ShardSource, EachExpertsRowsAreCutInTheFormatTheyAreStoredIn) {
  constexpr int kExperts = 3, kWidth = 704, kHidden = 256;
  ThreadPool threads(2);
  const TensorSpec spec{"layers.0.experts.gate_up_proj",
                        {kExperts, 2 * kWidth, kHidden},
                        TensorComponent::kExperts,
                        TensorRole::kMatrix,
                        0};
  for (const WeightFormat& format : StoredFormats()) {
    const auto whole = std::make_shared<ExpertSource>(format, kExperts, kWidth, kHidden);
    const std::vector<float> of_all = ValuesOf(whole->GetStored(spec).value());
    // 384 is a multiple of every format's rows; the last of 704 are not, which nobody minds.
    TensorCut cut{.whole = spec, .rows = {}, .cols = {0, kHidden}};
    for (int first = 0; first < kExperts * 2 * kWidth; first += kWidth) {
      cut.rows.push_back({first + 384, first + kWidth});
    }
    const auto source = ShardSource::Make({cut}, whole, threads);
    ASSERT_TRUE(source.ok()) << source.error().message;
    const std::vector<float> got = ValuesOf((*source)->GetStored(spec).value());
    size_t at = 0;
    for (const IndexRange& rows : cut.rows) {
      for (int64_t value = int64_t{rows.begin} * kHidden; value < int64_t{rows.end} * kHidden;
           ++value) {
        ASSERT_EQ(got[at++], of_all[value]) << FormatName(format);
      }
    }
    EXPECT_EQ(at, got.size());
  }
}

TEST(ShardSource, ARangeThatCutsABlockIsRefusedByName) {
  ThreadPool threads(1);
  const auto whole = std::make_shared<ExpertSource>(FormatOf(DType::kQ4_K), 1, 64, 512);
  const TensorSpec spec{
      "layers.2.mlp.down_proj.weight", {128, 512}, TensorComponent::kMlp, TensorRole::kMatrix, 2};
  const TensorCut cut{.whole = spec, .rows = {{0, 128}}, .cols = {128, 512}};
  EXPECT_THAT(ShardSource::Make({cut}, whole, threads).error().message,
              HasSubstr("layers.2.mlp.down_proj.weight: a rank's rows 0 to 64, columns 128 to 512 "
                        "are no whole blocks of Q4_K, which are 1 x 256"));
}

}  // namespace
}  // namespace lapidary
