#include "ops/cuda/linear/linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "device/test_devices.h"
#include "ops/cuda/linear/linear_problem.h"
#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_wide.h"

namespace lapidary::cuda {
namespace {

// Both modes of the runner.
class CudaLinearTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    LAPIDARY_SKIP_WITHOUT_GPU();
    runner_ = std::make_unique<LinearRunner>(LinearOptions{
        .batch_invariant = GetParam(), .max_rows = 4096, .dequantised_bytes = int64_t{256} << 20});
    LAPIDARY_CUDA_CHECK(cudaStreamCreate(&stream_));
  }
  void TearDown() override {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  LaunchContext Context(bool dependent = true) const { return TestContext(stream_, dependent); }

  void Check(const LinearCase& c, int max_features = 200) {
    SCOPED_TRACE(c.Name());
    LinearProblem problem(c);
    problem.Run(*runner_, Context(), c.rows);
    problem.Check(c.rows, max_features, GetParam() || c.rows > kMaxScaledLastRows);
  }

  std::unique_ptr<LinearRunner> runner_;
  cudaStream_t stream_ = nullptr;
};

TEST_P(CudaLinearTest, EveryRowCountAgreesWithDoublePrecision) {
  for (int rows = 1; rows <= 40; ++rows) {
    Check({.rows = rows, .in_dim = 200, .out_dim = 77, .seed = uint64_t(rows)});
  }
  for (const int rows : {63, 64, 65, 127, 128, 129, 257, 1000}) {
    Check({.rows = rows, .in_dim = 264, .out_dim = 136, .seed = uint64_t(rows)});
  }
}

TEST_P(CudaLinearTest, OddOutputAndTinyInputSizesAgreeWithDoublePrecision) {
  for (const int in_dim :
       {8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 120, 128, 136, 520, 1000, 1032}) {
    for (const int out_dim : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100}) {
      for (const int rows : {1, 5, 19}) Check({.rows = rows, .in_dim = in_dim, .out_dim = out_dim});
    }
  }
}

TEST_P(CudaLinearTest, EveryEpilogueAndResidualUpdateAgreesWithDoublePrecision) {
  uint64_t seed = 0;
  for (const Epilogue epilogue : kEpilogues) {
    for (const ResidualCase residual : kResidualCases) {
      for (const int rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 100}) {
        for (const int in_dim : {40, 1536, 2568}) {
          Check({.rows = rows,
                 .in_dim = in_dim,
                 .out_dim = 90,
                 .epilogue = epilogue,
                 .residual = residual,
                 .seed = ++seed});
        }
      }
    }
  }
  Check({.rows = 3, .in_dim = 1536, .out_dim = 500, .epilogue = Epilogue::kSoftcap, .softcap = 0});
}

constexpr DType kQuantised[] = {DType::kQ4_0, DType::kQ8_0};

TEST_P(CudaLinearTest, QuantisedWeightsOfEveryShapeAgreeWithDoublePrecision) {
  uint64_t seed = 100;
  for (const DType stored : kQuantised) {
    for (const int in_dim : {64, 128, 192, 320, 448, 512, 704, 1536, 2112, 2560, 6144}) {
      for (const int out_dim : {8, 16, 24, 40, 200}) {
        for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
          Check({.rows = rows,
                 .in_dim = in_dim,
                 .out_dim = out_dim,
                 .seed = ++seed,
                 .stored = stored});
        }
      }
    }
  }
}

TEST_P(CudaLinearTest, QuantisedWeightsWithEveryEpilogueAgreeWithDoublePrecision) {
  uint64_t seed = 200;
  for (const DType stored : kQuantised) {
    for (const Epilogue epilogue : kEpilogues) {
      for (const ResidualCase residual : kResidualCases) {
        for (const int rows : {1, 2, 4, 8, 9, 17, 100}) {
          for (const int in_dim : {64, 1536}) {
            Check({.rows = rows,
                   .in_dim = in_dim,
                   .out_dim = 112,
                   .epilogue = epilogue,
                   .residual = residual,
                   .seed = ++seed,
                   .stored = stored});
          }
        }
      }
    }
  }
}

// Where most products are far beyond the cap, tanh must saturate.
TEST_P(CudaLinearTest, SmallSoftcapSaturates) {
  Check(
      {.rows = 3, .in_dim = 512, .out_dim = 300, .epilogue = Epilogue::kSoftcap, .softcap = 0.01f});
  Check({.rows = 50,
         .in_dim = 512,
         .out_dim = 300,
         .epilogue = Epilogue::kSoftcap,
         .softcap = 0.01f});
}

TEST_P(CudaLinearTest, ModelShapesAgreeWithDoublePrecision) {
  struct Shape {
    int in_dim, out_dim;
    Epilogue epilogue;
    bool residual;
  };
  const Shape shapes[] = {
      {1536, 2560, Epilogue::kStore, true},      {1536, 5120, Epilogue::kStore, true},
      {2048, 1536, Epilogue::kStore, false},     {4096, 1536, Epilogue::kStore, false},
      {1536, 12288, Epilogue::kGatedGelu, true}, {6144, 1536, Epilogue::kStore, false},
      {12288, 1536, Epilogue::kStore, false},    {1536, 256, Epilogue::kGeluMul, true},
      {256, 1536, Epilogue::kStore, false},      {1536, 65539, Epilogue::kSoftcap, true},
      {2560, 20480, Epilogue::kGatedGelu, true}, {10240, 2560, Epilogue::kStore, false},
      {3840, 8192, Epilogue::kStore, true},      {15360, 3840, Epilogue::kStore, false},
      {2816, 4224, Epilogue::kGatedGelu, true},  {2112, 2816, Epilogue::kStore, false},
      {5376, 10752, Epilogue::kGatedGelu, true}, {21504, 1344, Epilogue::kStore, false},
  };
  for (const Shape& shape : shapes) {
    const LinearCase c{.rows = 80,
                       .in_dim = shape.in_dim,
                       .out_dim = shape.out_dim,
                       .epilogue = shape.epilogue,
                       .residual = shape.residual ? ResidualCase::kFull : ResidualCase::kNone,
                       .seed = uint64_t(shape.out_dim)};
    for (const DType stored : {DType::kBF16, DType::kQ4_0, DType::kQ8_0}) {
      if (shape.out_dim % 8 != 0 && stored != DType::kBF16) continue;
      LinearCase with_format = c;
      with_format.stored = stored;
      LinearProblem problem(with_format);
      for (const int rows : {1, 4, 7, 16, 32, 80}) {
        SCOPED_TRACE(fmt::format("{}: the first {}", with_format.Name(), rows));
        problem.Run(*runner_, Context(), rows);
        problem.Check(rows, 24);
      }
    }
  }
}

// The product of 2,500 rows exceeds the scratch and is computed in parts.
TEST_P(CudaLinearTest, GatedProductLargerThanTheScratchIsRight) {
  Check({.rows = 2500, .in_dim = 64, .out_dim = 2 * 32000, .epilogue = Epilogue::kGatedGelu}, 12);
}

TEST_P(CudaLinearTest, RowsDoNotDependOnTheirNumber) {
  const bool batch_invariant = GetParam();
  const int max_rows = batch_invariant ? 300 : 8;
  struct Shape {
    int in_dim, out_dim;
    DType stored = DType::kBF16;
  };
  for (const auto& [in_dim, out_dim, stored] : {Shape{1536, 2560},
                                                {2048, 1536},
                                                {40, 33},
                                                {6144, 200},
                                                {2560, 1024},
                                                {21504, 64},
                                                {1536, 2560, DType::kQ4_0},
                                                {6144, 208, DType::kQ4_0},
                                                {21504, 64, DType::kQ8_0}}) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGatedGelu}) {
      LinearCase c{.rows = max_rows,
                   .in_dim = in_dim,
                   .out_dim = out_dim & ~1,
                   .epilogue = epilogue,
                   .residual = in_dim <= 2560 ? ResidualCase::kFull : ResidualCase::kNone,
                   .stored = stored};
      SCOPED_TRACE(c.Name());
      LinearProblem problem(c);
      problem.Run(*runner_, Context(), max_rows);
      const std::vector<float> all = problem.OutputRows(max_rows);
      for (const int rows :
           {1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 31, 32, 33, 64, 65, 127, 129, 255, 257, 299}) {
        if (rows >= max_rows) break;
        problem.Run(*runner_, Context(), rows);
        const std::vector<float> some = problem.OutputRows(rows);
        ASSERT_TRUE(SameBits(some, std::vector<float>(all.begin(), all.begin() + some.size())))
            << rows << " rows";
      }
    }
  }
}

TEST_P(CudaLinearTest, TheSameCallGivesTheSameBits) {
  for (const int rows : {1, 3, 16, 80, 300}) {
    LinearCase c{.rows = rows,
                 .in_dim = 1536,
                 .out_dim = 4096,
                 .epilogue = Epilogue::kGatedGelu,
                 .residual = ResidualCase::kFull};
    SCOPED_TRACE(c.Name());
    LinearProblem problem(c);
    problem.Run(*runner_, Context(false), rows);
    const std::vector<float> first = problem.Output();
    for (int i = 0; i < 10; ++i) {
      problem.Run(*runner_, Context(i % 2 == 0), rows);
      ASSERT_TRUE(SameBits(problem.Output(), first));
    }
  }
}

// 200 links, each reading what the last ones wrote: a launch that starts too early or a buffer
// reused too soon changes the end of the chain.
TEST_P(CudaLinearTest, ChainsOfDependentLaunchesEqualLaunchesOneByOne) {
  constexpr int kDim = 768, kMlp = 2304, kSlices = 256, kLinks = 200, kLayers = 7;
  Random random(5);
  TestBuffer<bf16> gate_up(RandomBf16(random, size_t(kLayers) * 2 * kMlp * kDim, 0.06f));
  TestBuffer<bf16> down(RandomBf16(random, size_t(kLayers) * kMlp * kDim, 0.04f));
  TestBuffer<bf16> slices(RandomBf16(random, size_t(kLayers) * kSlices * kDim, 0.06f));
  TestBuffer<bf16> widen(RandomBf16(random, size_t(kLayers) * kSlices * kDim, 0.1f));
  TestBuffer<float> norm(RandomF32(random, kDim, 0.3f, 1.0f));
  for (const int rows : {1, 2, 3, 8, 13, 24, 80, 128}) {
    SCOPED_TRACE(fmt::format("{} rows", rows));
    const std::vector<float> start = RandomF32(random, size_t(rows) * kDim, 1.0f);
    TestBuffer<float> hidden_a(start), hidden_b(start.size());
    TestBuffer<bf16> x(size_t(rows) * kDim), mlp(size_t(rows) * kMlp), out(size_t(rows) * kDim),
        narrow(size_t(rows) * kSlices),
        multiplier(RandomBf16(random, size_t(rows) * kSlices, 1.0f));
    const auto chain = [&](bool dependent, bool synchronise) {
      bool first = true;
      const bf16* block_out = nullptr;
      float* hidden = hidden_a.get();
      float* other = hidden_b.get();
      const auto run = [&](LinearCall call, bool residual) {
        const ResidualUpdate update{.hidden = hidden,
                                    .block_out = block_out,
                                    .post_norm = norm.get(),
                                    .hidden_out = other,
                                    .pre_norm = norm.get()};
        if (residual) {
          call.residual = &update;
          call.x = x.get();
          std::swap(hidden, other);
        }
        call.rows = rows;
        runner_->Run(Context(dependent && !first), call);
        first = false;
        if (synchronise) LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_));
      };
      for (int link = 0; link < kLinks / 4; ++link) {
        const size_t layer = link % kLayers;
        run({.weight = Bf16Matrix(gate_up.get() + layer * 2 * kMlp * kDim, 2 * kMlp, kDim),
             .epilogue = Epilogue::kGatedGelu,
             .y = mlp.get()},
            true);
        run({.weight = Bf16Matrix(down.get() + layer * kMlp * kDim, kDim, kMlp),
             .x = mlp.get(),
             .y = out.get()},
            false);
        block_out = out.get();
        run({.weight = Bf16Matrix(slices.get() + layer * kSlices * kDim, kSlices, kDim),
             .epilogue = Epilogue::kGeluMul,
             .y = narrow.get(),
             .multiplier = multiplier.get(),
             .multiplier_stride = kSlices},
            true);
        run({.weight = Bf16Matrix(widen.get() + layer * kSlices * kDim, kDim, kSlices),
             .x = narrow.get(),
             .y = out.get()},
            false);
      }
    };
    chain(false, true);
    const std::vector<bf16> expected = out.Download();
    for (const bf16 value : expected) ASSERT_TRUE(std::isfinite(__bfloat162float(value)));

    hidden_a.Upload(start);
    chain(true, false);
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_));
    EXPECT_TRUE(SameBits(out.Download(), expected)) << "dependent launches";

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    LAPIDARY_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    chain(true, false);
    LAPIDARY_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    LAPIDARY_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 20; ++replay) {
      hidden_a.Upload(start);
      out.Poison();
      LAPIDARY_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
      LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_));
      ASSERT_TRUE(SameBits(out.Download(), expected)) << "replay " << replay;
    }
    LAPIDARY_CUDA_CHECK(cudaGraphExecDestroy(executable));
    LAPIDARY_CUDA_CHECK(cudaGraphDestroy(graph));
  }
}

// The update of a row has the same bits alone and inside a linear call.
TEST_P(CudaLinearTest, FusedResidualUpdateHasTheBitsOfTheSeparateOne) {
  constexpr int kDim = 1536;
  Random random(9);
  for (const int rows : {1, 2, 4, 16, 70}) {
    TestBuffer<float> hidden(RandomF32(random, size_t(rows) * kDim, 2.0f));
    TestBuffer<bf16> block_out(RandomBf16(random, size_t(rows) * kDim, 1.0f));
    TestBuffer<float> post(RandomF32(random, kDim, 0.5f, 1.0f));
    TestBuffer<float> pre(RandomF32(random, kDim, 0.5f, 1.0f));
    TestBuffer<bf16> weight(RandomBf16(random, size_t(64) * kDim, 0.05f));
    TestBuffer<float> fused(hidden.size()), separate(hidden.size());
    TestBuffer<bf16> x(hidden.size()), y(size_t(rows) * 64), y_separate(size_t(rows) * 64);
    ResidualUpdate update{.hidden = hidden.get(),
                          .block_out = block_out.get(),
                          .post_norm = post.get(),
                          .scale = 1.25f,
                          .hidden_out = fused.get(),
                          .pre_norm = pre.get()};
    LinearCall call{.weight = Bf16Matrix(weight.get(), 64, kDim),
                    .rows = rows,
                    .x = x.get(),
                    .residual = &update,
                    .y = y.get()};
    runner_->Run(Context(), call);
    update.hidden_out = separate.get();
    RunResidualUpdate(Context(), update, rows, kDim, x.get());
    call.residual = nullptr;
    call.y = y_separate.get();
    runner_->Run(Context(), call);
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_));
    EXPECT_TRUE(SameBits(fused.Download(), separate.Download())) << rows;
    EXPECT_TRUE(SameBits(y.Download(), y_separate.Download())) << rows;
    EXPECT_TRUE(separate.GuardsIntact() && x.GuardsIntact());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaLinearTest, ::testing::Bool(), [](const auto& mode) {
  return mode.param ? "BatchInvariant" : "Default";
});

// Only the cluster size is part of the rounding: how deep loads run ahead, how many blocks there
// are and who updates the residual is not.
TEST(CudaLinearPlanTest, PlansOfOneClusterSizeGiveTheSameBits) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  constexpr int kInDim = 4104, kOutDim = 1000, kMaxRows = kMaxStreamedRows;
  Random random(11);
  TestBuffer<bf16> weight(RandomBf16(random, size_t(kOutDim) * kInDim, 0.03f));
  TestBuffer<float> hidden(RandomF32(random, size_t(kMaxRows) * kInDim, 2.0f));
  TestBuffer<bf16> block_out(RandomBf16(random, size_t(kMaxRows) * kInDim, 1.0f));
  TestBuffer<float> norm(RandomF32(random, kInDim, 0.5f, 1.0f));
  TestBuffer<float> hidden_out(hidden.size());
  TestBuffer<bf16> x(hidden.size()), y(size_t(kMaxRows) * kOutDim / 2);
  const ResidualUpdate update{.hidden = hidden.get(),
                              .block_out = block_out.get(),
                              .post_norm = norm.get(),
                              .hidden_out = hidden_out.get(),
                              .pre_norm = norm.get()};
  for (const int rows : {1, 3, kMaxRows}) {
    const LinearCall call{.weight = Bf16Matrix(weight.get(), kOutDim, kInDim),
                          .rows = rows,
                          .x = x.get(),
                          .residual = &update,
                          .epilogue = Epilogue::kGatedGelu,
                          .y = y.get()};
    std::vector<bf16> first_of_rows;
    for (const int cluster : {1, 2, 4, 8}) {
      std::vector<bf16> first;
      for (const int depth : {4, 6, 8}) {
        for (const int blocks_per_sm : {1, 3}) {
          for (const int fused_rows : {0, 4}) {
            const SkinnyPlan plan{.cluster = cluster,
                                  .depth = depth,
                                  .blocks_per_sm = blocks_per_sm,
                                  .fused_residual_rows = fused_rows};
            ASSERT_TRUE(SkinnyFits(TestDevice(), call, plan));
            SCOPED_TRACE(fmt::format("rows {} cluster {} depth {} blocks {} fused {}", rows,
                                     cluster, depth, blocks_per_sm, fused_rows));
            y.Poison();
            RunSkinny(TestContext(), call, plan);
            LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
            ASSERT_TRUE(y.GuardsIntact());
            std::vector<bf16> values = y.Download();
            values.resize(size_t(rows) * kOutDim / 2);
            for (const bf16 value : values) ASSERT_FALSE(std::isnan(__bfloat162float(value)));
            if (first.empty()) first = values;
            ASSERT_TRUE(SameBits(values, first));
          }
        }
      }
      // Another cluster size rounds differently, but only in the last bits.
      if (first_of_rows.empty()) first_of_rows = first;
      double error = 0, norm_squared = 0;
      for (size_t i = 0; i < first.size(); ++i) {
        const double a = __bfloat162float(first[i]), b = __bfloat162float(first_of_rows[i]);
        error += (a - b) * (a - b);
        norm_squared += b * b;
      }
      EXPECT_LT(std::sqrt(error / norm_squared), 2e-3);
    }
  }
}

TEST(CudaLinearPlanTest, EightRowsOfEveryModelStreamButNoMore) {
  const auto fits = [](int in_dim, int rows, const DeviceInfo& device = TestH200()) {
    const LinearCall call{.weight = Bf16Matrix(nullptr, 5376, in_dim), .rows = rows};
    return SkinnyFits(device, call, PlanSkinny(call));
  };
  for (const int in_dim : {8, 256, 1536, 2560, 2816, 3840, 5376, 6144, 10240, 15360, 21504}) {
    EXPECT_TRUE(fits(in_dim, 1) && fits(in_dim, 8)) << in_dim;
    EXPECT_FALSE(fits(in_dim, 9)) << in_dim;
  }
  EXPECT_FALSE(fits(65536, 8)) << "more than shared memory holds";
  EXPECT_TRUE(fits(40960, 8) && !fits(40960, 8, TestSmallerCard())) << "some hold less";
}

TEST(CudaResidualUpdateTest, ManyRowsAreWrittenWithAndWithoutX) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  constexpr int kRows = 8192, kDim = 72;
  Random random(3);
  const std::vector<float> values = RandomF32(random, size_t(kRows) * kDim, 2.0f);
  TestBuffer<float> hidden(values), hidden_out(values.size());
  TestBuffer<bf16> x(values.size());
  const ResidualUpdate update{
      .hidden = hidden.get(), .scale = 2.0f, .hidden_out = hidden_out.get()};
  for (bf16* target : {static_cast<bf16*>(nullptr), x.get()}) {
    hidden_out.Poison();
    RunResidualUpdate(TestContext(), update, kRows, kDim, target);
    LAPIDARY_CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<float> out = hidden_out.Download();
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(out[i], 2.0f * values[i]);
    EXPECT_TRUE(hidden_out.GuardsIntact() && x.GuardsIntact());
  }
  const std::vector<bf16> rounded = x.Download();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(__bfloat162float(rounded[i]), __bfloat162float(__float2bfloat16(2.0f * values[i])));
  }
}

TEST(CudaLinearSupportTest, FormatsWithoutKernelsAreRefused) {
  MatrixRef weight = Bf16Matrix(nullptr, 16, 64);
  EXPECT_TRUE(LinearSupports(weight).ok());
  weight.format = FormatOf(DType::kQ4_0);
  EXPECT_EQ(LinearSupports(weight).error().message,
            "a matrix in Q4_0, for which there is no kernel");
  EXPECT_DEATH(Bf16Values(weight), "weights in Q4_0");
}

TEST(CudaLinearDeathTest, InputSizesThatAreNoMultipleOf8AreRefused) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  LinearRunner runner({.max_rows = 4});
  TestBuffer<bf16> buffer(4096);
  LinearCall call{.weight = Bf16Matrix(buffer.get(), 8, 20),
                  .rows = 1,
                  .x = buffer.get(),
                  .y = buffer.get() + 2048};
  const LaunchContext context = TestContext();  // The test's child process has no GPU.
  EXPECT_DEATH(runner.Run(context, call), "a matrix of 8 x 20");
}

}  // namespace
}  // namespace lapidary::cuda
