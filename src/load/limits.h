// How much runs at once, and in what form it is cached: what every device has its own answer to; a
// simulated one has a GPU's.
// The commands, the memory plan and the executors all ask here.
#pragma once

#include <optional>

#include "base/result.h"
#include "device/device_choice.h"
#include "kv/kv_layout.h"
#include "model/plan.h"

namespace lapidary {

// How a device caches unless told otherwise: on the CPU exactly, in f32; on a GPU in bf16.
KvFormat DefaultKvFormat(DeviceKind device);
// `wanted` (absent: the default) where the device has it.
Result<KvFormat> ChooseKvFormat(std::optional<KvFormat> wanted, DeviceKind device);

// 0: as the device likes it.
struct BatchLimits {
  int max_num_seqs = 0;            // running at once
  int max_num_batched_tokens = 0;  // rows of a step
  int max_model_len = 0;           // tokens of a sequence, answer included
};

// A CPU is slow: long contexts and large steps are asked for. max_model_len is where the model's
// own context is cut.
BatchLimits DefaultLimits(DeviceKind device);
// Rows of a step on a GPU where the model has experts: one sees a sixteenth of the rows, but all
// its weights are read. What keeps steps with decodes short is StepTime.
inline constexpr int kBatchedTokensWithExperts = 8192;

// How long a step of a server may take (SchedulerLimits); a batch job has no limits.
struct StepTime {
  // With decodes: the larger of these milliseconds and of this many times what a step takes once
  // all prompts are answers.
  double max_ms = 0.0;
  double max_growth = 0.0;
  // With prompts alone; 0: any.
  double max_prompt_ms = 0.0;
};
StepTime DefaultStepTime(DeviceKind device);
// As a user asked for: `max_ms`, and nothing is longer by default. 0: no limit at all.
StepTime LimitedStepTime(DeviceKind device, double max_ms);

// Every limit that is 0 filled in. A step has room for a row of each sequence, unless its size was
// given. An error when the model's context is shorter than asked for.
Result<BatchLimits> CompleteLimits(BatchLimits wanted, const ModelPlan& plan, DeviceKind device);

}  // namespace lapidary
