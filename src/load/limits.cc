#include "load/limits.h"

#include <algorithm>

#include "executor/cuda/cuda_options.h"

namespace lapidary {

KvFormat DefaultKvFormat(DeviceKind device) {
  return device == DeviceKind::kCpu ? KvFormat::kF32 : cuda::kKvFormat;
}

Result<KvFormat> ChooseKvFormat(std::optional<KvFormat> wanted, DeviceKind device) {
  const KvFormat format = wanted.value_or(DefaultKvFormat(device));
  if (device != DeviceKind::kCpu && format != cuda::kKvFormat) {
    return MakeError(
        "--kv-cache-dtype {}: on a GPU the KV cache is in bfloat16; leave it out, or add "
        "--device cpu",
        KvFormatName(format));
  }
  return format;
}

BatchLimits DefaultLimits(DeviceKind device) {
  if (device != DeviceKind::kCpu) {
    return {.max_num_seqs = 256, .max_num_batched_tokens = 2048, .max_model_len = 1 << 28};
  }
  return {.max_num_seqs = 64, .max_num_batched_tokens = 512, .max_model_len = 8192};
}

StepTime DefaultStepTime(DeviceKind device) {
  // The slowest tokens of an answer stay within three times the median, with room for a step that
  // takes longer than expected. Below the least nobody sees a difference, and prompts in many small
  // chunks cost everybody throughput.
  constexpr double kGrowth = 2.5;
  if (device != DeviceKind::kCpu) return {.max_ms = 15.0, .max_growth = kGrowth};
  // A CPU computes a hundred rows about as fast, each, as five hundred, so short steps cost a
  // prompt little. A short question that arrives waits for what is left of one step and for the
  // step planned after it, and is answered by the third. A GPU needs long steps for its full speed,
  // and they are short in milliseconds.
  return {.max_ms = 100.0, .max_growth = kGrowth, .max_prompt_ms = 40.0};
}

StepTime LimitedStepTime(DeviceKind device, double max_ms) {
  return {.max_ms = max_ms,
          .max_prompt_ms = std::min(DefaultStepTime(device).max_prompt_ms, max_ms)};
}

Result<BatchLimits> CompleteLimits(BatchLimits wanted, const ModelPlan& plan, DeviceKind device) {
  const BatchLimits defaults = DefaultLimits(device);
  BatchLimits limits = wanted;
  if (limits.max_num_seqs == 0) limits.max_num_seqs = defaults.max_num_seqs;
  if (limits.max_num_batched_tokens == 0) {
    const bool has_experts_on_gpu = plan.moe && device != DeviceKind::kCpu;
    limits.max_num_batched_tokens =
        std::max(has_experts_on_gpu ? kBatchedTokensWithExperts : defaults.max_num_batched_tokens,
                 limits.max_num_seqs);
  }
  if (limits.max_model_len == 0) {
    limits.max_model_len = std::min(plan.max_context, defaults.max_model_len);
  }
  if (limits.max_model_len > plan.max_context) {
    return MakeError("--max-model-len {}: the model's context is {}", limits.max_model_len,
                     plan.max_context);
  }
  return limits;
}

}  // namespace lapidary
