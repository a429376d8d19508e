#include "ops/cuda/linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "ops/cuda/linear_skinny.h"
#include "ops/cuda/linear_wide.h"
#include "ops/cuda/test_buffer.h"

namespace lapidary::cuda {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float Uniform() {
    return static_cast<float>(static_cast<int64_t>(Next() >> 40) - (1 << 23)) / (1 << 23);
  }
  int Below(int limit) { return static_cast<int>((Next() >> 20) % limit); }

 private:
  uint64_t state_;
};

std::vector<bf16> RandomBf16(Random& random, size_t size, float amplitude) {
  std::vector<bf16> values(size);
  for (bf16& value : values) value = __float2bfloat16(random.Uniform() * amplitude);
  return values;
}

std::vector<float> RandomF32(Random& random, size_t size, float amplitude, float centre = 0.0f) {
  std::vector<float> values(size);
  for (float& value : values) value = centre + random.Uniform() * amplitude;
  return values;
}

double Gelu(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

enum class ResidualCase { kNone, kNothingToAdd, kFull, kWithoutPreNorm };

struct Case {
  int rows = 1;
  int in_dim = 64;
  int out_dim = 16;
  Epilogue epilogue = Epilogue::kStore;
  ResidualCase residual = ResidualCase::kNone;
  float softcap = 30.0f;
  uint64_t seed = 1;

  std::string Name() const {
    return fmt::format("rows {} in {} out {} epilogue {} residual {}", rows, in_dim, out_dim,
                       static_cast<int>(epilogue), static_cast<int>(residual));
  }
};

// A call, its inputs on both sides and its outputs on the device.
class Problem {
 public:
  explicit Problem(const Case& c)
      : case_(c),
        random_(c.seed),
        width_(c.epilogue == Epilogue::kGatedGelu ? c.out_dim / 2 : c.out_dim),
        multiplier_stride_(width_ + 24),
        weight_(RandomBf16(random_, size_t(c.out_dim) * c.in_dim, 1.7f / std::sqrt(c.in_dim))),
        x_(RandomBf16(random_, size_t(c.rows) * c.in_dim, 1.7f)),
        multiplier_(RandomBf16(random_, size_t(c.rows) * multiplier_stride_, 1.0f)),
        hidden_(RandomF32(random_, size_t(c.rows) * c.in_dim, 3.0f)),
        block_out_(RandomBf16(random_, size_t(c.rows) * c.in_dim, 0.3f)),
        post_norm_(RandomF32(random_, c.in_dim, 0.5f, 1.0f)),
        pre_norm_(RandomF32(random_, c.in_dim, 0.5f, 1.0f)),
        device_weight_(weight_),
        device_x_(x_),
        device_multiplier_(multiplier_),
        device_hidden_(hidden_),
        device_block_out_(block_out_),
        device_post_norm_(post_norm_),
        device_pre_norm_(pre_norm_),
        hidden_out_(hidden_.size()),
        y_bf16_(size_t(c.rows) * width_),
        y_f32_(size_t(c.rows) * width_) {}

  // The first `rows` rows; outputs and rows of x that the call must not see are poisoned first.
  void Run(LinearRunner& runner, const LaunchContext& context, int rows) {
    RunBy(context, rows,
          [&](const LaunchContext& c, const LinearCall& call) { runner.Run(c, call); });
  }
  template <typename Function>
  void RunBy(const LaunchContext& context, int rows, const Function& run) {
    if (case_.residual == ResidualCase::kNone) {
      std::vector<bf16> x = x_;
      std::fill(x.begin() + int64_t{rows} * case_.in_dim, x.end(),
                __float2bfloat16(std::numeric_limits<float>::quiet_NaN()));
      device_x_.Upload(x);
    } else {
      device_x_.Poison();
    }
    hidden_out_.Poison();
    y_bf16_.Poison();
    y_f32_.Poison();
    ResidualUpdate update{.hidden = device_hidden_.get(),
                          .block_out = device_block_out_.get(),
                          .post_norm = device_post_norm_.get(),
                          .scale = 0.75f,
                          .hidden_out = hidden_out_.get(),
                          .pre_norm = device_pre_norm_.get(),
                          .eps = 1e-6f};
    if (case_.residual == ResidualCase::kNothingToAdd) {
      update.block_out = nullptr;
      update.post_norm = nullptr;
      update.scale = 1.0f;
    }
    if (case_.residual == ResidualCase::kWithoutPreNorm) update.pre_norm = nullptr;
    LinearCall call{.weight = device_weight_.get(),
                    .out_dim = case_.out_dim,
                    .in_dim = case_.in_dim,
                    .rows = rows,
                    .x = device_x_.get(),
                    .residual = case_.residual == ResidualCase::kNone ? nullptr : &update,
                    .epilogue = case_.epilogue,
                    .y = F32() ? static_cast<void*>(y_f32_.get()) : y_bf16_.get(),
                    .multiplier = device_multiplier_.get(),
                    .multiplier_stride = multiplier_stride_,
                    .softcap = case_.softcap};
    run(context, call);
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(context.stream));
  }

  // Compares `rows` rows with double precision on up to `max_features` features.
  void Check(int rows, int max_features) {
    ASSERT_TRUE(y_bf16_.GuardsIntact() && y_f32_.GuardsIntact() && hidden_out_.GuardsIntact() &&
                device_x_.GuardsIntact());
    const std::vector<float> y = Output();
    for (size_t i = 0; i < size_t(rows) * width_; ++i) {
      ASSERT_TRUE(std::isfinite(y[i])) << "row " << i / width_ << " feature " << i % width_;
    }
    for (size_t i = size_t(rows) * width_; i < y.size(); ++i) {
      ASSERT_TRUE(std::isnan(y[i])) << "written beyond the call's rows";
    }
    std::vector<int> features;
    if (width_ <= max_features) {
      for (int f = 0; f < width_; ++f) features.push_back(f);
    } else {
      features = {0, 1, 7, 8, 15, 16, width_ - 1, width_ - 2, width_ / 2};
      while (features.size() < size_t(max_features)) features.push_back(random_.Below(width_));
    }
    double error = 0, norm = 0, hidden_error = 0, hidden_norm = 0;
    const std::vector<float> hidden_out = hidden_out_.Download();
    std::vector<double> x(case_.in_dim), h(case_.in_dim);
    for (int row = 0; row < rows; ++row) {
      ReferenceInput(row, x, h);
      for (int k = 0; k < case_.in_dim && case_.residual != ResidualCase::kNone; ++k) {
        const double difference = hidden_out[size_t(row) * case_.in_dim + k] - h[k];
        hidden_error += difference * difference;
        hidden_norm += h[k] * h[k];
      }
      double row_error = 0, row_norm = 0;
      for (const int feature : features) {
        const double expected = Reference(row, feature, x);
        const double difference = y[size_t(row) * width_ + feature] - expected;
        row_error += difference * difference;
        row_norm += expected * expected;
      }
      error += row_error;
      norm += row_norm;
    }
    // bf16 results carry a rounding of 2^-9 of the next power of two, so 2^-8 at most; with the
    // residual, x does too where it falls between two values; f32 results of given bf16 inputs are
    // exact to summation error.
    const bool exact_inputs = case_.residual == ResidualCase::kNone;
    const double bound = F32() ? (exact_inputs ? 5e-5 : 1e-3) : Streamed(rows) ? 4e-3 : 5e-3;
    EXPECT_LT(std::sqrt(error / norm), bound);
    if (case_.residual != ResidualCase::kNone) {
      EXPECT_LT(std::sqrt(hidden_error / hidden_norm), 1e-6);
    }
  }

  std::vector<float> Output() {
    if (F32()) return y_f32_.Download();
    std::vector<float> values;
    for (const bf16 value : y_bf16_.Download()) values.push_back(__bfloat162float(value));
    return values;
  }
  std::vector<float> OutputRows(int rows) {
    std::vector<float> values = Output();
    values.resize(size_t(rows) * width_);
    return values;
  }

 private:
  bool F32() const { return case_.epilogue == Epilogue::kSoftcap; }
  static bool Streamed(int rows) { return rows <= 8; }

  void ReferenceInput(int row, std::vector<double>& x, std::vector<double>& h) const {
    const size_t start = size_t(row) * case_.in_dim;
    if (case_.residual == ResidualCase::kNone) {
      for (int k = 0; k < case_.in_dim; ++k) x[k] = __bfloat162float(x_[start + k]);
      return;
    }
    const bool adds = case_.residual != ResidualCase::kNothingToAdd;
    double sum = 0;
    for (int k = 0; k < case_.in_dim; ++k) {
      const double b = __bfloat162float(block_out_[start + k]);
      sum += b * b;
    }
    const double post = 1.0 / std::sqrt(sum / case_.in_dim + 1e-6);
    sum = 0;
    for (int k = 0; k < case_.in_dim; ++k) {
      const double b = __bfloat162float(block_out_[start + k]);
      h[k] = hidden_[start + k];
      if (adds) h[k] = (h[k] + b * post * post_norm_[k]) * 0.75;
      sum += h[k] * h[k];
    }
    const double pre = 1.0 / std::sqrt(sum / case_.in_dim + 1e-6);
    for (int k = 0; k < case_.in_dim; ++k) {
      const double value =
          case_.residual == ResidualCase::kWithoutPreNorm ? h[k] : h[k] * pre * pre_norm_[k];
      x[k] = __bfloat162float(__float2bfloat16(static_cast<float>(value)));
    }
  }

  double Dot(int weight_row, const std::vector<double>& x) const {
    double sum = 0;
    const bf16* weight = weight_.data() + size_t(weight_row) * case_.in_dim;
    for (int k = 0; k < case_.in_dim; ++k) sum += x[k] * __bfloat162float(weight[k]);
    return sum;
  }

  double Reference(int row, int feature, const std::vector<double>& x) const {
    const double product = Dot(feature, x);
    switch (case_.epilogue) {
      case Epilogue::kStore:
        return product;
      case Epilogue::kGatedGelu:
        return Gelu(product) * Dot(width_ + feature, x);
      case Epilogue::kGeluMul:
        return Gelu(product) *
               __bfloat162float(multiplier_[size_t(row) * multiplier_stride_ + feature]);
      case Epilogue::kSoftcap:
        return case_.softcap == 0 ? product : case_.softcap * std::tanh(product / case_.softcap);
    }
    return 0;
  }

  Case case_;
  Random random_;
  int width_;
  int64_t multiplier_stride_;
  std::vector<bf16> weight_, x_, multiplier_;
  std::vector<float> hidden_;
  std::vector<bf16> block_out_;
  std::vector<float> post_norm_, pre_norm_;
  TestBuffer<bf16> device_weight_, device_x_, device_multiplier_;
  TestBuffer<float> device_hidden_;
  TestBuffer<bf16> device_block_out_;
  TestBuffer<float> device_post_norm_, device_pre_norm_;
  TestBuffer<float> hidden_out_;
  TestBuffer<bf16> y_bf16_;
  TestBuffer<float> y_f32_;
};

constexpr Epilogue kEpilogues[] = {Epilogue::kStore, Epilogue::kGatedGelu, Epilogue::kGeluMul,
                                   Epilogue::kSoftcap};
constexpr ResidualCase kResidualCases[] = {ResidualCase::kNone, ResidualCase::kNothingToAdd,
                                           ResidualCase::kFull, ResidualCase::kWithoutPreNorm};

// Both modes of the runner.
class CudaLinearTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    LAPIDARY_SKIP_WITHOUT_GPU();
    runner_ = std::make_unique<LinearRunner>(
        LinearOptions{.batch_invariant = GetParam(), .max_rows = 4096});
    LAPIDARY_CUDA_CHECK(cudaStreamCreate(&stream_));
  }
  void TearDown() override {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  LaunchContext Context(bool dependent = true) const { return {stream_, dependent}; }

  void Check(const Case& c, int max_features = 200) {
    SCOPED_TRACE(c.Name());
    Problem problem(c);
    problem.Run(*runner_, Context(), c.rows);
    problem.Check(c.rows, max_features);
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
    const Case c{.rows = 80,
                 .in_dim = shape.in_dim,
                 .out_dim = shape.out_dim,
                 .epilogue = shape.epilogue,
                 .residual = shape.residual ? ResidualCase::kFull : ResidualCase::kNone,
                 .seed = uint64_t(shape.out_dim)};
    Problem problem(c);
    for (const int rows : {1, 4, 7, 16, 32, 80}) {
      SCOPED_TRACE(fmt::format("{}: the first {}", c.Name(), rows));
      problem.Run(*runner_, Context(), rows);
      problem.Check(rows, 24);
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
  for (const auto& [in_dim, out_dim] :
       {std::pair{1536, 2560}, {2048, 1536}, {40, 33}, {6144, 200}, {2560, 1024}, {21504, 64}}) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGatedGelu}) {
      Case c{.rows = max_rows,
             .in_dim = in_dim,
             .out_dim = out_dim & ~1,
             .epilogue = epilogue,
             .residual = in_dim <= 2560 ? ResidualCase::kFull : ResidualCase::kNone};
      SCOPED_TRACE(c.Name());
      Problem problem(c);
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
    Case c{.rows = rows,
           .in_dim = 1536,
           .out_dim = 4096,
           .epilogue = Epilogue::kGatedGelu,
           .residual = ResidualCase::kFull};
    SCOPED_TRACE(c.Name());
    Problem problem(c);
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
        run({.weight = gate_up.get() + layer * 2 * kMlp * kDim,
             .out_dim = 2 * kMlp,
             .in_dim = kDim,
             .epilogue = Epilogue::kGatedGelu,
             .y = mlp.get()},
            true);
        run({.weight = down.get() + layer * kMlp * kDim,
             .out_dim = kDim,
             .in_dim = kMlp,
             .x = mlp.get(),
             .y = out.get()},
            false);
        block_out = out.get();
        run({.weight = slices.get() + layer * kSlices * kDim,
             .out_dim = kSlices,
             .in_dim = kDim,
             .epilogue = Epilogue::kGeluMul,
             .y = narrow.get(),
             .multiplier = multiplier.get(),
             .multiplier_stride = kSlices},
            true);
        run({.weight = widen.get() + layer * kSlices * kDim,
             .out_dim = kDim,
             .in_dim = kSlices,
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
    LinearCall call{.weight = weight.get(),
                    .out_dim = 64,
                    .in_dim = kDim,
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

// Only the cluster size is part of the rounding: how deep loads run ahead, where they wait, how
// many blocks there are and who updates the residual is not.
TEST(CudaLinearPlanTest, PlansOfOneClusterSizeGiveTheSameBits) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  constexpr int kInDim = 4104, kOutDim = 1000, kMaxRows = 30;
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
  for (const int rows : {1, 3, 11, 30}) {
    const LinearCall call{.weight = weight.get(),
                          .out_dim = kOutDim,
                          .in_dim = kInDim,
                          .rows = rows,
                          .x = x.get(),
                          .residual = &update,
                          .epilogue = Epilogue::kGatedGelu,
                          .y = y.get()};
    std::vector<bf16> first_of_rows;
    for (const int cluster : {1, 2, 4, 8}) {
      std::vector<bf16> first;
      for (const int depth : {4, 6, 8}) {
        for (const bool shared_ring : {false, true}) {
          for (const int blocks_per_sm : {1, 4}) {
            for (const int fused_rows : {0, 4}) {
              const SkinnyPlan plan{.cluster = cluster,
                                    .depth = depth,
                                    .shared_ring = shared_ring,
                                    .blocks_per_sm = blocks_per_sm,
                                    .fused_residual_rows = fused_rows};
              if (!SkinnyFits(call, plan)) continue;
              SCOPED_TRACE(fmt::format("rows {} cluster {} depth {} ring {} blocks {} fused {}",
                                       rows, cluster, depth, shared_ring, blocks_per_sm,
                                       fused_rows));
              y.Poison();
              RunSkinny({}, call, plan);
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

std::string Describe(const WidePlan& plan) {
  return fmt::format("tile {} split {} alone {} persistent {} parts {}", plan.tile_rows, plan.split,
                     plan.alone, plan.persistent, plan.row_parts);
}

void CheckWide(Problem& problem, const WidePlan& plan, int rows, int max_features) {
  SCOPED_TRACE(fmt::format("{}, {} rows", Describe(plan), rows));
  problem.RunBy({}, rows, [&](const LaunchContext& context, const LinearCall& call) {
    RunWide(context, call, plan);
  });
  problem.Check(rows, max_features);
}

TEST(CudaLinearWideTest, EveryPlanAndRowCountAgreesWithDoublePrecision) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  Problem problem({.rows = kMaxWideRows, .in_dim = 520, .out_dim = 200});
  for (const WidePlan& plan : AllWidePlans()) {
    for (const int rows : {1, 9, 15, 16, 17, 33, 48, 63, 80, 81, 97, 112, 127, 128}) {
      CheckWide(problem, plan, rows, 40);
    }
  }
}

TEST(CudaLinearWideTest, EveryPlanAndEpilogueAgreesWithDoublePrecision) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  uint64_t seed = 0;
  for (const Epilogue epilogue : kEpilogues) {
    // Ends of k and of tiles in every position; the last has more tiles than blocks.
    for (const auto& [in_dim, out_dim] :
         {std::pair{512, 66}, {1000, 256}, {520, 302}, {576, 2 * 7}, {512, 20000}}) {
      Problem problem({.rows = 90,
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
  Problem problem({.rows = 80, .in_dim = 1536, .out_dim = 2560, .epilogue = Epilogue::kGatedGelu});
  std::map<int, std::vector<float>> by_split;
  for (int turn = 0; turn < 5; ++turn) {
    for (const WidePlan& plan : AllWidePlans()) {
      SCOPED_TRACE(Describe(plan));
      problem.RunBy({}, 80, [&](const LaunchContext& context, const LinearCall& call) {
        RunWide(context, call, plan);
      });
      const auto [first, is_new] = by_split.try_emplace(plan.split, problem.Output());
      ASSERT_TRUE(is_new || SameBits(problem.Output(), first->second));
    }
  }
}

// Every model's shapes have a plan that fits them.
TEST(CudaLinearWideTest, ChosenPlansSplitNoMoreThanThereIs) {
  for (const int in_dim : {8, 64, 72, 256, 1536, 2816, 12288, 21504}) {
    for (const int out_dim : {1, 64, 256, 1536, 2560, 24576, 262144}) {
      for (const int rows : {9, 16, 80, 128}) {
        const WidePlan plan = PlanWide({.out_dim = out_dim, .in_dim = in_dim, .rows = rows});
        EXPECT_LE(plan.split, (in_dim + 63) / 64) << in_dim << " " << out_dim << " " << rows;
        EXPECT_TRUE(plan.split == 1 || !plan.persistent);
      }
    }
  }
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
    RunResidualUpdate({}, update, kRows, kDim, target);
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

TEST(CudaLinearDeathTest, InputSizesThatAreNoMultipleOf8AreRefused) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  LinearRunner runner({.max_rows = 4});
  TestBuffer<bf16> buffer(4096);
  LinearCall call{.weight = buffer.get(),
                  .out_dim = 8,
                  .in_dim = 20,
                  .rows = 1,
                  .x = buffer.get(),
                  .y = buffer.get() + 2048};
  EXPECT_DEATH(runner.Run({}, call), "in_dim 20");
}

}  // namespace
}  // namespace lapidary::cuda
