// Routing and experts against the CPU operations in f32.
#include "ops/cpu/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>

#include "base/thread_pool.h"
#include "ops/cpu/elementwise.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/test_buffer.h"
#include "ops/cuda/test_values.h"

namespace lapidary::cuda {
namespace {

constexpr float kEps = 1e-6f;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Choices = std::vector<cpu::ExpertChoice>;  // [rows, top_k]

// Random weights and rows of one layer, on the host and on the device.
class Layer {
 public:
  // Experts from first_unused on have NaN for weights and are never to be chosen.
  Layer(const MoeShape& shape, int first_unused)
      : shape_(shape),
        h_(Floats(Rows(shape.hidden), 2.0f)),
        router_scale_(Floats(shape.hidden, 0.3f, 0.9f)),
        router_(Halves(size_t(shape.num_experts) * shape.hidden, 3.0f)),
        expert_scale_(Floats(shape.num_experts, 0.3f, 0.9f)),
        pre_norm_(Floats(shape.hidden, 0.5f, 1.0f)),
        dense_norm_(Floats(shape.hidden, 0.5f, 1.0f)),
        expert_norm_(Floats(shape.hidden, 0.5f, 1.0f)),
        gate_up_(Halves(size_t(shape.num_experts) * 2 * shape.width * shape.hidden,
                        1.7f / std::sqrt(static_cast<float>(shape.hidden)))),
        down_(Halves(size_t(shape.num_experts) * shape.hidden * shape.width,
                     1.7f / std::sqrt(static_cast<float>(shape.hidden)))),
        dense_(Halves(Rows(shape.hidden), 1.0f)) {
    const bf16 nan = __float2bfloat16(kNan);
    std::fill(gate_up_.begin() + int64_t{first_unused} * 2 * shape.width * shape.hidden,
              gate_up_.end(), nan);
    std::fill(down_.begin() + int64_t{first_unused} * shape.hidden * shape.width, down_.end(), nan);
    d_h_.Upload(h_);
    d_scale_.Upload(router_scale_);
    d_router_.Upload(router_);
    d_expert_scale_.Upload(expert_scale_);
    d_pre_.Upload(pre_norm_);
    d_dense_norm_.Upload(dense_norm_);
    d_expert_norm_.Upload(expert_norm_);
    d_gate_up_.Upload(gate_up_);
    d_down_.Upload(down_);
    normed_.resize(Rows(shape.hidden));
    for (int row = 0; row < shape.rows; ++row) {
      cpu::RmsNorm(h_.data() + At(row), pre_norm_.data(), kEps, shape.hidden,
                   normed_.data() + At(row));
    }
  }

  struct Result {
    std::vector<int32_t> experts;
    std::vector<float> weights;
    std::vector<bf16> out;
  };

  // The first `rows` rows on the device; with `forced`, by that choice instead of the router's.
  Result Run(int rows, const Choices* forced = nullptr) {
    MoeShape shape = shape_;
    shape.rows = rows;
    return Run(rows, PlanGroups(shape), forced);
  }
  Result Run(int rows, const GroupPlan& plan, const Choices* forced) {
    MoeShape shape = shape_;
    shape.rows = rows;
    const size_t assignments = size_t(rows) * shape.top_k;
    TestBuffer<int32_t> experts(assignments);
    TestBuffer<float> weights(assignments);
    TestBuffer<bf16> x(size_t(rows) * shape.hidden);
    TestBuffer<bf16> out(std::vector<bf16>(dense_.begin(), dense_.begin() + At(rows)));
    TestBuffer<std::byte> scratch(ExpertScratchBytes(shape));
    TestBuffer<int32_t> counters(std::vector<int32_t>(kRouteCounters, 0));
    RouteCall route;
    route.shape = shape;
    route.plan = plan;
    route.eps = kEps;
    route.h = d_h_.get();
    route.router_scale = d_scale_.get();
    route.router_weight = Bf16Matrix(d_router_.get(), shape.num_experts, shape.hidden);
    route.per_expert_scale = d_expert_scale_.get();
    route.pre_norm = d_pre_.get();
    route.experts = experts.get();
    route.weights = weights.get();
    route.x = x.get();
    route.scratch = scratch.get();
    route.counters = counters.get();
    RunRoute(TestContext(), route);
    if (forced != nullptr) {
      std::vector<int32_t> forced_experts;
      std::vector<float> forced_weights;
      for (size_t idx = 0; idx < assignments; ++idx) {
        forced_experts.push_back((*forced)[idx].expert);
        forced_weights.push_back((*forced)[idx].weight);
      }
      experts.Upload(forced_experts);
      weights.Upload(forced_weights);
      scratch.Poison();
      RunGroupRows(TestContext(), shape, plan, experts.get(), scratch.get());
    }
    ExpertsCall call;
    call.shape = shape;
    call.plan = plan;
    call.eps = kEps;
    call.experts = experts.get();
    call.weights = weights.get();
    call.x = x.get();
    call.gate_up = Bf16Matrix(d_gate_up_.get(), shape.num_experts * 2 * shape.width, shape.hidden);
    call.down = Bf16Matrix(d_down_.get(), shape.num_experts * shape.hidden, shape.width);
    call.post_dense_norm = d_dense_norm_.get();
    call.post_expert_norm = d_expert_norm_.get();
    call.block_out = out.get();
    call.scratch = scratch.get();
    RunExperts(TestContext(), call);
    EXPECT_EQ(counters.Download(), std::vector<int32_t>(kRouteCounters, 0));
    Result result{experts.Download(), weights.Download(), out.Download()};
    EXPECT_TRUE(experts.GuardsIntact() && weights.GuardsIntact() && x.GuardsIntact() &&
                out.GuardsIntact() && scratch.GuardsIntact() && counters.GuardsIntact());
    return result;
  }

  // The CPU's choice; where the device took another expert, that must be a near tie.
  Choices CheckedChoices(const Result& result) {
    const std::vector<float> router = ToFloat(router_);
    Choices choices(result.experts.size());
    std::vector<float> input(shape_.hidden);
    int num_others = 0;
    float largest_gap = 0.0f;
    std::vector<float> logits(shape_.num_experts);
    for (int row = 0; row < shape_.rows; ++row) {
      cpu::MakeRouterInput(h_.data() + At(row), router_scale_, kEps, input.data());
      for (int expert = 0; expert < shape_.num_experts; ++expert) {
        logits[expert] =
            std::inner_product(input.begin(), input.end(), router.begin() + At(expert), 0.0f);
      }
      std::vector<float> left = logits;
      const size_t first = size_t(row) * shape_.top_k;
      cpu::RouteRow(left, expert_scale_,
                    {choices.data() + first, static_cast<size_t>(shape_.top_k)});
      for (size_t at = first; at < first + shape_.top_k; ++at) {
        const int expert = result.experts[at];
        const float gap = std::abs(logits[expert] - logits[choices[at].expert]);
        EXPECT_LE(gap, 1e-4) << row;
        if (expert != choices[at].expert) {
          ++num_others;
          largest_gap = std::max(largest_gap, gap);
        }
        if (expert == choices[at].expert) {
          EXPECT_NEAR(result.weights[at], choices[at].weight, 1e-4);
        }
        choices[at] = {expert, result.weights[at]};
      }
    }
    if (num_others > 0) {
      std::printf("%d of %zu choices are others than the CPU's: logits at most %.1e apart\n",
                  num_others, choices.size(), largest_gap);
    }
    return choices;
  }

  std::vector<float> Expected(const Choices& choices) {
    ThreadPool threads(2);
    const MatrixRef gate_up =
        Bf16Matrix(gate_up_.data(), shape_.num_experts * 2 * shape_.width, shape_.hidden);
    const MatrixRef down =
        Bf16Matrix(down_.data(), shape_.num_experts * shape_.hidden, shape_.width);
    cpu::ExpertScratch scratch;
    std::vector<float> sums(Rows(shape_.hidden));
    cpu::RunExperts(gate_up, down, shape_.top_k, normed_.data(), shape_.rows, choices, scratch,
                    sums.data(), threads);
    std::vector<float> expected = ToFloat(dense_);
    for (int row = 0; row < shape_.rows; ++row) {
      float* to = expected.data() + At(row);
      cpu::RmsNorm(to, dense_norm_.data(), kEps, shape_.hidden, to);
      cpu::AddRmsNorm(sums.data() + At(row), expert_norm_.data(), kEps, shape_.hidden, 1.0f, to);
    }
    return expected;
  }

  // Fills a row of h with NaN.
  void SpoilRow(int row) {
    std::fill_n(h_.begin() + At(row), shape_.hidden, kNan);
    d_h_.Upload(h_);
  }

  size_t At(int row) const { return size_t(row) * shape_.hidden; }

 private:
  size_t Rows(int columns) const { return size_t(shape_.rows) * columns; }
  std::vector<float> Floats(size_t count, float amplitude, float centre = 0.0f) {
    return RandomFloats(random_, count, amplitude, centre);
  }
  std::vector<bf16> Halves(size_t count, float amplitude) {
    // A long vector repeats itself after a prime number of values: drawing all takes seconds.
    constexpr size_t kPeriod = 1000003;
    std::vector<bf16> halves;
    halves.reserve(count);
    for (const float value : Floats(std::min(count, kPeriod), amplitude)) {
      halves.push_back(__float2bfloat16(value));
    }
    while (halves.size() < count) halves.push_back(halves[halves.size() - kPeriod]);
    return halves;
  }
  std::mt19937 random_{3};
  MoeShape shape_;
  std::vector<float> h_, router_scale_;
  std::vector<bf16> router_;
  std::vector<float> expert_scale_, pre_norm_, dense_norm_, expert_norm_;
  std::vector<bf16> gate_up_, down_, dense_;
  std::vector<float> normed_;
  TestBuffer<float> d_h_{h_.size()}, d_scale_{router_scale_.size()},
      d_expert_scale_{expert_scale_.size()}, d_pre_{pre_norm_.size()},
      d_dense_norm_{dense_norm_.size()}, d_expert_norm_{expert_norm_.size()};
  TestBuffer<bf16> d_router_{router_.size()}, d_gate_up_{gate_up_.size()}, d_down_{down_.size()};
};

class MoeTest : public testing::Test {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }

  // All rows match the reference, and any first rows of them alone have the same bits.
  static void CheckRowCounts(Layer& layer, const MoeShape& shape, const std::vector<int>& counts,
                             const Choices* forced = nullptr) {
    const Layer::Result all = layer.Run(shape.rows, forced);
    const Choices choices = forced != nullptr ? *forced : layer.CheckedChoices(all);
    const std::vector<float> expected = layer.Expected(choices);
    EXPECT_LT(Distance(ToFloat(all.out), expected), 1e-2);
    for (const int rows : counts) {
      const Layer::Result some = layer.Run(rows, forced);
      const auto starts_as = [](const auto& part, const auto& whole) {
        return std::memcmp(part.data(), whole.data(), part.size() * sizeof(part[0])) == 0;
      };
      EXPECT_TRUE(starts_as(some.experts, all.experts)) << rows;
      EXPECT_TRUE(starts_as(some.weights, all.weights)) << rows;
      EXPECT_TRUE(starts_as(some.out, all.out)) << rows;
      EXPECT_LT(Distance(ToFloat(some.out), expected), 1e-2) << rows;
    }
  }

  static std::vector<int> UpTo(int last) {
    std::vector<int> counts(last);
    std::iota(counts.begin(), counts.end(), 1);
    return counts;
  }
};

TEST_F(MoeTest, EveryNumberOfRowsMatchesAndHasTheSameBits) {
  for (const MoeShape& shape : {MoeShape{300, 80, 48, 16, 4}, MoeShape{270, 96, 40, 6, 3},
                                MoeShape{300, 1560, 712, 20, 2}, MoeShape{260, 6152, 72, 8, 2}}) {
    Layer layer(shape, shape.num_experts);
    CheckRowCounts(layer, shape, UpTo(130));
    CheckRowCounts(layer, shape, {255, 256, 257});
  }
}

TEST_F(MoeTest, ManyRowsMatchAndHaveTheSameBits) {
  for (const MoeShape& shape : {MoeShape{1100, 88, 56, 10, 3}, MoeShape{900, 320, 136, 5, 2}}) {
    Layer layer(shape, shape.num_experts);
    CheckRowCounts(layer, shape, {1, 128, 129, 600, 767, 768, 769, 800});
  }
}

TEST_F(MoeTest, ThousandsOfRowsMatchAndHaveTheSameBits) {
  const MoeShape shape{4700, 96, 40, 6, 3};
  Layer layer(shape, shape.num_experts);
  CheckRowCounts(layer, shape, {1, 769, 2113, 3200, 3201, 4224, 4225});
}

TEST_F(MoeTest, TheModelsShapeMatchesAndHasTheSameBits) {
  const MoeShape shape{780, 2816, 704, 128, 8};
  Layer layer(shape, shape.num_experts);
  CheckRowCounts(layer, shape, {1, 2, 7, 8, 9, 16, 17, 32, 80, 128, 129, 200, 300, 768});
}

TEST_F(MoeTest, EveryPlanHasTheSameBits) {
  using Kernel = GroupPlan::Kernel;
  for (const MoeShape& shape : {MoeShape{900, 320, 136, 5, 2}, MoeShape{700, 88, 56, 10, 3},
                                MoeShape{260, 2816, 704, 16, 2}}) {
    Layer layer(shape, shape.num_experts);
    for (const int rows : {1, 16, 33, 77, 120, 150, 200, 250, shape.rows}) {
      const Layer::Result usual = layer.Run(rows);
      for (const GroupPlan& plan :
           {GroupPlan{Kernel::kPortable, 16}, GroupPlan{Kernel::kPortable, 64},
            GroupPlan{Kernel::kPortable, 128}, GroupPlan{Kernel::kHopper, 64},
            GroupPlan{Kernel::kHopper, 160}, GroupPlan{Kernel::kHopper, 160, true}}) {
        const Layer::Result result = layer.Run(rows, plan, nullptr);
        EXPECT_EQ(
            std::memcmp(result.out.data(), usual.out.data(), result.out.size() * sizeof(bf16)), 0)
            << rows << " rows, " << plan.rows << " in a group";
      }
    }
  }
}

TEST_F(MoeTest, AllRowsMayChooseTheSameExpertsAndOthersAreNotRead) {
  const MoeShape shape{300, 160, 104, 12, 3};
  constexpr int kFirstUnused = 5;
  Layer layer(shape, kFirstUnused);
  Choices choices;
  for (int row = 0; row < shape.rows; ++row) {
    choices.push_back({4, 0.5f});
    choices.push_back({0, 0.3f});
    choices.push_back({row % 70 == 3 ? 3 : 1, 0.2f});
  }
  std::vector<int> counts = UpTo(130);
  counts.push_back(256);
  counts.push_back(257);
  CheckRowCounts(layer, shape, counts, &choices);
}

TEST_F(MoeTest, ARowWithNanLeavesTheOthersAlone) {
  for (const int rows : {1, 5, 40, 200, 300}) {
    const MoeShape shape{rows, 96, 40, 6, 3};
    Layer layer(shape, shape.num_experts);
    const Layer::Result before = layer.Run(rows);
    layer.SpoilRow(rows / 2);
    const Layer::Result after = layer.Run(rows);
    for (int row = 0; row < rows; ++row) {
      const bool same =
          std::memcmp(before.out.data() + layer.At(row), after.out.data() + layer.At(row),
                      shape.hidden * sizeof(bf16)) == 0;
      EXPECT_EQ(same, row != rows / 2) << rows << " rows, row " << row;
    }
    // Even then the choice is of experts that exist, each once.
    for (int rank = 0; rank < shape.top_k; ++rank) {
      EXPECT_EQ(after.experts[size_t(rows / 2) * shape.top_k + rank], rank);
    }
  }
}

}  // namespace
}  // namespace lapidary::cuda
