#include "ops/cuda/linear/linear_large.h"

#include <ostream>

#include "device/test_devices.h"
#include "ops/cuda/linear/linear_large_tiles.h"
#include "ops/cuda/linear/linear_problem.h"

namespace lapidary::cuda {

static std::string Describe(const LargePlan& plan) {
  return fmt::format("tile_{}_columns_{}_split_{}", plan.tile_rows, plan.columns, plan.split);
}
void PrintTo(const LargePlan& plan, std::ostream* out) { *out << Describe(plan); }

namespace {

constexpr Epilogue kLargeEpilogues[] = {Epilogue::kStore, Epilogue::kGatedGelu, Epilogue::kGeluMul};

std::vector<LargePlan> SomeLargePlans() {
  std::vector<LargePlan> plans;
  for (const int tile_rows : {128, 256}) {
    for (int columns = kMinLargeColumns; columns <= kMaxLargeColumns; columns += 16) {
      for (const int split : {1, 2, 3, 4, 8}) {
        if (split > 1 && !LargeSplitFits(tile_rows / kLargeBoxRows, columns, split)) continue;
        plans.push_back({tile_rows, columns, split});
      }
    }
  }
  return plans;
}

void CheckLarge(LinearProblem& problem, const LargePlan& plan, int rows, int max_features) {
  SCOPED_TRACE(fmt::format("{}, {} rows", Describe(plan), rows));
  problem.RunBy(TestContext(), rows, [&](const LaunchContext& context, const LinearCall& call) {
    RunLarge(context, call, plan);
  });
  problem.Check(rows, max_features);
}

TEST(CudaLinearLargeTest, EveryPlanAndEpilogueAgreesWithDoublePrecision) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  uint64_t seed = 0;
  for (const Epilogue epilogue : kLargeEpilogues) {
    // Ends of k and of tiles in every position.
    for (const auto& [in_dim, out_dim] : {std::pair{520, 304}, {1000, 48}, {576, 528}}) {
      LinearProblem problem({.rows = 430,
                             .in_dim = in_dim,
                             .out_dim = out_dim,
                             .epilogue = epilogue,
                             .seed = ++seed});
      for (const LargePlan& plan : SomeLargePlans()) {
        SCOPED_TRACE(fmt::format("{} {} epilogue {}", in_dim, out_dim, static_cast<int>(epilogue)));
        for (const int rows : {129, 430}) CheckLarge(problem, plan, rows, 12);
      }
    }
  }
}

// More tiles than blocks, so that a ring goes on from tile to tile.
TEST(CudaLinearLargeTest, ManyTilesAgreeWithDoublePrecision) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  for (const Epilogue epilogue : kLargeEpilogues) {
    LinearProblem problem(
        {.rows = 700, .in_dim = 776, .out_dim = 40000, .epilogue = epilogue, .seed = 7});
    for (const LargePlan& plan :
         {LargePlan{128, 112, 1}, LargePlan{128, 208, 1}, LargePlan{256, 144, 1},
          LargePlan{256, 208, 1}, LargePlan{256, 208, 3}}) {
      CheckLarge(problem, plan, 700, 12);
    }
  }
}

TEST(CudaLinearLargeTest, TheSameCallGivesTheSameBits) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  LinearProblem problem(
      {.rows = 400, .in_dim = 2048, .out_dim = 2560, .epilogue = Epilogue::kGatedGelu});
  for (const int split : {1, 4}) {
    std::vector<float> first;
    for (int turn = 0; turn < 10; ++turn) {
      problem.RunBy(TestContext(nullptr, turn % 2 == 0), 400,
                    [&](const LaunchContext& context, const LinearCall& call) {
                      RunLarge(context, call, {256, 208, split});
                    });
      if (turn == 0) first = problem.Output();
      ASSERT_TRUE(SameBits(problem.Output(), first)) << "split " << split;
    }
  }
}

// What PlanLarge decides, without a GPU: on cards of either size.
class LargePlannerTest : public testing::TestWithParam<DeviceInfo> {
 protected:
  const DeviceInfo& device_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Cards, LargePlannerTest, testing::Values(TestH200(), TestSmallerCard()));

TEST_P(LargePlannerTest, PlansFitTheWeightTheRowsAndTheCard) {
  for (const int in_dim : {8, 64, 72, 256, 1536, 2816, 12288, 21504}) {
    for (const int out_dim : {8, 64, 256, 1536, 2560, 24576, 262144}) {
      for (const int rows : {129, 160, 207, 209, 320, 400, 512, 777, 1024}) {
        SCOPED_TRACE(fmt::format("{} {} {}", in_dim, out_dim, rows));
        const LinearCall call{.weight = Bf16Matrix(nullptr, out_dim, in_dim), .rows = rows};
        ASSERT_TRUE(LargeFits(call));
        const LargePlan plan = PlanLarge(device_, call).plan;
        EXPECT_TRUE(plan.tile_rows == 128 || plan.tile_rows == 256);
        EXPECT_TRUE(plan.columns % 16 == 0 && plan.columns >= kMinLargeColumns &&
                    plan.columns <= kMaxLargeColumns);
        EXPECT_LE(plan.split, (in_dim + 63) / 64);
        if (plan.split == 1) continue;
        EXPECT_TRUE(LargeSplitFits(plan.tile_rows / kLargeBoxRows, plan.columns, plan.split));
        const int tiles = (out_dim + plan.tile_rows - 1) / plan.tile_rows *
                          ((rows + plan.columns - 1) / plan.columns);
        EXPECT_LE(tiles * plan.split, device_.cluster_blocks[plan.split]);
      }
    }
  }
}

TEST(LargePlannerCardsTest, CallsThatDoNotComeInGroupsOfEightDoNotFit) {
  const auto fits = [](int out_dim, int rows, Epilogue epilogue) {
    return LargeFits(
        {.weight = Bf16Matrix(nullptr, out_dim, 64), .rows = rows, .epilogue = epilogue});
  };
  EXPECT_TRUE(fits(264, 200, Epilogue::kStore));
  EXPECT_FALSE(fits(260, 200, Epilogue::kStore));
  EXPECT_FALSE(fits(264, 200, Epilogue::kGatedGelu));
  EXPECT_TRUE(fits(272, 200, Epilogue::kGatedGelu));
  EXPECT_FALSE(fits(264, 80, Epilogue::kStore));
  EXPECT_FALSE(fits(264, 200, Epilogue::kSoftcap));
  EXPECT_FALSE(fits(264, kMaxLargeRows + 1, Epilogue::kStore));
}

// 12B's q, k and v of 400 rows are 128 tiles for 132 SMs, E4B's q 32: those are left to cuBLASLt.
TEST(LargePlannerCardsTest, WhatKeepsACardBusyIsWorthwhile) {
  const auto is_worthwhile = [](int out_dim, int in_dim, int rows, Epilogue epilogue) {
    return LargeIsWorthwhile(
        TestH200(),
        {.weight = Bf16Matrix(nullptr, out_dim, in_dim), .rows = rows, .epilogue = epilogue});
  };
  EXPECT_TRUE(is_worthwhile(8192, 3840, 400, Epilogue::kStore));
  EXPECT_FALSE(is_worthwhile(2048, 2560, 400, Epilogue::kStore));
  EXPECT_TRUE(is_worthwhile(4224, 2816, 160, Epilogue::kGatedGelu));
  EXPECT_FALSE(is_worthwhile(8192, 3840, 128, Epilogue::kStore));
}

// Groups of columns of a split: all of them, each once.
TEST(LargePlannerCardsTest, BlocksOfASplitFinishEveryColumnOnce) {
  for (int groups = kMinLargeColumns / 8; groups <= kMaxLargeColumns / 8; ++groups) {
    for (int split = 1; split <= 8; ++split) {
      EXPECT_EQ(LargeFirstGroup(groups, split, 0), 0);
      EXPECT_EQ(LargeFirstGroup(groups, split, split), groups);
      for (int rank = 0; rank < split; ++rank) {
        const int count =
            LargeFirstGroup(groups, split, rank + 1) - LargeFirstGroup(groups, split, rank);
        EXPECT_GE(count, 1);
        EXPECT_LE(count, (groups + split - 1) / split);
      }
    }
  }
}

}  // namespace
}  // namespace lapidary::cuda
