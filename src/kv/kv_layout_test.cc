#include "kv/kv_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/presets.h"

namespace lapidary {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

TEST(KvLayout, ChoosesTheDesignsTokensPerPageInBf16) {
  struct Expected {
    const char* preset;
    int sliding;
    int full;
  };
  for (const Expected& expected : {Expected{"26b-a4b", 16, 256},
                                   {"31b", 16, 256},
                                   {"12b", 16, 512},
                                   {"e4b", 128, 320},
                                   {"e2b", 32, 64}}) {
    const KvLayout layout = MakeKvLayout(PresetPlan(expected.preset), KvFormat::kBF16);
    EXPECT_EQ(layout.tokens_per_page[kSlidingGroup], expected.sliding) << expected.preset;
    EXPECT_EQ(layout.tokens_per_page[kFullGroup], expected.full) << expected.preset;
  }
}

TEST(KvLayout, WastesAtMostFivePerCentInEveryPrecision) {
  for (const std::string& preset : PresetNames()) {
    for (const KvFormat format :
         {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8, KvFormat::kFp8}) {
      const KvLayout layout = MakeKvLayout(PresetPlan(preset), format);
      EXPECT_EQ(layout.tokens_per_page[kSlidingGroup] % 16, 0);
      EXPECT_EQ(layout.tokens_per_page[kFullGroup] % 64, 0);
      for (const int64_t wasted : layout.wasted_bytes) {
        EXPECT_LE(static_cast<double>(wasted), 0.05 * static_cast<double>(layout.page_bytes))
            << preset << " in " << KvFormatName(format);
      }
    }
  }
}

// Every (layer, head, token) has bytes of its own inside the page, and together they fill all of it
// but the waste.
TEST(KvLayout, EntriesTileThePageWithoutOverlap) {
  for (const std::string preset : {"tiny-e", "tiny-moe", "e2b", "31b"}) {
    const ModelPlan plan = PresetPlan(preset);
    for (const KvFormat format : {KvFormat::kF32, KvFormat::kInt8})
      for (const std::array<int, 2> tokens : {std::array<int, 2>{16, 64}, {1, 1}, {3, 5}, {7, 2}}) {
        const KvLayout layout = MakeKvLayout(plan, format, tokens);
        EXPECT_EQ(layout.page_bytes % 256, 0);
        for (int group = 0; group < kNumKvGroups; ++group) {
          std::vector<std::pair<int64_t, int64_t>> ranges;
          for (const int layer_idx : plan.kv_groups[group].layers) {
            const LayerPlan& layer = plan.layers[layer_idx];
            for (int head = 0; head < layer.num_kv_heads; ++head) {
              const int64_t begin = layout.HeadOffset(layer, head);
              ranges.emplace_back(begin, begin + layout.HeadBytes(layer));
              EXPECT_GE(layout.HeadBytes(layer),
                        tokens[group] * KvEntryBytes(format, layer.kv_entry));
              EXPECT_GE(layout.ScalesOffset(layer, head) - begin,
                        tokens[group] * layer.kv_entry.entry_len * KvElementBytes(format));
              EXPECT_EQ(layout.ScalesOffset(layer, head) % 4, 0);
            }
          }
          std::sort(ranges.begin(), ranges.end());
          int64_t end = 0;
          for (const auto& [first, last] : ranges) {
            ASSERT_EQ(first, end) << preset;
            end = last;
          }
          EXPECT_EQ(end + layout.wasted_bytes[group], layout.page_bytes);
        }
        for (const LayerPlan& layer : plan.layers) {
          EXPECT_EQ(layout.layer_offset[layer.index] >= 0, layer.owns_kv());
        }
      }
  }
}

TEST(KvLayout, HoldsAModelWithOneKindOfLayerOnly) {
  Json config = *PresetConfig("tiny-dense");
  for (Json& type : config["layer_types"]) type = "full_attention";
  const ModelPlan plan = MakeModelPlan(*ParseModelConfig(config, "t")).value();
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kBF16);
  EXPECT_GT(layout.page_bytes, 0);
  EXPECT_LT(layout.wasted_bytes[kFullGroup], 256);
}

}  // namespace
}  // namespace lapidary
