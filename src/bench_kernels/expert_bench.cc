#include "bench_kernels/expert_bench.h"

#include <fmt/format.h>

#include <cmath>

#include "bench_kernels/device_array.h"
#include "bench_kernels/empty_launch.h"
#include "bench_kernels/kernel_timing.h"
#include "bench_kernels/random_values.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/moe/moe.h"

namespace lapidary {
namespace {

using cuda::bf16;

constexpr int kLaunches = 4;
constexpr int kShortLaunches = 20;  // of what takes microseconds

template <typename T>
DeviceArray<T> Random(cudaStream_t stream, int64_t count, float amplitude) {
  DeviceArray<T> values(count);
  FillRandom(stream, values.get(), count, amplitude);
  return values;
}

struct Variant {
  std::string name;
  cuda::GroupPlan plan;
};

std::vector<Variant> Variants(const cuda::MoeShape& shape, bool all) {
  using cuda::GroupPlan;
  std::vector<Variant> variants = {{"", cuda::PlanGroups(shape)}};
  if (!all) return variants;
  for (const int group_rows : {16, 64, 128}) {
    variants.push_back(
        {fmt::format("portable{}", group_rows), {GroupPlan::Kernel::kPortable, group_rows}});
  }
  for (const int group_rows : {64, 160}) {
    variants.push_back(
        {fmt::format("hopper{}", group_rows), {GroupPlan::Kernel::kHopper, group_rows}});
  }
  variants.push_back({"hopper_pairs", {GroupPlan::Kernel::kHopper, 160, true}});
  return variants;
}

}  // namespace

void BenchExperts(const std::string& model, const ModelPlan& plan, const BenchSink& sink) {
  if (!plan.moe) return;
  const MoePlan& moe = *plan.moe;
  const int64_t hidden = plan.hidden_size;
  const cuda::Stream stream;
  const auto context = [&](bool dependent) {
    return cuda::LaunchContext{
        .stream = stream.get(), .dependent = dependent, .device = &sink.device};
  };
  auto norm = Random<float>(stream.get(), hidden, 1.0f);
  auto scales = Random<float>(stream.get(), moe.num_experts, 1.0f);
  auto router = Random<bf16>(stream.get(), moe.num_experts * hidden, 0.5f);
  auto gate_up =
      Random<bf16>(stream.get(), int64_t{2} * moe.num_experts * moe.expert_width * hidden, 0.04f);
  auto down =
      Random<bf16>(stream.get(), int64_t{moe.num_experts} * moe.expert_width * hidden, 0.04f);
  for (const int rows : sink.rows) {
    auto h = Random<float>(stream.get(), rows * hidden, 1.0f);
    auto block_out = Random<bf16>(stream.get(), rows * hidden, 1.0f);
    DeviceArray<int32_t> experts(int64_t{rows} * moe.top_k);
    DeviceArray<float> weights(int64_t{rows} * moe.top_k);
    DeviceArray<bf16> x(rows * hidden);
    const cuda::MoeShape shape{rows, plan.hidden_size, moe.expert_width, moe.num_experts,
                               moe.top_k};
    DeviceArray<int32_t> counters(cuda::kRouteCounters);
    LAPIDARY_CUDA_CHECK(cudaMemset(counters.get(), 0, cuda::kRouteCounters * sizeof(int32_t)));
    DeviceArray<std::byte> scratch(cuda::ExpertScratchBytes(shape));
    cuda::RouteCall route;
    route.shape = shape;
    route.plan = cuda::PlanGroups(shape);
    route.h = h.get();
    route.router_scale = norm.get();
    route.router_weight = cuda::Bf16Matrix(router.get(), moe.num_experts, plan.hidden_size);
    route.per_expert_scale = scales.get();
    route.pre_norm = norm.get();
    route.experts = experts.get();
    route.weights = weights.get();
    route.x = x.get();
    route.scratch = scratch.get();
    route.counters = counters.get();
    KernelRow row{.name = model + " route",
                  .shape = fmt::format("{} of {}", moe.top_k, moe.num_experts),
                  .rows = rows,
                  .bytes = 2.0 * moe.num_experts * hidden + 6.0 * rows * hidden,
                  .flops = 2.0 * rows * moe.num_experts * hidden};
    sink.Time(row, [&] {
      return TimeGraphUs(stream.get(), kShortLaunches,
                         [&](int idx) { cuda::RunRoute(context(idx > 0), route); });
    });

    auto logits = Random<float>(stream.get(), int64_t{rows} * moe.num_experts, 1.0f);
    const cuda::ChooseCall choose{.rows = rows,
                                  .num_experts = moe.num_experts,
                                  .top_k = moe.top_k,
                                  .logits = logits.get(),
                                  .experts = experts.get(),
                                  .weights = weights.get()};
    row.name = model + " choose";
    row.bytes = 4.0 * rows * moe.num_experts;
    row.flops = 0.0;
    sink.Time(row, [&] {
      return TimeGraphUs(stream.get(), kShortLaunches,
                         [&](int idx) { cuda::RunChoose(context(idx > 0), choose); });
    });

    row.name = model + " empty launch";
    row.bytes = 0.0;
    sink.Time(row, [&] {
      return TimeGraphUs(stream.get(), kShortLaunches,
                         [&](int idx) { LaunchEmpty(context(idx > 0)); });
    });

    // As many experts as so many rows are expected to choose, choosing at random.
    const double all = moe.num_experts;
    const double touched = all * (1.0 - std::pow(1.0 - moe.top_k / all, rows));
    const double expert_values = 3.0 * moe.expert_width * hidden;
    row.name = model + " experts";
    row.shape = fmt::format("{} of {} {}x{}", moe.top_k, moe.num_experts, hidden, moe.expert_width);
    row.bytes = 2.0 * touched * expert_values + 6.0 * rows * hidden;
    row.flops = 2.0 * rows * moe.top_k * expert_values;
    for (const Variant& variant : Variants(shape, sink.variants)) {
      row.variant = variant.name;
      route.plan = variant.plan;
      cuda::RunRoute(context(false), route);
      cuda::ExpertsCall call;
      call.shape = shape;
      call.plan = variant.plan;
      call.experts = experts.get();
      call.weights = weights.get();
      call.x = x.get();
      call.gate_up =
          cuda::Bf16Matrix(gate_up.get(), moe.num_experts * 2 * moe.expert_width, plan.hidden_size);
      call.down =
          cuda::Bf16Matrix(down.get(), moe.num_experts * plan.hidden_size, moe.expert_width);
      call.post_dense_norm = norm.get();
      call.post_expert_norm = norm.get();
      call.block_out = block_out.get();
      call.scratch = scratch.get();
      sink.Time(row, [&] {
        return TimeGraphUs(stream.get(), kLaunches,
                           [&](int idx) { cuda::RunExperts(context(idx > 0), call); });
      });
    }
  }
}

}  // namespace lapidary
