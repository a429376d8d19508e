// How models are split: what a rank has, that the parts make the whole, and what is refused.
#include "model/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/assistant_preset.h"
#include "model/presets.h"

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelPlan PlanOf(const std::string& preset, const Json& changes = Json::object()) {
  Json config = PresetConfig(preset).value();
  (config.contains("text_config") ? config["text_config"] : config).update(changes);
  return MakeModelPlan(ParseModelConfig(config, preset).value()).value();
}

AssistantPlan AssistantOf(const std::string& preset) {
  const Json config = AssistantPresetConfig(preset).value();
  return PairAssistant(MakeAssistantPlan(ParseAssistantConfig(config, preset).value()),
                       PlanOf(preset))
      .value();
}

const LayerPlan& FirstOf(const ModelPlan& plan, AttentionKind kind) {
  for (const LayerPlan& layer : plan.layers) {
    if (layer.kind == kind) return layer;
  }
  return plan.layers[0];
}

struct Heads {
  int query;
  int sliding_kv;
  int full_kv;
  bool operator==(const Heads&) const = default;
};
Heads HeadsOf(const std::string& preset, int rank, int size) {
  const ModelPlan plan = ShardOf(PlanOf(preset), rank, size)->plan;
  const LayerPlan& full = FirstOf(plan, AttentionKind::kFull);
  return {full.num_heads, FirstOf(plan, AttentionKind::kSliding).num_kv_heads, full.num_kv_heads};
}

TEST(ShardOf, KvHeadsAreOnSeveralRanksWhereThereAreFewer) {
  EXPECT_EQ(HeadsOf("31b", 1, 2), (Heads{16, 8, 2}));
  EXPECT_EQ(HeadsOf("31b", 3, 4), (Heads{8, 4, 1}));
  EXPECT_EQ(HeadsOf("31b", 7, 8), (Heads{4, 2, 1}));
  EXPECT_EQ(HeadsOf("12b", 1, 2), (Heads{8, 4, 1}));
  EXPECT_EQ(HeadsOf("26b-a4b", 3, 4), (Heads{4, 2, 1}));
  EXPECT_EQ(HeadsOf("e2b", 7, 8), (Heads{1, 1, 1}));
  EXPECT_EQ(HeadsOf("e4b", 1, 4), (Heads{2, 1, 1}));
}

TEST(ShardOf, ARankHasAPartOfEveryWidthAndOfTheVocabulary) {
  const Shard shard = ShardOf(PlanOf("26b-a4b"), 1, 4).value();
  EXPECT_EQ(shard.plan.layers[0].mlp_width, 528);
  EXPECT_EQ(shard.plan.moe->expert_width, 176);
  EXPECT_EQ(shard.plan.vocab_size, 65536);
  EXPECT_EQ(shard.first_token, 65536);
  EXPECT_EQ(shard.plan.kv_groups[kSlidingGroup].stored_values_per_token, 25 * 2 * 512);
  EXPECT_EQ(shard.plan.kv_groups[kFullGroup].stored_values_per_token, 5 * 640);
}

TEST(ShardOf, OneRankHasTheModel) {
  const ModelPlan plan = PlanOf("26b-a4b");
  const Shard shard = ShardOf(plan, 0, 1).value();
  EXPECT_EQ(shard.plan.vocab_size, plan.vocab_size);
  EXPECT_EQ(shard.plan.layers[7].num_heads, plan.layers[7].num_heads);
  for (const TensorCut& cut : shard.tensors) EXPECT_TRUE(cut.is_whole()) << cut.whole.name;
}

// How often the ranks hold each row and column of a tensor.
struct Coverage {
  std::vector<int> rows;
  std::vector<int> cols;
};

TEST(ShardOf, PartsAreInTheShapesOfTheirPlanAndMakeTheWhole) {
  for (const char* preset : {"e2b", "e4b", "12b", "26b-a4b", "31b", "tiny-e", "tiny-moe"}) {
    const ModelPlan plan = PlanOf(preset);
    for (const int size : ShardSizes(plan)) {
      std::map<std::string, Coverage> covered;
      for (int rank = 0; rank < size; ++rank) {
        const Shard shard = ShardOf(plan, rank, size).value();
        const std::vector<TensorSpec> specs = RequiredTensors(shard.plan);
        ASSERT_EQ(specs.size(), shard.tensors.size());
        for (size_t idx = 0; idx < specs.size(); ++idx) {
          const TensorCut& cut = shard.tensors[idx];
          ASSERT_EQ(cut.whole.name, specs[idx].name);
          int64_t num_rows = 0;
          Coverage& times = covered[cut.whole.name];
          times.rows.resize(cut.whole.num_elements() / cut.whole.shape.back());
          times.cols.resize(cut.whole.shape.back());
          for (const IndexRange& range : cut.rows) {
            num_rows += range.count();
            for (int row = range.begin; row < range.end; ++row) ++times.rows[row];
          }
          for (int col = cut.cols.begin; col < cut.cols.end; ++col) ++times.cols[col];
          EXPECT_EQ(cut.cols.count(), specs[idx].shape.back()) << cut.whole.name;
          EXPECT_EQ(num_rows * cut.cols.count(), specs[idx].num_elements()) << cut.whole.name;
        }
      }
      for (const auto& [name, times] : covered) {
        // Along one of the two every rank has all; along the other each has its part.
        const int per_row = times.rows.front();
        const int per_col = times.cols.front();
        EXPECT_TRUE(per_row == size || per_col == size) << name;
        for (const int count : times.rows) ASSERT_EQ(count, per_row) << preset << " " << name;
        for (const int count : times.cols) ASSERT_EQ(count, per_col) << preset << " " << name;
        const bool is_kv = name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight");
        const bool is_split = per_row < size || per_col < size;
        EXPECT_TRUE(is_kv || !is_split || std::min(per_row, per_col) == 1) << name;
      }
    }
  }
}

TEST(ShardOf, WhatCannotBeSplitIsRefusedWithTheSizesThatWork) {
  EXPECT_THAT(ShardSizes(PlanOf("31b")), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(ShardSizes(PlanOf("tiny-dense")), ElementsAre(1, 2, 4));
  EXPECT_EQ(ShardOf(PlanOf("tiny-dense"), 0, 3).error().message,
            "the model cannot be split over 3 ranks: its 4 attention heads cannot be shared out "
            "evenly; 1, 2, 4 work");
  EXPECT_THAT(
      ShardOf(PlanOf("12b", {{"num_key_value_heads", 4}, {"num_attention_heads", 12}}), 0, 3)
          .error()
          .message,
      HasSubstr("its 4 KV heads cannot be shared out evenly; 1, 2, 4 work"));
  EXPECT_THAT(ShardOf(PlanOf("31b"), 0, 16).error().message,
              HasSubstr("there may be 1 to 8 ranks; 1, 2, 4, 8 work"));
  EXPECT_THAT(ShardOf(PlanOf("31b"), 0, 0).error().message, HasSubstr("1 to 8 ranks"));
}

TEST(ShardOf, WidthsAreSharedOutInWholeBlocks) {
  // 2,112 is 66 blocks of 32, 704 is 22.
  const ModelPlan plan = PlanOf("26b-a4b");
  CutUnits units;
  for (const LayerPlan& layer : plan.layers) {
    units[fmt::format("layers.{}.mlp.down_proj.weight", layer.index)] = {1, 32};
    units[fmt::format("layers.{}.experts.down_proj", layer.index)] = {1, 32};
  }
  std::vector<int> mlp, experts;
  for (int rank = 0; rank < 4; ++rank) {
    const ModelPlan part = ShardOf(plan, rank, 4, units)->plan;
    mlp.push_back(part.layers[0].mlp_width / 32);
    experts.push_back(part.moe->expert_width / 32);
    EXPECT_EQ(part.layers[0].mlp_width % 32, 0);
  }
  EXPECT_THAT(mlp, ElementsAre(16, 17, 16, 17));
  EXPECT_THAT(experts, ElementsAre(5, 6, 5, 6));
  EXPECT_THAT(ShardSizes(plan, units), ElementsAre(1, 2, 4, 8));
}

TEST(ShardOf, BlocksThatWouldBeCutAreRefusedByName) {
  const ModelPlan plan = PlanOf("tiny-dense");  // 192 wide
  CutUnits units = {{"layers.0.mlp.down_proj.weight", {1, 96}}};
  EXPECT_THAT(ShardSizes(plan, units), ElementsAre(1, 2));
  EXPECT_THAT(ShardOf(plan, 0, 4, units).error().message,
              HasSubstr("layers.0.mlp.gate_proj.weight has too few rows; 1, 2 work"));
  units = {{"layers.3.self_attn.o_proj.weight", {1, 384}}};
  EXPECT_THAT(ShardOf(plan, 0, 2, units).error().message,
              HasSubstr("layers.3.self_attn.o_proj.weight is stored in blocks of 384 columns, "
                        "which cannot be cut at 512; 1 work"));
}

TEST(ShardOf, AnAssistantsHeadsFollowTheKvHeadsTheyRead) {
  for (const char* preset : {"e4b", "12b", "26b-a4b", "31b"}) {
    const AssistantPlan assistant = AssistantOf(preset);
    for (const int size : {2, 4}) {
      for (int rank = 0; rank < size; ++rank) {
        const ModelPlan target = ShardOf(PlanOf(preset), rank, size)->plan;
        const AssistantShard shard = ShardOf(assistant, rank, size).value();
        for (const LayerPlan& layer : shard.plan.decoder.layers) {
          const int whole_heads = assistant.decoder.layers[layer.index].num_heads;
          EXPECT_EQ(layer.num_heads, whole_heads / size);
          EXPECT_EQ(layer.num_kv_heads,
                    target.layers[shard.plan.kv_donors[layer.index]].num_kv_heads);
          EXPECT_EQ(layer.mlp_width, assistant.decoder.layers[layer.index].mlp_width);
        }
        EXPECT_EQ(shard.plan.decoder.vocab_size, assistant.decoder.vocab_size);
      }
    }
  }
  EXPECT_THAT(ShardOf(AssistantOf("e2b"), 0, 8).error().message,
              HasSubstr("the assistant cannot be split over 8 ranks: its 4 attention heads"));
}

}  // namespace
}  // namespace lapidary
