#include "ops/cuda/linear/linear_wide.h"

#include <map>
#include <ostream>
#include <vector>

#include "device/test_devices.h"
#include "ops/cuda/linear/dequantise.h"
#include "ops/cuda/linear/linear_problem.h"

namespace lapidary::cuda {

static std::string Describe(const WidePlan& plan) {
  return fmt::format("tile_{}_split_{}_alone_{}_persistent_{}_parts_{}{}", plan.tile_rows,
                     plan.split, plan.alone, plan.persistent, plan.row_parts,
                     plan.scales_last ? "_scales_last" : "");
}
void PrintTo(const WidePlan& plan, std::ostream* out) { *out << Describe(plan); }

namespace {

std::vector<WidePlan> AllWidePlans() {
  std::vector<WidePlan> plans;
  for (const int tile_rows : {64, 128, 192}) {
    for (const int split : {1, 2, 4, 5, 7, 8}) {
      plans.push_back({.tile_rows = tile_rows, .split = split, .alone = split % 4 != 0});
    }
    plans.push_back({.tile_rows = tile_rows, .persistent = true});
    plans.push_back({.tile_rows = tile_rows, .row_parts = 2});
    plans.push_back({.tile_rows = tile_rows, .split = 4, .row_parts = 3});
  }
  return plans;
}

void CheckWide(LinearProblem& problem, const WidePlan& plan, int rows, int max_features) {
  SCOPED_TRACE(fmt::format("{}, {} rows", Describe(plan), rows));
  problem.RunBy(TestContext(), rows, [&](const LaunchContext& context, const LinearCall& call) {
    RunWide(context, call, plan);
  });
  problem.Check(rows, max_features, !plan.scales_last);
}

class CudaLinearWidePlanTest : public testing::TestWithParam<WidePlan> {};

TEST_P(CudaLinearWidePlanTest, EveryRowCountAgreesWithDoublePrecision) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  LinearProblem problem({.rows = kMaxWideRows, .in_dim = 520, .out_dim = 200});
  for (const int rows : {1, 9, 15, 16, 17, 33, 48, 63, 80, 81, 97, 112, 127, 128}) {
    CheckWide(problem, GetParam(), rows, 40);
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, CudaLinearWidePlanTest, testing::ValuesIn(AllWidePlans()),
                         [](const auto& plan) { return Describe(plan.param); });

TEST(CudaLinearWideTest, EveryPlanAndEpilogueAgreesWithDoublePrecision) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  uint64_t seed = 0;
  for (const Epilogue epilogue : kEpilogues) {
    // Ends of k and of tiles in every position; the last has more tiles than blocks.
    for (const auto& [in_dim, out_dim] :
         {std::pair{512, 66}, {1000, 256}, {520, 302}, {576, 2 * 7}, {512, 20000}}) {
      LinearProblem problem({.rows = 90,
                             .in_dim = in_dim,
                             .out_dim = out_dim,
                             .epilogue = epilogue,
                             .residual = out_dim == 302 ? ResidualCase::kFull : ResidualCase::kNone,
                             .seed = ++seed});
      for (const WidePlan& plan : AllWidePlans()) {
        SCOPED_TRACE(fmt::format("{} {} epilogue {}", in_dim, out_dim, static_cast<int>(epilogue)));
        for (const int rows : {13, 90}) CheckWide(problem, plan, rows, 50);
      }
    }
  }
}

// Only the split is part of the rounding, and every run has the same bits.
TEST(CudaLinearWideTest, PlansOfOneSplitGiveTheSameBits) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  LinearProblem problem(
      {.rows = 80, .in_dim = 1536, .out_dim = 2560, .epilogue = Epilogue::kGatedGelu});
  std::map<int, std::vector<float>> by_split;
  for (int turn = 0; turn < 5; ++turn) {
    for (const WidePlan& plan : AllWidePlans()) {
      SCOPED_TRACE(Describe(plan));
      problem.RunBy(TestContext(), 80, [&](const LaunchContext& context, const LinearCall& call) {
        RunWide(context, call, plan);
      });
      const auto [first, is_new] = by_split.try_emplace(plan.split, problem.Output());
      ASSERT_TRUE(is_new || SameBits(problem.Output(), first->second));
    }
  }
}

std::vector<WidePlan> AllTiledPlans() {
  std::vector<WidePlan> plans = AllWidePlans();
  std::erase_if(plans, [](const WidePlan& plan) { return plan.tile_rows != 128; });
  return plans;
}

// Rows that end within a tile, and k within a stage and, split, at every place in it.
constexpr LinearCase kTiledCases[] = {
    {.rows = 128, .in_dim = 576, .out_dim = 208},
    {.rows = 128, .in_dim = 512, .out_dim = 2 * 200, .epilogue = Epilogue::kGatedGelu},
    {.rows = 128, .in_dim = 704, .out_dim = 2816},
    {.rows = 128, .in_dim = 1088, .out_dim = 256, .epilogue = Epilogue::kGeluMul},
    {.rows = 128, .in_dim = 512, .out_dim = 20480},
    {.rows = 128, .in_dim = 1536, .out_dim = 2048, .epilogue = Epilogue::kSoftcap}};

TEST(CudaLinearWideTest, QuantisedWeightsAgreeWithDoublePrecision) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  uint64_t seed = 0;
  for (LinearCase c : kTiledCases) {
    for (const DType stored : {DType::kQ4_0, DType::kQ8_0}) {
      for (const ScaleType scales : {ScaleType::kF16, ScaleType::kBF16}) {
        c.stored = stored;
        c.scales = scales;
        c.seed = ++seed;
        LinearProblem problem(c);
        for (const WidePlan& plan : AllTiledPlans()) {
          SCOPED_TRACE(c.Name());
          for (const int rows : {1, 9, 16, 31, 64, 65, 80, 97, 128}) {
            CheckWide(problem, plan, rows, 40);
          }
          WidePlan tall = plan;
          tall.tile_rows = kTallWideRows;
          for (const int rows : {17, 31, 40, 64}) {
            if (plan.row_parts == 1) CheckWide(problem, tall, rows, 40);
          }
          WidePlan scales_last = plan;
          scales_last.scales_last = true;
          for (const int rows : {1, 9, 16}) {
            CheckWide(problem, scales_last, rows, 40);
          }
        }
      }
    }
  }
}

TEST(CudaLinearWideTest, QuantisedWeightsGiveTheBitsOfDequantisedOnes) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  for (LinearCase c : kTiledCases) {
    for (const DType stored : {DType::kQ4_0, DType::kQ8_0}) {
      for (const ScaleType scales : {ScaleType::kF16, ScaleType::kBF16}) {
        c.stored = stored;
        c.scales = scales;
        LinearProblem problem(c);
        TestBuffer<bf16> dequantised(size_t(c.in_dim) * c.out_dim);
        for (const WidePlan& plan : AllTiledPlans()) {
          SCOPED_TRACE(c.Name() + " " + Describe(plan));
          const auto result = [&](int rows, int tile_rows, bool before) {
            problem.RunBy(TestContext(), rows,
                          [&](const LaunchContext& context, const LinearCall& call) {
                            LinearCall run = call;
                            LaunchContext after = context;
                            if (before) {
                              RunDequantise(context, call.weight, dequantised.get());
                              run.weight = Bf16Matrix(dequantised.get(), c.out_dim, c.in_dim);
                              after.dependent = false;
                            }
                            WidePlan of_rows = plan;
                            of_rows.tile_rows = tile_rows;
                            RunWide(after, run, of_rows);
                          });
            return problem.OutputRows(rows);
          };
          ASSERT_TRUE(SameBits(result(100, 128, false), result(100, 128, true)));
          if (plan.row_parts > 1) continue;
          ASSERT_TRUE(SameBits(result(50, kTallWideRows, false), result(50, 128, true)));
        }
      }
    }
  }
}

// What PlanWide and PlanInvariant decide, without a GPU: on cards of either size.
class WidePlannerTest : public testing::TestWithParam<DeviceInfo> {
 protected:
  const DeviceInfo& device_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Cards, WidePlannerTest, testing::Values(TestH200(), TestSmallerCard()));

constexpr int kInDims[] = {8, 64, 72, 256, 1536, 2816, 12288, 21504};
constexpr int kOutDims[] = {1, 64, 256, 1536, 2560, 24576, 262144};

// Every model's shapes have a plan that fits them, and all blocks of one that keeps them apart run
// at once.
TEST_P(WidePlannerTest, ChosenPlansFitTheWeightAndTheCard) {
  for (const int in_dim : kInDims) {
    for (const int out_dim : kOutDims) {
      for (const int rows : {9, 16, 80, 128}) {
        SCOPED_TRACE(fmt::format("{} {} {}", in_dim, out_dim, rows));
        const WidePlan plan =
            PlanWide(device_, {.weight = Bf16Matrix(nullptr, out_dim, in_dim), .rows = rows});
        EXPECT_LE(plan.split, (in_dim + 63) / 64);
        EXPECT_TRUE(plan.split == 1 || !plan.persistent);
        if (!plan.alone) continue;
        const int num_tiles = (out_dim + plan.tile_rows - 1) / plan.tile_rows;
        EXPECT_LE(num_tiles * plan.split, device_.cluster_blocks[plan.split]);
      }
    }
  }
}

TEST_P(WidePlannerTest, InvariantPlansSplitByTheWeightAlone) {
  for (const int in_dim : kInDims) {
    for (const int out_dim : kOutDims) {
      const auto plan_for = [&](int rows) {
        return PlanInvariant(device_,
                             {.weight = Bf16Matrix(nullptr, out_dim, in_dim), .rows = rows});
      };
      const int split = plan_for(1).split;
      EXPECT_LE(split, (in_dim + 63) / 64) << in_dim << " " << out_dim;
      for (const int rows : {2, 8, 9, 64, 80, 128, 129, 300, 8192}) {
        const WidePlan plan = plan_for(rows);
        EXPECT_EQ(plan.split, split) << in_dim << " " << out_dim << " " << rows;
        EXPECT_TRUE(plan.split == 1 || !plan.persistent);
        EXPECT_GE(plan.row_parts * kMaxWideRows, rows);
      }
    }
  }
}

// Whatever the number of rows, the sum of a quantised weight is split as of one in bf16: so both
// have the same bits.
TEST_P(WidePlannerTest, QuantisedWeightsAreSplitAsOthersAre) {
  const WeightFormat tiles = TileFormatFor(FormatOf(DType::kQ4_0)).value();
  for (const int in_dim : {64, 256, 704, 1536, 2816, 21504}) {
    for (const int out_dim : {64, 256, 1536, 2560, 24576}) {
      for (const int rows : {1, 9, 80, 128}) {
        const MatrixRef bf16_weight = Bf16Matrix(nullptr, out_dim, in_dim);
        MatrixRef weight = bf16_weight;
        weight.format = tiles;
        const WidePlan plan = PlanInvariant(device_, {.weight = weight, .rows = rows});
        EXPECT_EQ(plan.split, PlanInvariant(device_, {.weight = bf16_weight, .rows = 300}).split);
        EXPECT_EQ(plan.tile_rows, 128);
        const WidePlan fastest = PlanWide(device_, {.weight = weight, .rows = rows});
        EXPECT_TRUE(fastest.tile_rows == 128 || (fastest.tile_rows == kTallWideRows &&
                                                 rows >= kFewestTallRows && rows <= kMostTallRows));
        EXPECT_LE(fastest.split, in_dim / 64);
        EXPECT_FALSE(fastest.persistent);
      }
    }
  }
}

// 128 tiles of 192 rows: a card with an SM for each takes them at once, a smaller one in turns.
TEST(WidePlannerCardsTest, ACardWithFewerSmsTakesAnotherPlan) {
  const LinearCall call{.weight = Bf16Matrix(nullptr, 24576, 1536), .rows = 80};
  EXPECT_TRUE(PlanWide(TestH200(), call).alone);
  EXPECT_FALSE(PlanWide(TestSmallerCard(), call).alone);
  const LinearCall gated{.weight = Bf16Matrix(nullptr, 128 * 250, 1536),
                         .rows = 128,
                         .epilogue = Epilogue::kGatedGelu};
  EXPECT_TRUE(WideIsWorthwhile(TestH200(), gated));
  EXPECT_FALSE(WideIsWorthwhile(TestSmallerCard(), gated));
}

}  // namespace
}  // namespace lapidary::cuda
