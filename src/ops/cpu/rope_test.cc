#include "ops/cpu/rope.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model/plan.h"
#include "model/presets.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/op_testing.h"

namespace lapidary::cpu {
namespace {

constexpr int32_t kPositions[] = {0, 1, 2, 511, 4096, 100000, 131071, 200001, 262143};

LayerPlan PresetLayer(const std::string& preset, int layer_idx) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(preset), preset).value())
      .value()
      .layers[layer_idx];
}

LayerPlan SlidingLayer() { return PresetLayer("31b", 0); }
LayerPlan FullLayer() { return PresetLayer("31b", 5); }

RotaryHead RotaryOf(const LayerPlan& layer) {
  return {.head_dim = layer.head_dim, .num_rotary_pairs = layer.rope.num_rotary_pairs};
}

RopeTable Table(const RopePlan& rope, std::span<const int32_t> positions) {
  RopeTable table;
  table.Fill(rope.Frequencies(), positions);
  return table;
}

TEST(RopeTable, IsTheCorrectlyRoundedCosineOfTheFloatAngleAtEveryPosition) {
  for (const LayerPlan& layer : {SlidingLayer(), FullLayer()}) {
    const RopeTable table = Table(layer.rope, kPositions);
    const std::vector<float> frequencies = layer.rope.Frequencies();
    for (size_t row = 0; row < std::size(kPositions); ++row) {
      for (int pair = 0; pair < layer.rope.num_rotary_pairs; ++pair) {
        const double angle = static_cast<float>(kPositions[row]) * frequencies[pair];
        ASSERT_EQ(table.CosRow(row)[pair], static_cast<float>(std::cos(angle)));
        ASSERT_EQ(table.SinRow(row)[pair], static_cast<float>(std::sin(angle)));
      }
    }
  }
}

TEST(RopeTable, FollowsTheExactAngleAsCloselyAsFloatAnglesCan) {
  for (const LayerPlan& layer : {SlidingLayer(), FullLayer()}) {
    const RopeTable table = Table(layer.rope, kPositions);
    for (size_t row = 0; row < std::size(kPositions); ++row) {
      for (int pair = 0; pair < layer.rope.num_rotary_pairs; ++pair) {
        // theta^(-2j/d) over the whole head dim d, for both kinds.
        const double angle =
            kPositions[row] * std::pow(layer.rope.theta, -2.0 * pair / layer.head_dim);
        // Relative error of the frequency (exponent rounding times ln theta, power, reciprocal) and
        // of the product; the table's own rounding.
        const double tolerance = angle * (3 + std::log(layer.rope.theta)) * kUnit + kUnit;
        ASSERT_NEAR(table.CosRow(row)[pair], std::cos(angle), tolerance) << kPositions[row];
        ASSERT_NEAR(table.SinRow(row)[pair], std::sin(angle), tolerance) << kPositions[row];
      }
    }
  }
}

TEST(ApplyRope, TurnsPairsHalfAHeadApartAndLeavesTheRestAlone) {
  Random random(20);
  for (const LayerPlan& layer : {SlidingLayer(), FullLayer()}) {
    const int dim = layer.head_dim;
    const int pairs = layer.rope.num_rotary_pairs;
    EXPECT_EQ(pairs, dim == 512 ? 64 : 128);
    const RopeTable table = Table(layer.rope, kPositions);
    for (size_t row = 0; row < std::size(kPositions); ++row) {
      Guarded head(dim, 1);
      random.Fill(head.span());
      const std::vector<float> x(head.data(), head.data() + dim);
      ApplyRope(RotaryOf(layer), table.CosRow(row), table.SinRow(row), head.data());
      for (int idx = 0; idx < dim; ++idx) {
        const int pair = idx % (dim / 2);
        if (pair >= pairs) {
          ASSERT_EQ(head[idx], x[idx]) << "dim " << idx << " must not turn";
          continue;
        }
        const double cos = table.CosRow(row)[pair], sin = table.SinRow(row)[pair];
        const double low = x[pair], high = x[pair + dim / 2];
        const double expected = idx < dim / 2 ? low * cos - high * sin : high * cos + low * sin;
        ASSERT_NEAR(head[idx], expected, 2 * kUnit * (std::abs(low) + std::abs(high)));
      }
      head.CheckGuards();
    }
  }
}

TEST(ApplyRope, PositionZeroTurnsNothing) {
  const LayerPlan layer = SlidingLayer();
  const RopeTable table = Table(layer.rope, std::vector<int32_t>{0});
  Random random(21);
  std::vector<float> head = random.Vector(layer.head_dim);
  const std::vector<float> before = head;
  ApplyRope(RotaryOf(layer), table.CosRow(0), table.SinRow(0), head.data());
  EXPECT_EQ(head, before);
}

// q and k as the specification has them: norm with weight, then rope.
std::vector<float> ExplicitHead(const LayerPlan& layer, std::span<const float> raw,
                                std::span<const float> norm, const RopeTable& table, int row) {
  std::vector<float> head(layer.head_dim);
  RmsNorm(raw.data(), norm.data(), 1e-6f, layer.head_dim, head.data());
  ApplyRope(RotaryOf(layer), table.CosRow(row), table.SinRow(row), head.data());
  return head;
}

struct CachedForms {
  std::vector<float> query;
  std::vector<float> entry;
};

CachedForms MakeForms(const LayerPlan& reader, const LayerPlan& owner, std::span<const float> q_raw,
                      std::span<const float> k_raw, std::span<const float> v_raw,
                      std::span<const float> q_norm, std::span<const float> k_norm,
                      const RopeTable& table, int q_row, int k_row) {
  CachedForms forms;
  Guarded query(reader.kv_entry.key_len, 1), entry(owner.kv_entry.entry_len, 1);
  MakeCachedQuery(RotaryOf(reader), reader.kv_entry, q_raw.data(), q_norm.data(), k_norm.data(),
                  1e-6f, table.CosRow(q_row), table.SinRow(q_row), query.data());
  MakeKvEntry(RotaryOf(owner), owner.kv_entry, k_raw.data(), v_raw.data(), k_norm.data(), 1e-6f,
              table.CosRow(k_row), table.SinRow(k_row), entry.data());
  query.CheckGuards();
  entry.CheckGuards();
  forms.query.assign(query.data(), query.data() + query.size());
  forms.entry.assign(entry.data(), entry.data() + entry.size());
  return forms;
}

TEST(CachedForms, SeparateKAndVAreTheHeadsOfTheSpecification) {
  Random random(22);
  const LayerPlan layer = SlidingLayer();
  const int dim = layer.head_dim;
  const RopeTable table = Table(layer.rope, kPositions);
  const auto q_raw = random.Vector(dim), k_raw = random.Vector(dim), v_raw = random.Vector(dim);
  const auto q_norm = random.Vector(dim), k_norm = random.Vector(dim);
  const CachedForms forms =
      MakeForms(layer, layer, q_raw, k_raw, v_raw, q_norm, k_norm, table, 5, 3);
  EXPECT_EQ(forms.query, ExplicitHead(layer, q_raw, q_norm, table, 5));
  std::vector<float> value(dim);
  RmsNorm(v_raw.data(), nullptr, 1e-6f, dim, value.data());
  EXPECT_TRUE(std::equal(value.begin(), value.end(), forms.entry.begin()));
  const std::vector<float> key = ExplicitHead(layer, k_raw, k_norm, table, 3);
  EXPECT_TRUE(std::equal(key.begin(), key.end(), forms.entry.begin() + layer.kv_entry.key_offset));
}

// One dot product over the end of a stored-once entry equals q . rope(rmsnorm(x) * w_k), and its
// value part is rmsnorm(x): for the owner itself and for a reader with weights of its own, which
// folds in the OWNER's key norm.
TEST(CachedForms, StoredOnceKIsVGivesTheScoresAndValuesOfExplicitKAndV) {
  Random random(23);
  for (const char* preset : {"12b", "26b-a4b", "31b"}) {
    const LayerPlan owner = PresetLayer(preset, 5);
    LayerPlan reader = owner;  // as a layer that shares owner's KV
    reader.index = 11;
    ASSERT_EQ(owner.kv_entry.entry_len, 640);
    const int dim = owner.head_dim;
    const RopeTable table = Table(owner.rope, kPositions);
    for (const LayerPlan& layer : {owner, reader}) {
      const auto q_norm = random.Vector(dim, 20.0f), k_norm = random.Vector(dim, 20.0f);
      for (size_t q_row = 0; q_row < std::size(kPositions); ++q_row) {
        for (size_t k_row = 0; k_row <= q_row; ++k_row) {
          const auto q_raw = random.Vector(dim), x = random.Vector(dim);
          const CachedForms forms =
              MakeForms(layer, owner, q_raw, x, x, q_norm, k_norm, table, q_row, k_row);
          std::vector<float> value(dim);
          RmsNorm(x.data(), nullptr, 1e-6f, dim, value.data());
          std::vector<float> restored(forms.entry.begin(), forms.entry.begin() + dim);
          RestoreValueOrder(owner.kv_entry, 1, restored.data());
          ASSERT_EQ(restored, value);

          const ExactDot expected(ExplicitHead(layer, q_raw, q_norm, table, q_row),
                                  ExplicitHead(layer, x, k_norm, table, k_row));
          const ExactDot stored(forms.query,
                                std::span<const float>(forms.entry)
                                    .subspan(owner.kv_entry.key_offset, owner.kv_entry.key_len));
          // Both take the same norms; products round in another order: twice a term each way.
          ASSERT_NEAR(stored.value, expected.value, 6 * kUnit * expected.magnitude)
              << preset << " at " << kPositions[q_row] << ", " << kPositions[k_row];
        }
      }
    }
  }
}

TEST(CachedForms, ColumnsOfAValueAreTheDimsOfAHeadInAnotherOrder) {
  for (const int pairs : {0, 1, 64, 255, 256}) {
    std::vector<bool> seen(512);
    for (int dim = 0; dim < 512; ++dim) {
      const int column = ColumnOfDim(512, pairs, dim);
      ASSERT_EQ(DimOfColumn(512, pairs, column), dim);
      ASSERT_EQ(column < 2 * pairs, dim % 256 < pairs);
      seen[column] = true;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 512);
  }
}

TEST(CachedForms, KIsVWithEveryDimTurningKeepsBothParts) {
  Json config = *PresetConfig("tiny-dense");
  config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 1.0;
  const LayerPlan layer = MakeModelPlan(*ParseModelConfig(config, "t"))->layers.back();
  Random random(25);
  const RopeTable table = Table(layer.rope, kPositions);
  const auto q_raw = random.Vector(512), x = random.Vector(512);
  const auto q_norm = random.Vector(512), k_norm = random.Vector(512);
  const CachedForms forms = MakeForms(layer, layer, q_raw, x, x, q_norm, k_norm, table, 5, 4);
  const std::vector<float> key = ExplicitHead(layer, x, k_norm, table, 4);
  EXPECT_TRUE(std::equal(key.begin(), key.end(), forms.entry.begin() + 512));
  EXPECT_EQ(forms.query, ExplicitHead(layer, q_raw, q_norm, table, 5));
}

}  // namespace
}  // namespace lapidary::cpu
